"""What a mixture-of-experts layer keeps for backward."""

from __future__ import annotations

from dataclasses import dataclass

from ranktop.budget.inventory import Kind
from ranktop.budget.terms import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Sizes of one mixture-of-experts layer on one rank, for one micro-batch."""

    tokens: int
    """Tokens whose copies the rank's experts get on average: those of one tensor-parallel group."""
    hidden: int
    ffn: int
    """Width of one expert on this rank, after tensor parallel."""
    experts: int
    """Routed experts of the whole layer."""
    per_token: int
    gated: bool = False
    fused: bool = False
    """Gate, product and the router's weight are one kernel that saves only its input."""
    width: int = 2
    """Bytes per element."""
    load: float = 1.0
    """Copies that this rank's experts get, over the average; routing is not even until it is trained to be."""


def routed_rows(routing: Routing) -> int:
    """Return the copies of tokens that the experts of one rank compute.

    Every expert-parallel rank sends k copies of its tokens away and gets, on average, as many: their number does not
    depend on the expert-parallel size. Dropless routing; a capacity factor is a ``load``.
    """
    return round(routing.tokens * routing.per_token * routing.load)


def routed_bytes(routing: Routing) -> tuple[Part, ...]:
    """Return what the routed experts of one layer save for backward.

    The dispatched tokens, both inputs of the activation's backward and its weighted result: rows w (h + up + 2 f), or
    h + up + f when activation and weighting are fused. The router keeps its scores in fp32. Source: Megatron Core
    ``TEGroupedMLP.forward``, ``TopKRouter``. Within 20 %: the load is a guess.
    """
    rows, w = routed_rows(routing), routing.width
    up = 2 * routing.ffn if routing.gated else routing.ffn
    weighted = routing.ffn if routing.fused else 2 * routing.ffn
    return (
        Part("tokens dispatched to the experts", rows * routing.hidden * w),
        Part("inside of the experts", rows * (up + weighted) * w),
        Part("router", routing.tokens * routing.experts * 4),
    )


def is_expert(kind: Kind) -> bool:
    """Return whether a parameter belongs to routed experts, whose matrices stand as one tensor of three dimensions."""
    return len(kind.shape) == 3
