"""Several runs beside each other, worked out once for the terminal, for Markdown and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.compare.align import Window, align
from ranktop.tui.compare.comparable import Caveat, caveats
from ranktop.tui.compare.losses import LossOfRun, compared, loss_differs
from ranktop.tui.compare.plans import Row, plan_differences
from ranktop.tui.compare.side import Loaded, Side, side
from ranktop.tui.compare.spread import Difference, differ
from ranktop.tui.session.findings.finding import Finding

LETTERS: Final = "ABCDEFGH"
"""Names of the runs; no more are compared at once."""

TIMED: Final = ("seconds", "data", "forward", "backward", "optimizer", "rate")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs beside each other; the first is what the others are compared with."""

    sides: tuple[Side, ...]
    window: Window
    caveats: tuple[Caveat, ...]
    plans: tuple[Row, ...]
    losses: tuple[LossOfRun | None, ...] = ()
    """Of each run; None where it tells none."""
    loss_step: int | None = None
    """The step at which they are compared."""

    @property
    def base(self) -> Side:
        """The first run."""
        return self.sides[0]

    @property
    def others(self) -> tuple[Side, ...]:
        """The runs that are compared with it."""
        return self.sides[1:]

    @property
    def by_peak(self) -> bool:
        """Whether what a device needs is told by the allocator's running peak; else by the peak moment."""
        return all(one.peak is not None for one in self.sides)

    def needs(self, one: Side) -> int | None:
        """Return the bytes that a device must have for a run, without the allocator's cache."""
        if self.by_peak:
            return one.peak.needs if one.peak is not None else None
        return one.held.held if one.held is not None else None

    def needs_differ(self, other: Side) -> Difference | None:
        """Return by how many bytes ``other`` needs more than the first run; None where one is not known."""
        base, value = self.needs(self.base), self.needs(other)
        if base is None or value is None or self.base.held is None or other.held is None:
            return None
        noise = max(self.base.held.moves, other.held.moves)
        return Difference(float(value - base), (value - base) / base if base else None, noise)

    def category_differs(self, name: str, other: Side) -> Difference | None:
        """Return by how many bytes a category of the fullest rank differs; None where one is not known."""
        one, two = self.base.held, other.held
        if one is None or two is None:
            return None
        base, value = getattr(one.memory, name), getattr(two.memory, name)
        if base is None or value is None:
            return None
        return Difference(
            float(value - base), (value - base) / base if base else None, max(one.noise(name), two.noise(name))
        )

    def time_differs(self, name: str, other: Side) -> Difference | None:
        """Return how a time or the rate differs; None where one is missing or has too few steps."""
        return differ(self.base.times.get(name), other.times.get(name))

    def loss_differs(self, other: Side) -> Difference | None:
        """Return how the loss at the same step differs; None where one is missing or too few were told."""
        found = dict(zip((one.letter for one in self.sides), self.losses, strict=False))
        return loss_differs(found.get(self.base.letter), found.get(other.letter))

    def findings(self) -> list[tuple[Finding, str]]:
        """Return the findings with the letters of the runs that have them; those of all runs alike are left out."""
        found: dict[tuple[str, str, str], tuple[Finding, str]] = {}
        for one in self.sides:
            for finding in one.run.findings:
                key = (finding.rule, finding.subject, finding.severity)
                known = found.get(key)
                letters = (known[1] if known else "").replace(one.letter, "") + one.letter
                found[key] = (known[0] if known else finding, letters)
        told = [one for one in found.values() if len(one[1]) < len(self.sides)]
        return sorted(told, key=lambda one: -one[0].gravity)


def compare(runs: Sequence[Loaded], first: int | None = None, last: int | None = None) -> Comparison:
    """Lay runs beside each other, over the steps from ``first`` to ``last`` where a person has chosen them."""
    lives = [run.gathered.longest() for run in runs]
    window = align(lives, first, last)
    sides = tuple(side(letter, run, life, window) for letter, run, life in zip(LETTERS, runs, lives, strict=False))
    for run, life in zip(runs, lives, strict=True):
        several = len([one for one in run.gathered.lives if one.ranks])
        if several > 1:
            number = run.gathered.lives.index(life) + 1
            run.notes.append(f"it was restarted: its life {number} of {several}, with the most steps, is compared")
        if life.stride > 1:
            run.notes.append(f"it is long: every {life.stride}th step is compared")
    step, losses = compared([life.losses for life in lives])
    return Comparison(sides, window, tuple(caveats(sides)), tuple(plan_differences(sides)), losses, step)
