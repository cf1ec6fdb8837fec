"""Starts a real job, puts faults into it and follows what is found."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import AGENT, TORCHRUN, Viewer, job, output

from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.state import Snapshot
from ranktop.tui.status import ask, job_json
from ranktop.wire.endpoints import find_jobs

HERE = Path(__file__).parent
TRAIN = str(HERE / "faults_train.py")
LAUNCH = str(HERE / "faults_launch.py")

LOOK = 0.2
"""Seconds between two looks at the findings."""


@dataclass(slots=True)
class Seen:
    """One finding over the time that it was seen."""

    finding: Finding
    """As it was last."""
    first: float
    last: float
    gravity: int
    """The gravest that it was."""


@dataclass
class Follower:
    """What a viewer of one job was told, from the first look to the last."""

    viewer: Viewer
    directory: Path
    process: subprocess.Popen[bytes]
    seen: dict[tuple[str, str, tuple[int, ...]], Seen] = field(default_factory=dict)
    expected: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    """Rule and ranks of the faults so far."""
    allowed: set[str] = field(default_factory=set)
    """Rules that may say something beside them."""

    def look(self, wait: float = LOOK) -> Snapshot:
        """Take what arrives in ``wait`` seconds, ask the rules, and note what they say."""
        due = time.monotonic() + wait
        while (left := due - time.monotonic()) > 0:
            self.viewer.feed(left)
        snapshot = self.viewer.session.snapshot()
        now = time.monotonic()
        for finding in snapshot.findings:
            seen = self.seen.setdefault(finding.key, Seen(finding, now, now, finding.gravity))
            seen.finding, seen.last, seen.gravity = finding, now, max(seen.gravity, finding.gravity)
        return snapshot

    def until(self, wanted: Callable[[Snapshot], bool], seconds: float) -> Snapshot:
        """Look until it is so; fails after ``seconds`` with what was found instead."""
        deadline = time.monotonic() + seconds
        while True:
            snapshot = self.look()
            if self.viewer.session.job is not None and wanted(snapshot):
                return snapshot
            if time.monotonic() > deadline:
                raise AssertionError(f"not so within {seconds} s: {self.told(snapshot)}")

    def told(self, snapshot: Snapshot) -> str:
        """Return what there is to see, for a test that fails."""
        ranks = [
            (view.rank, view.state, *((view.sample.step, view.sample.phase) if view.sample else ()))
            for view in snapshot.ranks
        ]
        found = [finding.sentence for finding in snapshot.findings]
        seen = [(*key, seen.finding.sentence) for key, seen in self.seen.items()]
        return f"job {snapshot.state}, ranks {ranks}, findings {found}, seen {seen}; {output(self.directory)[-1500:]}"

    def trains(self, steps: int, seconds: float = 60.0) -> Snapshot:
        """Look until every rank has finished so many steps more than it has now."""
        before = {view.rank: view.sample.step for view in self.look().ranks if view.sample is not None}

        def further(snapshot: Snapshot) -> bool:
            return bool(snapshot.ranks) and all(
                view.sample is not None and view.sample.step >= before.get(view.rank, 0) + steps
                for view in snapshot.ranks
            )

        return self.until(further, seconds)

    def finds(self, rule: str, ranks: Sequence[int], seconds: float, subject: str | None = None) -> Finding:
        """Return the finding that is wanted, as soon as it is there; a question asked once must have it as well."""
        self.expected.add((rule, tuple(ranks)))

        def there(findings: Sequence[Finding]) -> Finding | None:
            for one in findings:
                if (one.rule, one.ranks) == (rule, tuple(ranks)) and subject in (None, one.subject):
                    return one
            return None

        finding = there(self.until(lambda snapshot: there(snapshot.findings) is not None, seconds).findings)
        assert finding is not None
        return finding

    def asked_once(self) -> list[dict[str, Any]]:
        """Return the findings as ``ranktop status --json`` prints them now."""
        entries = find_jobs().jobs
        session = ask(entries[0])
        assert session is not None
        found: list[dict[str, Any]] = job_json(session.snapshot()).get("findings", [])
        return found

    def told_once(self, finding: Finding, seconds: float = 6.0) -> None:
        """Check that a question asked once has the same finding; at the edge of a limit the two may differ a moment."""
        wanted = (finding.rule, list(finding.ranks))
        deadline = time.monotonic() + seconds
        while True:
            found = self.asked_once()
            if wanted in [(one["rule"], one["ranks"]) for one in found]:
                return
            assert time.monotonic() < deadline, found
            self.look()

    def others(self) -> list[Seen]:
        """Return what was seen above ``info`` beside what was put in."""
        return [
            seen
            for (rule, _, ranks), seen in self.seen.items()
            if seen.gravity > 0 and (rule, ranks) not in self.expected and rule not in self.allowed
        ]

    def nothing_else(self) -> None:
        """Check that nothing was found but what was put in."""
        others = self.others()
        assert not others, [(seen.finding.rule, seen.finding.ranks, seen.finding.sentence) for seen in others]

    # -- putting in ---------------------------------------------------------------------------------------------------

    def pid(self, rank: int) -> int:
        """Return a rank's process id."""
        state = self.viewer.session.ranks[rank]
        assert state.card is not None
        return state.card.pid

    def spoil(self, rank: int, *faults: str) -> float:
        """Give a rank these faults and no others; none: heal it. Returns when."""
        file = self.directory / f"fault.{rank}"
        partial = file.with_suffix(".new")
        partial.write_text(" ".join(faults))
        partial.replace(file)
        return time.monotonic()

    def strike(self, rank: int, number: signal.Signals) -> float:
        """Send a rank a signal. Returns when."""
        os.kill(self.pid(rank), number)
        return time.monotonic()

    def end(self) -> int:
        """Have the job end by itself, and return torchrun's exit code."""
        (self.directory / "over").touch()
        return self.process.wait(30)


@contextlib.contextmanager
def followed(
    viewer: Viewer,
    directory: Path,
    ranks: int,
    *arguments: str,
    launch: Sequence[str] = (),
    torchrun: Sequence[str] = (),
    **extra: str,
) -> Iterator[Follower]:
    """Run the training script on so many ranks. ``launch``: kind and rank, for ``faults_launch.py``."""
    script = [LAUNCH, *launch] if launch else [*AGENT, TRAIN]
    if launch == ("demo",):
        script = [*AGENT, "-m", "ranktop.demo.train"]
    command = [*TORCHRUN, "--nproc-per-node", str(ranks), *torchrun, *script, *arguments]
    with job(command, directory, **extra) as process:
        yield Follower(viewer, directory, process)
