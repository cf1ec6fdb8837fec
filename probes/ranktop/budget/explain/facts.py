"""What the mistakes are told from: a run under a strategy with what was found about it."""

from __future__ import annotations

from dataclasses import dataclass

from ranktop.budget.activations.saved import Activations
from ranktop.budget.explain.pictures import highest
from ranktop.budget.explain.whole import Whole
from ranktop.budget.plan import Plan
from ranktop.budget.run import Projection, RankBudget, Run
from ranktop.budget.terms import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Facts:
    """A run under a strategy, projected."""

    run: Run
    strategy: str
    projection: Projection
    rank: RankBudget
    """The one that needs the most."""
    whole: Whole
    activations: Activations | None

    @property
    def plan(self) -> Plan:
        """The worst rank's plan."""
        return self.rank.plan

    @property
    def weights(self) -> int:
        """Bytes of all weights as they are stored, on one device."""
        return round(sum(each * count for each, count in self.whole.stored))

    @property
    def peak(self) -> int | None:
        """Bytes of the worst rank at its peak."""
        return self.rank.total

    @property
    def buckets(self) -> int:
        """Bytes of DeepSpeed's gradient buckets while backward runs, 0 without; they need not be there at the peak."""
        zero = self.plan.zero
        if zero is None or not zero.contiguous_gradients:
            return 0
        count = 1 + zero.overlap_comm if zero.stage < 3 else 1
        return count * zero.reduce_bucket_size * DTYPE_BYTES[self.plan.precision.parameters]

    def at(self, moment: str, category: str) -> int:
        """Return the bytes of a category at a moment, 0 when unknown."""
        amount = self.rank.budget.at(moment).get(category)
        return (amount.bytes or 0) if amount is not None else 0

    def most(self, category: str) -> int:
        """Return the most bytes of a category within a step, 0 when unknown."""
        return highest(self.rank.budget, category)[1] or 0

    def part(self, moment: str, category: str, *words: str) -> int:
        """Return the bytes of the parts of an amount whose names hold a word, not as what is left out."""
        amount = self.rank.budget.at(moment).get(category)
        parts = amount.parts if amount is not None else ()
        return sum(
            part.bytes for part in parts if any(word in part.name for word in words) and "without" not in part.name
        )
