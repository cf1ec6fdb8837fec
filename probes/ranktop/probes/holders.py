"""Where the parameters and gradients of a model live: its modules, FSDP1's flat parameters, FSDP2's groups.

Weak references only, and none to a parameter itself: ``torch.utils.swap_tensors``, which ``Module.to`` uses
for DTensors, refuses tensors that have one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


class Gone(Exception):
    """A module that was walked is no longer there, or holds other parameters than before."""


@dataclass(slots=True)
class PlainModule:
    """The parameters that a module holds by itself."""

    module: weakref.ref[nn.Module]
    names: tuple[str, ...]
    ids: tuple[int, ...]
    """Identities of the parameters when walked."""
    types: tuple[torch.dtype, ...]
    trainable: tuple[bool, ...]
    all: bool
    """True when ``names`` are all the parameters that the module has."""

    def tensors(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of now; raises Gone when they are not the ones walked."""
        module = self.module()
        if module is None:
            raise Gone
        for name in self.names:
            parameter = module._parameters.get(name)
            if parameter is None:
                raise Gone
            yield parameter

    def changed(self) -> bool:
        """Return whether a parameter was replaced, cast, frozen or unfrozen since the walk."""
        module = self.module()
        if module is None or (self.all and len(module._parameters) < len(self.names)):
            return True
        now = [module._parameters.get(name) for name in self.names]
        return (
            tuple(map(id, now)) != self.ids
            or tuple(p.dtype for p in now if p is not None) != self.types
            or tuple(p.requires_grad for p in now if p is not None) != self.trainable
        )


@dataclass(slots=True)
class ShardedGroup:
    """One FSDP2 parameter group: its sharded parameters, also while they are gathered."""

    group: weakref.ref[Any]
    key: tuple[Any, ...] = ()
    accumulates: bool = False
    """True once a backward without reduction was seen: it leaves whole gradients beside the shards."""

    def parameters(self) -> list[Any]:
        """Return the FSDPParams of the group."""
        group = self.group()
        if group is None:
            raise Gone
        return list(group.fsdp_params)

    def tensors(self) -> Iterator[Any]:
        """Yield the sharded parameters."""
        for parameter in self.parameters():
            yield parameter.sharded_param

    def gradients(self) -> Iterator[Any]:
        """Yield the sharded gradients, and what a backward without (full) reduction leaves."""
        for parameter in self.parameters():
            yield parameter.sharded_param.grad
        yield from self.unreduced()

    def unreduced(self) -> Iterator[Any]:
        """Yield whole gradients that wait for their reduction, and shards that wait for the replicas'."""
        yield getattr(self.group(), "_partial_reduce_output", None)
        for parameter in self.parameters():
            yield getattr(parameter, "unsharded_accumulated_grad", None)
            yield getattr(getattr(parameter, "_unsharded_param", None), "grad", None)

    def state(self) -> tuple[Any, ...]:
        """Return a value that differs when a parameter was replaced, cast or frozen."""
        return tuple(
            (id(own), id(getattr(p, "_sharded_param_data", None)), own.dtype, own.requires_grad)
            for p in self.parameters()
            for own in (p.sharded_param,)
        )

    def changed(self) -> bool:
        """Return whether ``state`` differs from the one walked."""
        try:
            return self.state() != self.key
        except Gone:
            return True


@dataclass(slots=True)
class FlatHandle:
    """One FSDP1 flat parameter, by its local shard."""

    handle: weakref.ref[Any]
    key: tuple[Any, ...] = ()

    def flat(self) -> Any:
        """Return the flat parameter."""
        handle = self.handle()
        if handle is None:
            raise Gone
        return handle.flat_param

    def tensors(self) -> Iterator[Any]:
        """Yield the local shard (the flat parameter itself before its first forward)."""
        flat = self.flat()
        shard = getattr(flat, "_local_shard", None)
        yield flat.data if shard is None else shard

    def gradients(self) -> Iterator[Any]:
        """Yield the sharded gradient, also while a backward keeps it aside."""
        flat = self.flat()
        yield flat.grad
        yield getattr(flat, "_saved_grad_shard", None)

    def state(self) -> tuple[Any, ...]:
        """Return a value that differs when the flat parameter was replaced, cast or (un)frozen."""
        flat = self.flat()
        shard = getattr(flat, "_local_shard", None)
        originals = getattr(flat, "_params", None) or ()
        frozen = tuple(p.requires_grad for p in originals)
        return id(flat), id(shard), flat.dtype, flat.requires_grad, frozen

    def changed(self) -> bool:
        """Return whether ``state`` differs from the one walked."""
        try:
            return self.state() != self.key
        except Gone:
            return True


@dataclass(slots=True)
class Holders:
    """All holders of a model, in the order of its modules."""

    plain: list[PlainModule] = field(default_factory=list)
    groups: list[ShardedGroup] = field(default_factory=list)
    flats: list[FlatHandle] = field(default_factory=list)

    def parameters(self) -> Iterator[Any]:
        """Yield every parameter's own tensor (shared ones as often as they are held)."""
        for module in self.plain:
            yield from module.tensors()
        for group in self.groups:
            yield from group.tensors()
        for flat in self.flats:
            yield from flat.tensors()

    def leaves(self) -> Iterator[Any]:
        """Yield the parameters as optimizers know them: FSDP1's original ones, or its flat ones."""
        for module in self.plain:
            yield from module.tensors()
        for group in self.groups:
            yield from group.tensors()
        for flat in self.flats:
            yield flat.flat()
            yield from getattr(flat.flat(), "_params", None) or ()

    def gradients(self) -> Iterator[Any]:
        """Yield every gradient, None for those that do not exist now."""
        for module in self.plain:
            for parameter in module.tensors():
                yield parameter.grad
        for group in self.groups:
            yield from group.gradients()
        for flat in self.flats:
            yield from flat.gradients()

    def present(self) -> list[int]:
        """Return which gradients exist now, in an order of its own; raises Gone when the layout changed.

        True or False; a flat gradient says its size, for it comes whole or sharded. This runs in the
        training thread at every moment: about 0.1 us for each parameter.
        """
        found: list[int] = []
        append = found.append
        try:
            for holder in self.plain:
                parameters = holder.module()._parameters  # type: ignore[union-attr]
                for name in holder.names:
                    append(parameters[name].grad is not None)  # type: ignore[union-attr]
            for group in self.groups:
                alive = group.group()
                for parameter in alive.fsdp_params:  # type: ignore[union-attr]
                    append(parameter.sharded_param.grad is not None)
                if not (getattr(alive, "reduce_grads", True) and getattr(alive, "all_reduce_grads", True)):
                    group.accumulates = True
                if group.accumulates:
                    found += [gradient is not None for gradient in group.unreduced()]
            for flat in self.flats:
                found += [0 if gradient is None else gradient.numel() for gradient in flat.gradients()]
        except (AttributeError, KeyError) as error:
            raise Gone from error
        return found

    def window(self, start: int, size: int) -> tuple[list[PlainModule | ShardedGroup | FlatHandle], int]:
        """Return up to ``size`` holders from ``start`` on, going round, and where the next look starts."""
        holders: list[PlainModule | ShardedGroup | FlatHandle] = [*self.plain, *self.groups, *self.flats]
        if len(holders) <= size:
            return holders, 0
        start %= len(holders)
        return (holders + holders)[start : start + size], (start + size) % len(holders)


def fsdp2_groups(module: nn.Module) -> list[Any]:
    """Return the FSDP2 parameter groups that ``fully_shard`` has put on a module (none for most modules)."""
    get_state = getattr(module, "_get_fsdp_state", None)
    if get_state is None:
        return []
    try:
        state = get_state()
    except Exception:
        return []
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        group = getattr(state, "_fsdp_param_group", None)
        groups = [] if group is None else [group]
    return list(groups)


def fsdp1_handle(module: nn.Module) -> Any | None:
    """Return the handle of the flat parameter that an FSDP1 wrapper manages, None for other modules."""
    handle = module.__dict__.get("_handle")
    if handle is None or not hasattr(handle, "flat_param"):
        return None
    return handle


def managed_names(groups: Iterable[Any], handles: Iterable[Any]) -> dict[int, set[str]]:
    """Return the parameters that FSDP manages: id of the module -> their names in it."""
    names: dict[int, set[str]] = {}
    for group in groups:
        for parameter in group.fsdp_params:
            info = parameter._module_info
            names.setdefault(id(info.module), set()).add(info.param_name)
            for module, name in zip(info.shared_modules, info.shared_param_names, strict=True):
                names.setdefault(id(module), set()).add(name)
    for handle in handles:
        flat = handle.flat_param
        for info in (*flat._param_infos, *flat._shared_param_infos):
            names.setdefault(id(info.module), set()).add(info.param_name)
        wrapper = getattr(handle, "_fully_sharded_module", None)
        if wrapper is not None:
            names.setdefault(id(wrapper), set()).add("_flat_param")
    return names


def find_holders(root: nn.Module) -> Holders:
    """Walk the modules of ``root`` and return where its parameters live."""
    holders = Holders()
    modules = list(root.modules())
    groups = list({id(g): g for module in modules for g in fsdp2_groups(module)}.values())
    handles = [h for h in map(fsdp1_handle, modules) if h is not None]
    managed = managed_names(groups, handles)
    flat_ids = {id(h.flat_param) for h in handles}
    for module in modules:
        skip = managed.get(id(module), ())
        items = [
            (name, p)
            for name, p in module._parameters.items()
            if p is not None and name not in skip and id(p) not in flat_ids
        ]
        if items:
            held = [p for _, p in items]
            holders.plain.append(
                PlainModule(
                    weakref.ref(module),
                    tuple(name for name, _ in items),
                    tuple(map(id, held)),
                    tuple(p.dtype for p in held),
                    tuple(p.requires_grad for p in held),
                    len(items) == len(module._parameters),
                )
            )
    for group in groups:
        sharded = ShardedGroup(weakref.ref(group))
        sharded.key = sharded.state()
        holders.groups.append(sharded)
    for handle in handles:
        flat = FlatHandle(weakref.ref(handle))
        flat.key = flat.state()
        holders.flats.append(flat)
    return holders
