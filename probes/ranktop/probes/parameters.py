"""The parameters of a live model as an inventory: shapes before data-parallel sharding, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ranktop.budget.inventory import Inventory, Kind
from ranktop.probes.optimizer import dtype_name
from ranktop.probes.storages import Ledger
from ranktop.probes.structure import Structure


def inventory_of(
    structure: Structure, optimizers: list[Any], device: torch.device, extras: Iterable[Any] = ()
) -> Inventory:
    """Return the inventory of a model as this rank holds it, each shared parameter once.

    Parameters that FSDP does not manage and that lie on another device are left out: another budget is theirs.
    ``extras`` are parameters that the optimizers update beside the model's; they come last.
    """
    ledger = Ledger(device)
    group_of = optimizer_groups(optimizers)
    sharded: dict[int, list[Kind]] = {}
    for unit, group in enumerate(structure.groups):
        for module, kind in _fsdp2_kinds(group, unit, group_of):
            sharded.setdefault(id(module), []).append(kind)
    for unit, (_, handle) in enumerate(structure.handles):
        for module, kind in _fsdp1_kinds(handle, unit, group_of):
            sharded.setdefault(id(module), []).append(kind)
    outside = -1 if sharded else 0
    plain = {id(module): items for module, items in structure.plain()}
    kinds: list[Kind] = []
    seen: set[int] = set()

    def add(parameter: Any) -> None:
        if id(parameter) not in seen and ledger.here(parameter):
            seen.add(id(parameter))
            kinds.append(plain_kind(parameter, outside, group_of.get(id(parameter), -1)))

    for module in structure.modules:
        kinds += sharded.get(id(module), ())
        for _, parameter in plain.get(id(module), ()):
            add(parameter)
    for parameter in extras:
        add(parameter)
    return Inventory.of(kinds, ledger.total(structure.buffers()))


def optimizer_groups(optimizers: list[Any]) -> dict[int, int]:
    """Return parameter id -> index of its parameter group, counted over all optimizers."""
    found: dict[int, int] = {}
    index = 0
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", None) or ():
            for parameter in group["params"]:
                found.setdefault(id(parameter), index)
            index += 1
    return found


def plain_kind(parameter: Any, unit: int, group: int) -> Kind:
    """Return the kind of a parameter that no FSDP unit holds; a DTensor by its local part."""
    local, placements, split = tensor_parallel(parameter)
    return Kind(
        shape=tuple(local.shape),
        dtype=dtype_name(parameter.dtype),
        trainable=parameter.requires_grad,
        unit=unit,
        group=group,
        tensor_parallel=placements,
        split_size=split,
    )


def tensor_parallel(parameter: Any) -> tuple[torch.Tensor, str, int | None]:
    """Return a DTensor's local tensor, its placements as text, and the split dimension's size if uneven."""
    placements = getattr(parameter, "placements", None)
    local = getattr(parameter, "_local_tensor", None)
    if placements is None or local is None:
        return parameter, "", None
    split = None
    for axis, placement in enumerate(placements):
        dim = getattr(placement, "dim", None)
        if dim is not None and parameter.shape[dim] % parameter.device_mesh.size(axis):
            split = int(parameter.shape[dim])
    return local, placement_words(placements), split


def placement_words(placements: Any) -> str:
    """Return placements as ``S(0)``, ``R`` ..., joined by commas."""
    words = []
    for placement in placements:
        dim = getattr(placement, "dim", None)
        words.append("P" if placement.is_partial() else "R" if dim is None else f"S({dim})")
    return ",".join(words)


def _fsdp2_kinds(group: Any, unit: int, group_of: dict[int, int]) -> Iterator[tuple[nn.Module, Kind]]:
    """Yield (module, kind) for the parameters of one FSDP2 group."""
    mesh = group.mesh_info
    size = getattr(mesh, "shard_mesh_size", 1)
    rank = getattr(mesh, "shard_mesh_rank", 0)
    for parameter in group.fsdp_params:
        sharded = parameter.sharded_param
        shape = getattr(parameter, "_orig_size", None)
        dim = getattr(getattr(parameter, "fsdp_placement", None), "dim", 0)
        inner = getattr(parameter, "_unsharded_dtensor_spec", None) or getattr(parameter, "_tp_spec", None)
        own = getattr(parameter, "mesh_info", mesh)
        yield (
            parameter._module_info.module,
            Kind(
                shape=tuple(sharded.shape if shape is None else shape),
                dtype=dtype_name(sharded.dtype),
                trainable=sharded.requires_grad,
                unit=unit,
                group=group_of.get(id(sharded), -1),
                shard_dim=dim or None,
                tensor_parallel=placement_words(inner.placements) if inner is not None else "",
                shards=getattr(own, "shard_mesh_size", size),
                shard_rank=getattr(own, "shard_mesh_rank", rank),
            ),
        )


def _fsdp1_kinds(handle: Any, unit: int, group_of: dict[int, int]) -> Iterator[tuple[nn.Module, Kind]]:
    """Yield (module, kind) for the parameters in one FSDP1 flat parameter, in their order there."""
    flat = handle.flat_param
    originals = getattr(flat, "_params", None) or [None] * len(flat._shapes)
    whole = group_of.get(id(flat), -1)
    for info, shape, original in zip(flat._param_infos, flat._shapes, originals, strict=False):
        yield (
            info.module,
            Kind(
                shape=tuple(shape),
                dtype=dtype_name(flat.dtype),
                trainable=flat.requires_grad if original is None else original.requires_grad,
                unit=unit,
                group=whole if original is None else group_of.get(id(original), whole),
            ),
        )
