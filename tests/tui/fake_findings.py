"""Findings as the rules word them, for screens that are tested and drawn without the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ranktop.tui.session.findings.finding import Evidence, Finding, Plot
from ranktop.tui.session.findings.keeper import Keeper
from ranktop.tui.session.findings.memory_words import ADVICE, sentence, short
from ranktop.tui.session.findings.sizes import WORDS
from ranktop.tui.session.state import Snapshot

if TYPE_CHECKING:
    from fake_job import FakeJob

GIB = 1024**3
MIB = 1024**2
LAST = 1207
"""The step at which the findings of :func:`all_kinds` were told."""


def over_its_peers(rank: int, category: str, held: int, usual: int, peers: Iterable[int]) -> Finding:
    """A rank that holds more of a category than the others."""
    everyone = tuple(sorted({rank, *peers}))
    more, others = held - usual, len(everyone) - 1
    return Finding(
        rule="memory", severity="warning", ranks=(rank,), subject=category,
        sentence=sentence(category, rank, more, held, usual, others, "", tokens=False, copied=""),
        short=short(category, more, usual),
        evidence=(
            Evidence(f"{WORDS[category]} at the end of forward", held, "B"),
            Evidence(f"usual of {others} peers", usual, "B"), Evidence("too much", more, "B"),
            Evidence("too much, in spreads of its peers", round(more / (53 * MIB), 1)),
            Evidence("expected", usual + 9 * MIB, "B"),
        ),
        advice=ADVICE[category],
        since=9_915.0, step=1166, peers=everyone,
        plot=Plot(
            f"{category} at the end of forward", "rank", "B", everyone,
            ((category, tuple(float(held if one == rank else usual + (one * 31 % 7) * 8 * MIB) for one in everyone)),
             ("median", tuple(float(usual) for _ in everyone))),
        ),
    )  # fmt: skip


def straggler(rank: int, peers: Iterable[int]) -> Finding:
    everyone = tuple(sorted({rank, *peers}))
    steps = tuple(range(LAST - 39, LAST + 1))
    own = tuple(1.95 + 0.02 * (step % 4) + (0.38 if step > LAST - 27 else 0.0) for step in steps)
    return Finding(
        rule="straggler", severity="warning", ranks=(rank,), subject="throttle",
        sentence=f"rank {rank} keeps the {len(everyone) - 1} others waiting 360 ms a step: its clocks are held down "
        "(hardware thermal slowdown), 1,290 MHz beside 1,755; 18 % more own work than its peers, in forward",
        short="slow +18%",
        evidence=(
            Evidence("cause", "throttle"), Evidence("throttle", "hardware thermal slowdown"),
            Evidence("SM clock", 1290, "MHz"), Evidence("median SM clock of its peers", 1755, "MHz"),
            Evidence("temperature", 88, "°C"), Evidence("power", None, "W"),
            Evidence("own work", 2.35, "s"), Evidence(f"median of {len(everyone) - 1} peers", 1.99, "s"),
            Evidence("cost of each step", 0.36, "s"),
        ),
        advice="Look at the cooling, power supply and power limit of this GPU; until that is mended leave its node "
        "out.",
        since=9_948.0, step=LAST - 26, peers=everyone, confidence="high",
        plot=Plot(
            "own work", "step", "s", steps, (("own work", own), ("median of its peers", tuple(1.99 for _ in steps)))
        ),
    )  # fmt: skip


def hang(ranks: tuple[int, ...] = (5,)) -> Finding:
    return Finding(
        rule="hang", severity="critical", ranks=ranks, subject="behind",
        sentence="the job has stood for 42 s: 7 ranks wait for rank 5, which is in read_shard (data/loader.py:88); "
        "the others are in all_reduce 272,895 of the default group",
        short="holds up all",
        evidence=(
            Evidence("rank 5: enqueued in the default group", 272_894),
            Evidence("rank 5: completed in the default group", 272_894),
            Evidence("rank 5: phase", "data"), Evidence("rank 5: GPU utilization", 0, "%"),
            Evidence("rank 5: GPU power", 118.0, "W"),
            Evidence("GPU utilization of those that wait", 100, "%"),
            Evidence("their GPUs", "busy at little power: they wait in NCCL"),
        ),
        advice="Look at what this rank does in the lines named; end the job if it does not come back: it can't go on "
        "without it.",
        since=9_967.0, step=LAST, peers=tuple(range(8)),
    )  # fmt: skip


def growth(rank: int) -> Finding:
    steps = tuple(range(LAST - 39, LAST + 1))
    held = tuple(float(16 * GIB + (step - steps[0]) * 24 * MIB) for step in steps)
    return Finding(
        rule="growth", severity="warning", ranks=(rank,), subject="activations", short="act +24M/st",
        sentence=f"rank {rank} keeps 24.0 MiB more after every step (activations; 936.0 MiB since step {steps[0]}); at "
        "this rate its device is full in 1,290 steps (50 min)",
        evidence=(
            Evidence("more after each step", 24 * MIB, "B"),
            Evidence(f"since step {steps[0]}", 39 * 24 * MIB, "B"), Evidence("steps it is seen over", 40, "steps"),
            Evidence("steps until the memory is full", 1290, "steps"),
        ),
        advice="Look for what a step adds to and nothing empties: a list of losses or outputs that keep their graph "
        "(append loss.item(), not loss), metrics, hooks, a cache of batches.",
        confidence="medium", since=9_917.0, step=steps[0],
        plot=Plot("kept after each step", "step", "B", steps, (("after the step", held),)),
    )  # fmt: skip


def strays(rank: int = 0, others: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)) -> Finding:
    return Finding(
        rule="strays", severity="warning", ranks=(rank,), subject="contexts", short=f"{len(others)} strays",
        sentence=f"ranks {others[0]}-{others[-1]} hold 3.6 GiB on the GPU of rank {rank}: set_device missing, or "
        "torch.load without map_location",
        evidence=(Evidence("contexts of other ranks", len(others)), Evidence("held by them", int(3.6 * GIB), "B")),
        advice="Call torch.cuda.set_device(local_rank) before anything touches CUDA.",
    )  # fmt: skip


def versions(rank: int) -> Finding:
    return Finding(
        rule="versions", severity="warning", ranks=(rank,), subject="torch", short="torch differs",
        sentence=f"rank {rank} runs torch 2.12.1+cu128, the other 7 ranks 2.13.0+cu128",
        evidence=(Evidence(f"torch of rank {rank}", "2.12.1+cu128"), Evidence("of the others", "2.13.0+cu128")),
        advice="Install the same version on node1 as on the others.",
    )  # fmt: skip


def pause() -> Finding:
    return Finding(
        rule="pause", severity="info", ranks=(0, 1, 2, 3), subject="checkpoint", short="checkpoint",
        sentence="the job saves a checkpoint, for 14 s so far", evidence=(Evidence("so far", 14.0, "s"),),
    )  # fmt: skip


def unsharded() -> Finding:
    return Finding(
        rule="unsharded", severity="warning", ranks=tuple(range(8)), subject="parameters",
        sentence="parameters are not sharded: each of 8 ranks holds the whole model, 29.9 GiB",
        short="not sharded",
        evidence=(Evidence("whole model", int(29.9 * GIB), "B"), Evidence("a shard", int(3.74 * GIB), "B")),
        advice="Wrap the blocks with fully_shard before the root, and the root last.",
    )  # fmt: skip


def oom(rank: int) -> Finding:
    return Finding(
        rule="oom", severity="critical", ranks=(rank,), subject="oom", short="out of memory",
        sentence=f"rank {rank} ran out of memory in forward of step 1,208: asked for 22.00 GiB, 19.31 GiB free of "
        "79.65 GiB",
        evidence=(Evidence("asked for", 22 * GIB, "B"), Evidence("free", int(19.31 * GIB), "B"),
                  Evidence("largest free block", int(1.2 * GIB), "B")),
        advice="Full activation checkpointing saves 27.1 GiB; micro-batch 1 is the smallest already; expandable "
        "segments would give back 2.9 GiB of fragments.",
    )  # fmt: skip


def all_kinds() -> tuple[Finding, ...]:
    """Eight findings of all severities about eight ranks."""
    peers = range(8)
    return (
        hang(), over_its_peers(3, "activations", int(40.8 * GIB), int(29.6 * GIB), peers),
        over_its_peers(6, "runtime", int(8.4 * GIB), int(2.38 * GIB), peers), straggler(4, peers), growth(7), strays(),
        versions(2), pause(),
    )  # fmt: skip


def many(number: int = 60) -> tuple[Finding, ...]:
    """As many findings at once, with sentences of any length."""
    return tuple(
        Finding(
            rule="memory", severity=("critical", "warning", "info")[at % 3], ranks=tuple(range(at, at + 1 + at % 40)),
            subject=f"category {at}", short="x" * 14, sentence=f"finding {at}: " + "it goes on and on " * (at % 30),
            evidence=tuple(Evidence(f"fact {fact}", fact * 1.7e9, "B") for fact in range(at % 25)),
        )
        for at in range(number)
    )  # fmt: skip


def usual_findings(ranks: int) -> tuple[Finding, ...]:
    """What is out of line in ``fsdp_job``: of every eight ranks the fourth and the seventh."""
    found: list[Finding] = []
    for first in range(0, ranks, 8):
        if first + 3 < ranks:
            found.append(over_its_peers(first + 3, "activations", int(40.8 * GIB), int(29.6 * GIB), range(ranks)))
        if first + 6 < ranks:
            found.append(over_its_peers(first + 6, "runtime", int(8.4 * GIB), int(2.38 * GIB), range(ranks)))
    return tuple(found)


class Scripted(Keeper):
    """Says what a job's script says, whatever the rules and what they explain of each other."""

    def __init__(self, job: FakeJob) -> None:
        super().__init__(0.0, {})
        self._job = job
        self._told: dict[tuple[str, str, tuple[int, ...]], float] = {}

    def of(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        found = []
        for finding in self._job.findings:
            since = self._told.setdefault(finding.key, snapshot.now)
            found.append(replace(finding, since=since if finding.since is None else finding.since))
        self.kinds = frozenset(finding.rule for finding in found)
        return tuple(sorted(found, key=lambda one: (-one.gravity, one.since or 0.0, one.ranks, one.rule)))
