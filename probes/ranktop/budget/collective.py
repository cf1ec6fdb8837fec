"""One collective operation of a training step, with the bytes that it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KINDS: Final = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "p2p")
"""Operations, as ``torch.distributed`` names them; ``p2p`` is a send to one other rank."""

PHASES: Final = ("load", "forward", "backward", "optimizer")
"""Parts of a step in which collectives run, in the order of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Calls that are alike, over one optimizer step of one rank."""

    kind: str
    """One of KINDS."""
    group: int
    """Ranks that take part."""
    bytes: int
    """Full-size bytes summed over the calls: of the whole tensor that is reduced or gathered, not of a shard."""
    calls: int = 1
    axis: str = "data"
    """``data``, ``shard``, ``replicate``, ``tensor``, ``pipeline``, ``context`` or ``expert``."""
    phase: str = "backward"
    """One of PHASES."""
    what: str = ""
    """In words, e.g. ``gradients, bucket by bucket``."""
    rule: str = ""
    """Source of the rule."""
    within: float | None = 0.0
    """As ``Amount.within``."""

    @property
    def sent(self) -> int:
        """Bytes that one GPU sends for it per step, in ring terms (2(n-1)/n of an all-reduce's bytes)."""
        n = max(1, self.group)
        if n == 1:
            return 0
        if self.kind == "all_reduce":
            return 2 * self.bytes * (n - 1) // n
        if self.kind in ("reduce_scatter", "all_gather", "all_to_all"):
            return self.bytes * (n - 1) // n
        return self.bytes
