"""How often the findings name the right rank, over seeded simulated jobs, and how often a plain rule does.

In process: what the simulated ranks say goes straight into a session, on a clock of its own. The plain rule flags a
rank whose speed is below 0.75 of the fastest rank's. It is given what no tool could read better: the simulated time
without any waiting, the median over all steps; and, for comparison, the step times as they can be seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ranktop.agent.simulation.faults import Fault
from ranktop.agent.simulation.job import STRATEGIES, Setup
from ranktop.agent.simulation.timing import SHARES, Step
from ranktop.agent.simulation.voice import Job, Said, Voice
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session
from ranktop.wire.schema import BODIES, Header

SLOWING: Final = ("straggler", "data", "throttle", "pcie", "starved", "tokens")
"""Faults that make a rank slow."""

OTHERS: Final = (
    "activations", "leak", "copy", "fragmentation", "strays", "unsharded", "no_sync", "version", "code", "hang", "stop",
    "kill", "oom", "lost", "missing",
)  # fmt: skip

NAMED: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("straggler", "data", "pcie", "starved"), ("straggler",)),
    "throttle": ("straggler", "throttle"),
    "tokens": ("tokens", "straggler"),
    "activations": ("memory",),
    "leak": ("growth", "forecast", "memory"),
    "copy": ("memory",),
    "fragmentation": ("fragmentation",),
    "strays": ("strays",),
    "nan": ("loss",),
    "unsharded": ("unsharded",),
    "no_sync": ("no_sync",),
    "version": ("versions",),
    "code": ("versions",),
    "hang": ("hang",),
    "stop": ("hang", "silent"),
    "kill": ("death",),
    "oom": ("oom", "death"),
    "oomkill": ("death",),
    "restart": ("restart", "death"),
    "lost": ("device",),
    "missing": ("missing",),
}
"""Fault -> rules whose finding is right for it."""

SLOW_RULES: Final = ("straggler", "tokens", "throttle")
"""Rules that say that a rank is slow."""

BELOW: Final = 0.75
"""Speed, as a share of the fastest rank's, below which the plain rule flags a rank."""

LOOK_EVERY: Final = 5
"""Seconds from one look at the findings to the next."""

_KIND: Final = {body: kind for kind, body in BODIES.items()}


@dataclass(frozen=True)
class Case:
    """One seeded job."""

    setup: Setup
    fault: Fault | None

    @property
    def slow(self) -> frozenset[int]:
        """Ranks that are slow in truth."""
        return frozenset({self.fault.rank}) if self.fault is not None and self.fault.name in SLOWING else frozenset()


@dataclass
class Outcome:
    """What was said of one job, and what a plain rule would say."""

    case: Case
    looks: list[tuple[float, tuple[Finding, ...]]] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    """By rank: median seconds of own work a step, without waiting."""
    phases: dict[str, list[float]] = field(default_factory=dict)
    """Phase -> the same of that phase alone."""
    seen: list[float] = field(default_factory=list)
    """By rank: median seconds of a step as they can be seen."""
    failure: str = ""
    """A rule that failed."""

    @property
    def serious(self) -> list[Finding]:
        """All findings above ``info``, of any look, each once."""
        kept = {finding.key: finding for _, found in self.looks for finding in found if finding.severity != "info"}
        return list(kept.values())

    def named_slow(self) -> frozenset[int]:
        """Return the ranks that the last look calls slow, and those that any look called so wrongly."""
        last = _slow(self.looks[-1][1])
        ever = frozenset(rank for _, found in self.looks for rank in _slow(found))
        return last | (ever - self.case.slow)

    def right(self, finding: Finding) -> bool:
        """Tell whether a finding tells the truth."""
        fault = self.case.fault
        if fault is None or finding.rule not in NAMED[fault.name]:
            return False
        whole = fault.rank < 0 or (fault.name == "restart" and not finding.ranks)
        return whole or finding.ranks == (fault.rank,)

    @property
    def found(self) -> bool:
        """The last look names the fault and its rank."""
        return any(self.right(finding) for finding in self.looks[-1][1])

    @property
    def wrong(self) -> list[Finding]:
        """Findings above ``info`` that do not tell the truth."""
        return [finding for finding in self.serious if not self.right(finding)]

    def plain(self, values: Sequence[float]) -> frozenset[int]:
        """Return the ranks whose speed is below ``BELOW`` of the fastest rank's."""
        fastest = min(values, default=0.0)
        return frozenset(rank for rank, value in enumerate(values) if value > 0 and fastest / value < BELOW)

    def plain_by_phase(self) -> frozenset[int]:
        """Return those for which that holds in a phase."""
        return frozenset(rank for values in self.phases.values() for rank in self.plain(values))


def _slow(found: Iterable[Finding]) -> frozenset[int]:
    return frozenset(rank for one in found if one.rule in SLOW_RULES and one.severity != "info" for rank in one.ranks)


def cases(number: int, seed: int, ranks: int = 16) -> Iterator[Case]:
    """Return jobs of which half have a rank that is 5 to 30 % slow, a quarter is well, a quarter has other faults."""
    for at in range(number):
        rng = random.Random(f"case {seed} {at}")
        rank, strategy = rng.randrange(ranks), rng.choice(STRATEGIES)
        fault: Fault | None = None
        if at % 4 < 2:
            fault = Fault(SLOWING[(at // 4 * 2 + at % 4) % len(SLOWING)], rank, round(rng.uniform(0.05, 0.3), 3))
        elif at % 4 == 3:
            fault = _other(OTHERS[(at // 4) % len(OTHERS)], rank, rng)
            strategy = "fsdp2" if fault.name in ("unsharded", "no_sync", "copy") else strategy
        faults = (fault,) if fault is not None else ()
        yield Case(Setup(ranks, 8, strategy, 1.0, seed * 1000 + at, faults, f"case-{at}"), fault)


def _other(name: str, rank: int, rng: random.Random) -> Fault:
    by = {
        "activations": rng.uniform(0.06, 0.3), "leak": rng.uniform(0.003, 0.006), "copy": 1.0, "strays": 1.0,
        "fragmentation": rng.uniform(0.15, 0.25),
    }.get(name, 0.0)  # fmt: skip
    start = 15 if name in ("hang", "stop", "kill", "oom", "lost") else 1
    return Fault(name, -1 if name in ("unsharded", "no_sync") else rank, by, start)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def follow(case: Case, steps: int = 40, look_every: int = LOOK_EVERY) -> Outcome:
    """Run a job for so many steps, or as many seconds where it stops, looking at the findings now and then."""
    setup, clock, outcome = case.setup, Clock(), Outcome(case)
    job = Job(setup)
    session = Session(clock, findings_every=0.0)
    session.feed([Reset(setup.job, "hub", False)])
    voices = [Voice(job, rank, pid=1 + rank) for rank in range(setup.ranks)]
    past: dict[int, Step] = {}
    number = second = 0
    while second < int(1.5 * steps):
        for place, voice in enumerate(voices):
            t = second + 0.5 * place / setup.ranks
            for body in voice.speak(t, 5000.0 + t):
                number += 1
                session.feed([Received(_header(body, voice, number), body, 0.0, number)])
        second += 1
        clock.now += 1.0
        past.update((step.index, step) for step in job.lives[-1].steps if max(step.ended) <= second)
        over = len(past) >= steps
        if second % look_every == 0 or over:
            outcome.looks.append((second, session.snapshot().findings))
        if over:
            break
    outcome.failure = session.findings.failure
    _add_truth(outcome, [step for step in past.values() if step.index > 1])
    return outcome


def _header(body: Said, voice: Voice, number: int) -> Header:
    return Header(_KIND[type(body)], voice.rank, voice.pid, voice.life, number)


def _add_truth(outcome: Outcome, steps: list[Step]) -> None:
    if not steps:
        return
    ranks = range(outcome.case.setup.ranks)
    outcome.own = [median(step.own(rank) for step in steps) for rank in ranks]
    outcome.seen = [median(step.ended[rank] - step.start[rank] for step in steps) for rank in ranks]
    outcome.phases = {phase: [median(step.work[phase][rank] for step in steps) for rank in ranks] for phase in SHARES}


@dataclass
class Score:
    """Named and missed, over many jobs."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def add(self, truth: frozenset[int], named: frozenset[int]) -> None:
        """Count one job."""
        self.right += len(truth & named)
        self.wrong += len(named - truth)
        self.missed += len(truth - named)

    @property
    def precision(self) -> float | None:
        """Of the ranks that were named, the share that was so; None when none was named."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def recall(self) -> float | None:
        """Of the ranks that were so, the share that was named."""
        return self.right / (self.right + self.missed) if self.right + self.missed else None


def scores(outcomes: Sequence[Outcome]) -> dict[str, Score]:
    """Return how the rules do at naming slow ranks."""
    found = {
        name: Score()
        for name in ("ranktop", "below 0.75, own work", "below 0.75, own work by phase", "below 0.75, step times")
    }
    for one in outcomes:
        for score, named in zip(
            found.values(),
            (one.named_slow(), one.plain(one.own), one.plain_by_phase(), one.plain(one.seen)),
            strict=True,
        ):
            score.add(one.case.slow, named)
    return found
