"""Findings over time: from when to when each stood, and which comes next."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from ranktop.tui.replay.reel import Standing
from ranktop.tui.replay.signs import Sign
from ranktop.tui.session.findings.finding import SEVERITIES, Finding
from ranktop.tui.session.findings.scene import Key

FLICKER: Final = 20.0
"""Seconds for which a finding may be away and still is the same one."""

SAME: Final = 0.05
"""Seconds from the playhead within which a finding begins where it stands."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A finding from the time when it was first seen to the last. Times are seconds on the recording's clock."""

    key: Key
    severity: str
    """The gravest of the time."""
    sentence: str
    first: float
    last: float
    since: float | None = None
    step: int | None = None
    rough: bool = False
    """It began somewhere before: nobody has looked in between."""

    @property
    def same(self) -> tuple[Key, bool]:
        """What makes it one with an earlier one: a note that becomes a warning begins anew."""
        return self.key, self.severity == "info"

    @classmethod
    def of(cls, finding: Finding, at: float) -> Spell:
        """Return a finding as seen at one time."""
        return cls(finding.key, finding.severity, finding.sentence, at, at, finding.since, finding.step)

    def joined(self, later: Spell) -> Spell:
        """Return both as one."""
        graver = max(self, later, key=lambda spell: SEVERITIES.index(spell.severity))
        last = max(self.last, later.last)
        return replace(
            graver, first=self.first, last=last, since=later.since, step=later.step, rough=self.rough
        )  # fmt: skip


def join(spells: Iterable[Spell], by: Callable[[Spell], object] = attrgetter("same")) -> tuple[Spell, ...]:
    """Return them by ``first``, those that are the same ``by`` something and meet as one."""
    found: list[Spell] = []
    newest: dict[object, int] = {}
    for spell in sorted(spells, key=lambda one: (one.first, one.last)):
        at = newest.get(by(spell))
        if at is not None and spell.first - found[at].last <= FLICKER:
            found[at] = found[at].joined(spell)
        else:
            newest[by(spell)] = len(found)
            found.append(spell)
    return tuple(found)


def stories(spells: Iterable[Spell]) -> tuple[Spell, ...]:
    """Return those that need a person; a rule that comes to another subject of the same ranks tells on one story."""
    return join((spell for spell in spells if spell.severity != "info"), lambda spell: (spell.key[0], spell.key[2]))


@dataclass(slots=True)
class Watch:
    """Notes the findings of one look after the other."""

    spells: list[Spell] = field(default_factory=list)
    _newest: dict[object, int] = field(default_factory=dict)

    def note(self, findings: Iterable[Finding], at: float) -> None:
        """Take what was found at ``at``; times rise."""
        for finding in findings:
            spell = Spell.of(finding, at)
            place = self._newest.get(spell.same)
            if place is not None and at - self.spells[place].last <= FLICKER:
                self.spells[place] = self.spells[place].joined(spell)
            else:
                self._newest[spell.same] = len(self.spells)
                self.spells.append(spell)


def between(borders: Sequence[float], found: dict[float, tuple[Finding, ...]]) -> list[Spell]:
    """Return what is known of the findings when only the borders of parts were looked at.

    One that is found at two borders in turn stood between them. One that is not found at the border before began
    after that, when the rule says, else at the border.
    """
    spells: list[Spell] = []
    for at, border in enumerate(borders):
        later = {one.key for one in found.get(borders[at + 1], ())} if at + 1 < len(borders) else set()
        before = borders[at - 1] if at else border
        known = {one.key for one in found.get(before, ())} if at else set()
        for finding in found.get(border, ()):
            spell = replace(Spell.of(finding, border), rough=True)
            if finding.key in later:
                spell = replace(spell, last=borders[at + 1])
            if finding.key not in known and finding.since is not None and before < finding.since < border:
                spell = replace(spell, first=finding.since)
            spells.append(spell)
    return spells


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a recording so far."""

    spells: tuple[Spell, ...] = ()
    """By ``first``."""
    stories: tuple[Spell, ...] = ()
    """Those that need a person (``stories``), by ``first``."""
    signs: tuple[Sign, ...] = ()
    """What the recording tells by itself, by time."""
    seen: tuple[tuple[float, float], ...] = ()
    """The stretches that were gone through."""
    done: bool = False

    def beside(self, at: float, by: int) -> Spell | None:
        """Return the next one that begins after ``at``; with ``by`` below zero the last one before."""
        found = self.stories
        firsts = [spell.first for spell in found]
        place = bisect_right(firsts, at + SAME) if by > 0 else bisect_left(firsts, at - SAME) - 1
        return found[place] if 0 <= place < len(found) else None

    def saw(self, at: float) -> bool:
        """Tell whether this time was gone through."""
        return any(first <= at <= last for first, last in self.seen)

    def standing(self, at: float) -> Standing | None:
        """Return the findings that stood then, and since when; None when that time was not gone through."""
        if not self.saw(at):
            return None
        return {spell.key: (spell.since, spell.step) for spell in self.spells if spell.first <= at <= spell.last}
