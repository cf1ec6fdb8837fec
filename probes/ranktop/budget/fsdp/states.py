"""FSDP1 (flat parameters) and FSDP2 (every parameter by itself): what a rank's shards hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ranktop.budget.held import Held, counted, gradient_itemsize, held, whole_piece
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.optimizers.states import Piece
from ranktop.budget.plan import Fsdp, Plan
from ranktop.budget.tensor import stored_numel
from ranktop.budget.terms import DTYPE_BYTES, Amount


def expected(inventory: Inventory, plan: Plan) -> Held:
    """Return the sharded states of this rank."""
    fsdp = plan.fsdp or Fsdp(version=1 if plan.strategy == "fsdp1" else 2)
    if fsdp.cpu_offload and not plan.host:
        nothing = Amount(0, f"FSDP{fsdp.version}: offloaded to the CPU")
        return Held(nothing, nothing, nothing, nothing)
    return _flat(inventory, plan, fsdp) if fsdp.version == 1 else _by_parameter(inventory, plan)


def shard_shapes(kind: Kind, plan: Plan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (padded, own) shapes of this rank's shard of one FSDP2 parameter.

    A dimension of d elements over n ranks goes in chunks of ceil(d / n); the last ones may be short or empty,
    their storage is not: it is padded to a full chunk. Source:
    torch/distributed/fsdp/_fully_shard/_fsdp_param.py ``FSDPParam._init_sharded_param``.
    """
    ranks = kind.shards or plan.layout.shard
    rank = plan.layout.shard_rank if kind.shard_rank is None else kind.shard_rank
    dim, shape = kind.shard_dim or 0, kind.shape or (1,)
    chunk = -(-shape[dim] // ranks)
    own = min(max(shape[dim] - rank * chunk, 0), chunk)
    return (*shape[:dim], chunk, *shape[dim + 1 :]), (*shape[:dim], own, *shape[dim + 1 :])


def _by_parameter(inventory: Inventory, plan: Plan) -> Held:
    """FSDP2. Gradients are views of the unit's reduce-scatter output, which is padded like the parameters.

    Optimizer state is made like the unpadded shard. Source:
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py ``foreach_reduce``.
    """
    parameters = gradients = 0
    pieces: list[Piece] = []
    for kind, count in counted(inventory):
        if kind.unit < 0:
            parameters += stored_numel(kind, plan.layout.tensor) * kind.itemsize * count
            gradients += kind.numel * gradient_itemsize(kind, plan) * count if kind.trainable else 0
            pieces.append(whole_piece(kind, count))
            continue
        padded, own = shard_shapes(kind, plan)
        parameters += prod(padded) * kind.itemsize * count
        if kind.trainable:
            gradients += prod(padded) * gradient_itemsize(kind, plan) * count
        whole = own == kind.shape
        pieces.append(Piece(own, kind.itemsize, kind.group, kind.trainable, whole=whole, count=count))
    states = held(
        Amount(parameters, "FSDP2: dim-0 chunks, padded"),
        Amount(gradients, "FSDP2: views of the padded reduce-scatter output"),
        pieces,
        plan,
    )
    return replace(states, unsharded=_unreduced(inventory, plan))


def _unreduced(inventory: Inventory, plan: Plan) -> Amount:
    """FSDP2 without gradient sync: whole gradients, in the dtype that they will be reduced in.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py ``FSDPParam.to_accumulated_grad_if_needed``.
    """
    dtype = plan.precision.reduce or plan.precision.compute
    total = sum(
        kind.numel * (DTYPE_BYTES[dtype] if dtype and kind.unit >= 0 else gradient_itemsize(kind, plan)) * count
        for kind, count in counted(inventory)
        if kind.trainable
    )
    return Amount(total, "FSDP2 without gradient sync: whole gradients, kept until the last micro-batch")


def flat_layout(kinds: list[Kind], ranks: int, align: int) -> tuple[list[tuple[Kind, int, int]], int]:
    """Return where each parameter lies in an FSDP1 flat parameter as (kind, start, end), and its length.

    Unit: elements.
    With ``align`` (use_orig_params) every parameter starts at a multiple of it and the length is padded to a
    multiple of ``ranks``. Source: torch/distributed/fsdp/_flat_param.py ``_init_flat_param_and_metadata``.
    """
    spans, end = [], 0
    for kind in kinds:
        if align:
            end += -end % align
        spans.append((kind, end, end + kind.numel))
        end += kind.numel
    return spans, end + (-end % ranks if align else 0)


def flat_alignment(kinds: list[Kind], plan: Plan) -> int:
    """Return the elements in 16 bytes of the dtype that is computed in (``_get_aligned_numel``)."""
    compute = plan.precision.compute
    return max(1, 16 // (DTYPE_BYTES[compute] if compute else kinds[0].itemsize))


def _flat_pieces(spans: list[tuple[Kind, int, int]], fsdp: Fsdp, low: int, high: int) -> Iterator[Piece]:
    """Yield what the optimizer updates between two offsets of the flat parameter."""
    first = spans[0][0]
    if not fsdp.use_orig_params:
        yield Piece((high - low,), first.itemsize, first.group, any(kind.trainable for kind, _, _ in spans))
        return
    for kind, start, end in spans:
        numel = min(end, high) - max(start, low)
        if numel > 0:
            # NO_SHARD keeps the parameters' own shapes, every other strategy flattens their parts.
            shape = kind.shape if fsdp.sharding == "none" else (numel,)
            yield Piece(shape, kind.itemsize, kind.group, kind.trainable)


def _flat(inventory: Inventory, plan: Plan, fsdp: Fsdp) -> Held:
    """FSDP1: one flat parameter for each unit, split evenly after padding."""
    whole = fsdp.sharding == "none"
    layout = plan.layout
    ranks = layout.replicate if whole else layout.shard
    compute = plan.precision.compute
    parameters = gradients = waiting = 0
    pieces: list[Piece] = []
    for unit, kinds in inventory.units().items():
        if unit < 0:
            parameters += sum(kind.numel * kind.itemsize for kind in kinds)
            own = sum(kind.numel * gradient_itemsize(kind, plan) for kind in kinds if kind.trainable)
            gradients, waiting = gradients + own, waiting + own
            pieces += map(whole_piece, kinds)
            continue
        align = flat_alignment(kinds, plan) if fsdp.use_orig_params else 0
        spans, length = flat_layout(kinds, ranks, align)
        shard = length if whole else -(-length // ranks)
        low = 0 if whole else shard * layout.shard_rank
        parameters += shard * kinds[0].itemsize
        if any(kind.trainable for kind in kinds):
            gradients += shard * gradient_itemsize(kinds[0], plan)
            waiting += length * (DTYPE_BYTES[compute] if compute else gradient_itemsize(kinds[0], plan))
        pieces += _flat_pieces(spans, fsdp, low, low + shard)
    rule = "FSDP1: whole flat parameters, padded" if whole else "FSDP1: flat parameters, padded, split evenly"
    # Source: torch/distributed/fsdp/_runtime_utils.py ``_post_backward_hook``, which returns before it reduces.
    unreduced = Amount(waiting, "FSDP1 under no_sync: whole flat gradients, kept until the last micro-batch")
    return replace(held(Amount(parameters, rule), Amount(gradients, rule), pieces, plan), unsharded=unreduced)
