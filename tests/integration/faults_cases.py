"""The faults that real jobs are given, and what must be found of each."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
from faults_jobs import Follower, followed
from jobs import Viewer

from ranktop.tui.session.findings.finding import SEVERITIES, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fault and what must be found."""

    fault: str
    """A word of ``faults_train.py``, a signal's name, or empty for what a job has from its start."""
    rank: int
    rule: str
    within: float
    """Seconds from the fault to the finding."""
    severity: str = "warning"
    """At least this."""
    ranks: tuple[int, ...] | None = None
    """Those that are named; None: the one that has the fault."""
    words: tuple[str, ...] = ()
    """Each must be in the sentence, the advice or the evidence."""
    subject: str | None = None
    also: frozenset[str] = frozenset()
    """Rules that may have something to say beside it."""
    heals: bool = False
    """Whether the fault is taken back, and the finding must go within ``HEALED`` seconds."""

    @property
    def named(self) -> tuple[int, ...]:
        """The ranks that the finding is about."""
        return (self.rank,) if self.ranks is None else self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One job and the faults that it is given, one after the other."""

    name: str
    ranks: int
    arguments: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    launch: tuple[str, ...] = ()
    torchrun: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    confined_mib: int = 0
    """Limit of the memory cgroup that the launcher puts a rank into."""
    trains: int = 12
    """Steps before the first fault: what is usual is known by then."""
    interval: float = 0.5


@dataclass(slots=True)
class Outcome:
    """What came of one case."""

    case: Case
    finding: Finding | None = None
    seconds: float | None = None
    steps: int | None = None
    trouble: str = ""
    others: tuple[Finding, ...] = ()
    """Above ``info`` and not expected."""


HEALED: Final = 45.0

CGROUPS: Final = Path("/sys/fs/cgroup/memory")


def text(finding: Finding) -> str:
    """Return all that a finding says."""
    facts = [f"{one.name} {one.value} {one.unit}" for one in finding.evidence]
    return " | ".join([finding.sentence, finding.short, finding.subject, finding.advice, *facts])


def run(spec: Spec, viewer: Viewer, directory: Path, **extra: str) -> Iterator[Outcome]:
    """Run the job, and yield what came of each case."""
    extra = {"RANKTOP_INTERVAL": str(spec.interval), **dict(spec.environment), **extra}
    extra["FAULTS_CGROUP"] = cgroup = f"{CGROUPS}/ranktop-faults-{os.getpid()}"
    job = followed(viewer, directory, spec.ranks, *spec.arguments, launch=spec.launch, torchrun=spec.torchrun, **extra)
    with confinement(Path(cgroup), spec.confined_mib), job as follower:
        follower.expected |= {(case.rule, case.named) for case in spec.cases if not case.fault}
        if spec.trains:
            follower.trains(spec.trains, 90)
        for case in spec.cases:
            follower.expected.add((case.rule, case.named))
            follower.allowed |= case.also
            outcome = Outcome(case)
            with noted(outcome):
                meet(case, follower, outcome)
            if case.heals:
                with noted(outcome):
                    heal(case, follower)
            outcome.others = tuple(seen.finding for seen in follower.others())
            yield outcome
        if all(case.heals for case in spec.cases):
            with noted(outcome):
                assert follower.end() == 0, "a job that is healed ends well"


@contextlib.contextmanager
def confinement(cgroup: Path, mib: int) -> Iterator[None]:
    """Make a memory cgroup with that limit, and take it away again; nothing for 0."""
    if not mib:
        yield
        return
    cgroup.mkdir()
    try:
        (cgroup / "memory.limit_in_bytes").write_text(str(mib * 2**20))
        yield
    finally:
        deadline = time.monotonic() + 10
        while cgroup.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # its last process is still on its way out
                cgroup.rmdir()
            time.sleep(0.02)


def can_confine() -> bool:
    """Tell whether memory cgroups (v1) can be made here."""
    return os.access(CGROUPS, os.W_OK) and (CGROUPS / "memory.limit_in_bytes").exists()


@contextlib.contextmanager
def noted(outcome: Outcome) -> Iterator[None]:
    """Keep what fails for the table."""
    try:
        yield
    except AssertionError as error:
        outcome.trouble = outcome.trouble or str(error) or repr(error)


def meet(case: Case, follower: Follower, outcome: Outcome) -> None:
    """Put the fault in, wait for the finding and check it."""
    before = follower.look().step
    began = put_in(case, follower)
    finding = follower.finds(case.rule, case.named, case.within, case.subject)
    outcome.finding, outcome.seconds = finding, time.monotonic() - began
    outcome.steps = follower.viewer.session.snapshot().step - before
    assert finding.gravity >= SEVERITIES.index(case.severity), f"only {finding.severity}"
    missing = [word for word in case.words if word.lower() not in text(finding).lower()]
    assert not missing, f"{missing} not in {text(finding)}"
    follower.told_once(finding)


def heal(case: Case, follower: Follower) -> None:
    """Take the fault back, wait until nothing is said of it any more, and have the job train as usual."""
    if case.fault == "SIGSTOP":
        psutil.Process(follower.pid(case.rank)).resume()
    else:
        follower.spoil(case.rank)
    follower.until(lambda snapshot: case.rule not in [one.rule for one in snapshot.findings], HEALED)
    follower.trains(10)


def put_in(case: Case, follower: Follower) -> float:
    """Return when the fault began."""
    if case.fault.startswith("SIG"):
        return follower.strike(case.rank, signal.Signals[case.fault])
    return follower.spoil(case.rank, *case.fault.split())


def case(fault: str, rank: int, rule: str, within: float, **more: Any) -> Case:
    """Return a case, more briefly."""
    also = frozenset(more.pop("also", ()))
    return Case(fault=fault, rank=rank, rule=rule, within=within, also=also, **more)


TIME: Final = (
    Spec(
        name="ddp",
        ranks=3,
        arguments=("--strategy", "ddp"),
        cases=(
            case("sleep-forward", 1, "straggler", 40, subject="forward", heals=True),
            case("sleep-data", 2, "straggler", 40, subject="data", heals=True),
            case("tokens", 0, "tokens", 40, severity="info", words=("50 %",), heals=True, also=("straggler",)),
            case("sleep-optimizer", 1, "straggler", 40, subject="optimizer", heals=True),
            case("sleep-backward", 2, "straggler", 40, words=("backward",), heals=True),
        ),
    ),
    Spec(
        name="fsdp2",
        ranks=3,
        arguments=("--strategy", "fsdp2", "--pace", "0.08"),
        cases=(
            case("sleep-data", 1, "straggler", 40, subject="data", heals=True),
            # Its gathers make ranks wait in both: which of them is slow can't be told.
            case("sleep-forward", 2, "straggler", 40, words=("forward",), heals=True),
            case("sleep-backward", 0, "straggler", 40, words=("backward",), heals=True),
        ),
    ),
    Spec(
        name="zero2",
        ranks=3,
        arguments=("--strategy", "zero2"),
        cases=(case("sleep-forward", 1, "straggler", 40, subject="forward", heals=True),),
    ),
)

WIDE: Final = (
    *("--hidden", "256", "--layers", "2", "--vocabulary", "8192"),
    *("--length", "16", "--batch", "2", "--pace", "0.02"),
)
"""A model of 22 MiB, whose copy is more than what malloc loses."""

MEMORY: Final = (
    Spec(
        name="ddp",
        ranks=3,
        arguments=("--strategy", "ddp", "--leak-mib", "2", *WIDE),
        cases=(
            case("leak", 2, "growth", 40, also=("memory",), heals=True),
            case("copy", 1, "memory", 40, words=("an extra copy?",)),
        ),
    ),
    Spec(
        name="fsdp2 over one rank",
        ranks=2,
        arguments=("--strategy", "fsdp2", "--mesh", "one", *WIDE),
        cases=(case("", 0, "unsharded", 20, ranks=(0, 1)),),
    ),
    Spec(
        name="fully_shard forgotten",
        ranks=2,
        arguments=("--strategy", "fsdp2", "--shard", "none", "--agree-every", "10", *WIDE),
        cases=(case("", 0, "unsharded", 20, ranks=(0, 1)),),
    ),
    Spec(
        name="fsdp2 no_sync",
        ranks=2,
        arguments=("--strategy", "fsdp2", "--no-sync", "--accumulate", "4", *WIDE),
        cases=(case("", 0, "no_sync", 20, severity="info", ranks=(0, 1)),),
    ),
    Spec(
        name="fsdp1 no_sync",
        ranks=2,
        arguments=("--strategy", "fsdp1", "--no-sync", "--accumulate", "4", *WIDE),
        cases=(case("", 0, "no_sync", 20, severity="info", ranks=(0, 1)),),
    ),
)

HANG: Final = (
    Spec(
        name="ddp",
        ranks=3,
        arguments=("--strategy", "ddp", "--pause", "14"),
        cases=(
            case("loop", 1, "hang", 20, severity="critical", words=("faults_train.py", "loop"), heals=True),
            case("SIGSTOP", 2, "hang", 20, severity="critical", words=("stopped",), heals=True, also=("silent",)),
            case("blocked", 0, "hang", 20, severity="critical", words=("block",), heals=True),
            case("save", 0, "pause", 13, severity="info", heals=True),
            case("evaluate", 1, "pause", 13, severity="info", heals=True),
            case("compile", 2, "pause", 13, severity="info", heals=True),
            case("skip", 1, "hang", 20, severity="critical"),
        ),
    ),
    Spec(
        name="fsdp2",
        ranks=3,
        arguments=("--strategy", "fsdp2"),
        cases=(
            case("blocked", 2, "hang", 20, severity="critical", words=("block",), heals=True),
            case("loop", 0, "hang", 20, severity="critical", words=("loop",)),
        ),
    ),
)

ENDS: Final = (
    Spec(name="kill -9", ranks=2, cases=(case("SIGKILL", 1, "death", 10, severity="critical", words=("SIGKILL",)),)),
    Spec(
        name="exception",
        ranks=2,
        cases=(case("raise", 1, "death", 10, severity="critical", words=("ValueError", "loss is not finite")),),
    ),
    Spec(name="OutOfMemoryError", ranks=2, cases=(case("oom", 1, "oom", 10, severity="critical", also=("death",)),)),
    Spec(
        name="RLIMIT_AS",
        ranks=2,
        arguments=("--address-mib", "300"),
        cases=(case("hungry", 1, "oom", 20, severity="critical", also=("death", "growth", "memory", "forecast")),),
    ),
    Spec(
        name="memory cgroup",
        ranks=2,
        launch=("confined", "1"),
        confined_mib=700,
        cases=(
            case(
                "hungry",
                1,
                "death",
                40,
                severity="critical",
                words=("OOM killer",),
                also=("growth", "memory", "forecast"),
            ),
        ),
    ),
    Spec(
        name="elastic restart",
        ranks=2,
        arguments=("--die-once", "1"),
        torchrun=("--max-restarts", "1"),
        environment=(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),),  # else gloo meets the first life's addresses
        trains=0,
        cases=(case("", 1, "restart", 60, ranks=(), severity="info", also=("death",)),),
    ),
)

UNLIKE: Final = (
    Spec(
        name="no agent on a rank",
        ranks=3,
        launch=("hidden", "2"),
        trains=0,
        cases=(case("", 2, "missing", 60, severity="info"),),
    ),
    Spec(
        name="a rank that never appears",
        ranks=3,
        launch=("late", "1"),
        trains=0,
        cases=(case("", 1, "missing", 90, severity="info"),),
    ),
    Spec(
        name="another script on a rank",
        ranks=3,
        launch=("other", "0"),
        trains=0,
        cases=(case("", 0, "versions", 60),),
    ),
)


def checked(spec: Spec, viewer: Viewer, directory: Path) -> list[Outcome]:
    """Run a job; fails at the first fault that is not found as it must be, or beside which anything else is."""
    outcomes = []
    for outcome in run(spec, viewer, directory):
        assert not outcome.trouble, outcome.trouble
        assert not outcome.others, [(one.rule, one.ranks, one.sentence) for one in outcome.others]
        outcomes.append(outcome)
    return outcomes


def fact(finding: Finding, name: str) -> float:
    """Return the first number of the evidence whose name begins so."""
    value = next(one.value for one in finding.evidence if one.name.startswith(name))
    assert isinstance(value, (int, float)), (name, value)
    return value


def only(spec: Spec, *faults: str) -> Spec:
    """Return a job with these faults alone; the last is not taken back."""
    *first, last = (case for case in spec.cases if case.fault in faults)
    return replace(spec, cases=(*first, replace(last, heals=False)))


SPECS: Final = {"time": TIME, "memory": MEMORY, "hang": HANG, "ends": ENDS, "unlike": UNLIKE}
