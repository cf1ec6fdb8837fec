"""Asks the rules now and then, and keeps since when each of their findings stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ranktop.tui.session.findings.explained import unexplained
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.limits import Limits, in_force
from ranktop.tui.session.findings.rules import RULES, Rule
from ranktop.tui.session.findings.scene import Key, Scene, scene

if TYPE_CHECKING:
    from ranktop.tui.session.state import Snapshot

MANY_RANKS: Final = 256
"""Ranks from which on the rules are asked more seldom, in proportion."""

TELL_AGES: Final = frozenset({"device", "hang", "node", "pause", "silent"})
"""Rules whose sentences say for how long: beside an age that goes on with every picture theirs must not stand still."""


FIRST_LOOKS: Final = 5.0
"""Seconds from the first look in which what no rule dates may be older than the viewer; later it is new."""


class Keeper:
    """The findings of one job from look to look."""

    def __init__(
        self, every: float = 0.0, rules: Mapping[str, Rule] | None = None, limits: Limits | None = None
    ) -> None:
        """``every``: seconds between two looks, 0: whenever asked. ``rules``: by name, all by default. ``limits``: from
        where on they tell, by default what this process has in force."""
        self.limits = in_force() if limits is None else limits
        self.kinds: frozenset[str] = frozenset()
        """Rules that have found something at the last look, told or not."""
        self.failure = ""
        """The last rule that failed, in one line; it costs its own findings only."""
        self._every = every
        self._rules = RULES if rules is None else rules
        self._asked: float | None = None
        self._first = 0.0
        """When they were first asked."""
        self._state: tuple[str, int] = ("", 0)
        """The job's, and how many ranks had ended, when the rules were last asked."""
        self._since: dict[Key, tuple[float | None, int | None]] = {}
        self._found: tuple[Finding, ...] = ()
        self.memory: dict[str, Any] = {}
        """What the rules have worked out at earlier looks (``Scene.memory``)."""

    def of(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """Return the findings, the gravest and then the oldest first; those of the last look until one is due.

        One is due at once when the job has come to a stand, or goes on, or a rank has ended: what a rule says of it is
        part of its state. While a sentence tells an age, one is due as often as the number of ranks allows.
        """
        state = snapshot.state, sum(view.end is not None for view in snapshot.ranks)
        ages = any(finding.rule in TELL_AGES for finding in self._found)
        every = self._every and max(0.0 if ages else self._every, len(snapshot.ranks) / MANY_RANKS)
        due = self._asked is None or snapshot.now - self._asked >= every or snapshot.now < self._asked
        if due or state != self._state:
            self._first = snapshot.now if self._asked is None else self._first
            self._asked, self._state = snapshot.now, state
            self._found = self._look(snapshot)
        return self._found

    def forget(self) -> None:
        """Begin anew: the stream did."""
        self._asked, self._since, self._found, self.memory = None, {}, (), {}

    def _look(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        here = scene(snapshot, frozenset(self._since), snapshot.memory, self.limits)
        found = unexplained(self._ask(here), here)
        since = {finding.key: self._began(finding, here) for finding in found}
        self._since = since
        self.kinds = frozenset(finding.rule for finding in found)
        # What a rule that is not told explains is no news either: it is left out only now.
        told = [finding for finding in found if self.limits.tells(finding.rule, finding.severity)]
        dated = [_explained(_dated(finding, *since[finding.key]), self.limits) for finding in told]
        return tuple(sorted(dated, key=lambda one: (-one.gravity, one.since or 0.0, one.ranks, one.rule)))

    def _began(self, finding: Finding, here: Scene) -> tuple[float | None, int | None]:
        """Return the earliest (time, step) told since it stands: the windows that rules look back on move on.

        A time that a rule knows without the step stays without: the present step is another time's.
        """
        known, since = self._since.get(finding.key), finding.since
        if known is not None and (since is None or (known[0] is not None and known[0] <= since)):
            return known
        if since is None and here.now - self._first >= FIRST_LOOKS:
            return here.now, finding.step if finding.step is not None else _step(finding, here)
        return since, finding.step

    def _ask(self, here: Scene) -> list[Finding]:
        return [finding for name in self._rules for finding in self._ask_one(name, here)]

    def _ask_one(self, name: str, here: Scene) -> list[Finding]:
        try:
            return list(self._rules[name](here))
        except Exception as error:  # impossible values in one message must not silence the other rules
            self.failure = f"rule {name}: {type(error).__name__}: {error}"
            return []


def _step(finding: Finding, here: Scene) -> int | None:
    steps = [view.sample.step for rank in finding.ranks if (view := here.snapshot.rank(rank)) and view.sample]
    return max(steps, default=None)


def _explained(finding: Finding, limits: Limits) -> Finding:
    """Return a finding that says which of its rule's limits are not the usual ones."""
    changed = limits.of(finding.rule)
    facts = [
        Evidence(f"limit {limit.name}", f"{limit.shown(value)} as configured, by default {limit.shown(limit.default)}")
        for limit, value in changed
    ]
    return replace(finding, evidence=(*finding.evidence, *facts)) if facts else finding


def _dated(finding: Finding, since: float | None, step: int | None) -> Finding:
    return replace(finding, since=since, step=step)
