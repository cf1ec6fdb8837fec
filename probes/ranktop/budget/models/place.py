"""The parameters of one rank: pipeline stage, tensor and expert parallel parts, dtypes, sharding units, groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import BadInput, Model, NoRule, Tensor
from ranktop.budget.models.adapters import Stored, adapters, check, is_linear, quantized
from ranktop.budget.models.megatron import padded
from ranktop.budget.models.section import Section, completed
from ranktop.budget.models.stages import check_divides, check_layout, on_stage
from ranktop.budget.models.tensors import sections
from ranktop.budget.plan import Plan

PIECES: Final = 256
MOST_PIECES: Final = 4096
"""Tensors that stand for a model of which only the number of parameters is known: at least, at most."""


def inventory(model: Model, plan: Plan) -> Inventory:
    """Return what the rank that ``plan.layout`` names holds, before data-parallel sharding.

    Every block is a sharding unit of its own under FSDP, with the rest in the root's (0). Parameters that a master copy
    is updated for (outside of ZeRO) and frozen ones have no optimizer group. A bare count is a row of flat tensors,
    divided evenly. Megatron's layers pad the vocabulary of any family. Raises BadInput for a layout that the model
    cannot have.
    """
    layout = plan.layout
    check_layout(layout)
    if not model.family:
        return _flat(model, plan)
    model = completed(model)
    check_divides("tp", layout.tensor, model.heads, "heads")
    model = _shared_heads(model, layout.tensor)
    if layout.expert > 1:
        if not model.experts:
            raise BadInput(f"ep {layout.expert} needs a model with experts")
        check_divides("ep", layout.expert, model.experts, "experts")
    if plan.stack == "megatron":
        model = padded(model, layout.tensor)
    whole = sections(model, layout.tensor)
    if plan.lora is not None:
        check(plan.lora, frozenset(tensor.role for section in whole for tensor in section.tensors))
    builder = _Builder(model, plan)
    for chunk in on_stage(whole, model.tied, plan):
        builder.add_chunk(chunk)
    return Inventory(tuple(builder.kinds), tuple(builder.order), builder.buffer_bytes)


def _shared_heads(model: Model, tensor: int) -> Model:
    """Return the model with as many key/value heads as ranks share them: with fewer heads, ranks hold copies."""
    if model.kv_heads and tensor > model.kv_heads and tensor % model.kv_heads == 0:
        return replace(model, kv_heads=tensor)
    check_divides("tp", tensor, model.kv_heads, "key/value heads")
    return model


class _Builder:
    """Lays sections one behind the other; a block is built once and repeated."""

    def __init__(self, model: Model, plan: Plan) -> None:
        self.model = model
        self.plan = plan
        self.by_unit = plan.strategy.startswith("fsdp")
        self.kinds: list[Kind] = []
        self.order: list[int] = []
        self.buffer_bytes = 0
        self._index: dict[Kind, int] = {}
        self._units = 0

    def add_chunk(self, chunk: list[Section]) -> None:
        """Add one chunk of the model: its root's unit comes before those of its blocks."""
        root = self._units
        self._units += 1
        for section in chunk:
            template = [kind for tensor in section.tensors for kind in _kinds(tensor, self.model, self.plan)]
            distinct = list(dict.fromkeys(template))
            pattern = [distinct.index(one) for one in template]
            self.buffer_bytes += section.buffer_bytes * section.count
            if section.first is not None and self.by_unit:
                self._add_units(distinct, pattern, section.count)
                continue
            places = [self._place(one.kind(root if self.by_unit else 0)) for one in distinct]
            self.order += [places[i] for i in pattern] * section.count

    def _add_units(self, distinct: list[_Template], pattern: list[int], blocks: int) -> None:
        """Add blocks that are a unit each: their kinds are new by construction, and need not be looked up."""
        for unit in range(self._units, self._units + blocks):
            start = len(self.kinds)
            self.kinds += [one.kind(unit) for one in distinct]
            self.order += [start + i for i in pattern]
        self._units += blocks

    def _place(self, kind: Kind) -> int:
        place = self._index.setdefault(kind, len(self.kinds))
        if place == len(self.kinds):
            self.kinds.append(kind)
        return place


@dataclass(frozen=True, slots=True)
class _Template:
    """A kind without its unit."""

    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    group: int
    tensor_parallel: str
    split_size: int | None
    shards: int | None
    shard_rank: int | None
    shard_dim: int | None = None

    def kind(self, unit: int) -> Kind:
        return Kind(
            shape=self.shape,
            dtype=self.dtype,
            trainable=self.trainable,
            unit=unit,
            group=self.group,
            tensor_parallel=self.tensor_parallel,
            split_size=self.split_size,
            shards=self.shards,
            shard_rank=self.shard_rank,
            shard_dim=self.shard_dim,
        )


def _kinds(tensor: Tensor, model: Model, plan: Plan) -> Iterator[_Template]:
    """Yield what the rank stores for a tensor of the model: the tensor itself, or its frozen form and adapters."""
    shape, placement, split = _own(tensor, plan)
    dtype, lora = plan.precision.parameters, plan.lora
    shards, shard_rank = _sharding(tensor, plan)
    group = -1 if plan.precision.master and plan.zero is None else 0
    if lora is None:
        dim = _shard_dim(tensor, shape, plan, shards)
        yield _Template(shape, dtype, True, group, placement, split, shards, shard_rank, dim)
        return
    form = lora.quantized if is_linear(tensor) else None
    for stored in quantized(shape, form) if form else (Stored(shape, dtype, False),):
        whole = stored.shape == shape
        yield _Template(
            stored.shape, stored.dtype, False, -1, placement if whole else "", split if whole else None, shards,
            shard_rank,
        )  # fmt: skip
    for adapter in adapters(tensor, lora, model.family == "gpt2"):
        own, placed, uneven = _own(adapter, plan)
        yield _Template(own, lora.dtype, True, group, placed, uneven, shards, shard_rank)


def _own(tensor: Tensor, plan: Plan) -> tuple[tuple[int, ...], str, int | None]:
    """Return this rank's (shape, placement, size of the split dimension if uneven).

    As DTensor does it: chunks of ceil(size / t) in order, the last ones short or empty. Whole tensors are DTensors
    (``R``) where their module is: biases of split layers, norms under sequence parallel.
    """
    layout = plan.layout
    shape, t = tensor.shape, layout.tensor
    if tensor.expert and layout.expert > 1:
        shape = (shape[0] // layout.expert, *shape[1:])
    if t == 1:
        return shape, "", None
    dim = tensor.split
    if dim is None:
        replicated = tensor.role == "bias" or (plan.sequence_parallel and tensor.role == "norm")
        return shape, "R" if replicated else "", None
    whole = shape[dim]
    chunk = -(-whole // t)
    own = min(max(whole - layout.tensor_rank * chunk, 0), chunk)
    return (*shape[:dim], own, *shape[dim + 1 :]), f"S({dim})", whole if whole % t else None


def _shard_dim(tensor: Tensor, shape: tuple[int, ...], plan: Plan, shards: int | None) -> int | None:
    """Return the dimension that FSDP2 splits where it is not the first.

    Fused experts go by their second one when there are more ranks than experts, as torchtitan places them
    (models/llama4/infra/parallelize.py ``apply_fsdp``): by the first, most ranks would hold nothing but padding.
    """
    if not tensor.expert or len(shape) < 2 or plan.fsdp is None or plan.fsdp.version == 1:
        return None
    return 1 if (shards or plan.layout.shard) > shape[0] else None


def _sharding(tensor: Tensor, plan: Plan) -> tuple[int | None, int | None]:
    """Return (ranks that shard a tensor, this rank among them) where that is not the layout's sharding group.

    Ranks that differ in their experts hold the same of everything else, which is therefore sharded over both axes;
    where the layout's data axis already counts them, it is the experts that are sharded over fewer.
    """
    layout = plan.layout
    e = layout.expert
    if e == 1 or not plan.strategy.startswith("fsdp"):
        return None, None
    inside = layout.data * layout.tensor * layout.pipeline * layout.context == layout.world_size
    if inside:
        return (max(1, layout.shard // e), layout.shard_rank // e) if tensor.expert else (None, None)
    return (None, None) if tensor.expert else (layout.shard * e, layout.shard_rank * e)


def _flat(model: Model, plan: Plan) -> Inventory:
    layout = plan.layout
    if plan.lora is not None:
        raise NoRule("adapters need the shapes of the linear layers, and only the number of parameters is known")
    if layout.expert > 1:
        raise NoRule("expert parallel needs to know the experts, and only the number of parameters is known")
    if model.count is None or model.count < 1:
        raise BadInput(f"the number of parameters must be at least 1, not {model.count}")
    numel = -(-model.count // (layout.tensor * layout.pipeline))
    group = -1 if plan.precision.master and plan.zero is None else 0
    # In pieces, because ZeRO keeps gradients of whole tensors where a border between ranks cuts one.
    pieces = min(MOST_PIECES, max(PIECES, 2 * layout.shard))
    each, rest = divmod(numel, pieces)
    sizes = ([each] * (pieces - 1) if each else []) + [each + rest]
    return Inventory.of([Kind((size,), plan.precision.parameters, group=group) for size in sizes])
