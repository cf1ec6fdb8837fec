"""Findings as the rules word them, for screens that are tested and drawn without the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ranktop.tui.session.findings.finding import Evidence, Finding, Plot
from ranktop.tui.session.findings.keeper import Keeper
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
    more = held - usual
    short = {"activations": "act"}.get(category, category)
    return Finding(
        rule="memory", severity="warning", ranks=(rank,), subject=category,
        sentence=f"rank {rank} holds {more / GIB:.1f} GiB more {category} than its peers ({more / usual:+.0%}), "
        "its batches have as many tokens as theirs",
        short=f"{short} {more / usual:+.0%}" if more < usual else f"{short} {more / GIB:+.1f}",
        evidence=(
            Evidence(f"{category} of rank {rank}", held, "B"),
            Evidence(f"median of {len(everyone) - 1} peers", usual, "B"),
            Evidence("robust spread of the group", 53 * MIB, "B"),
            Evidence("expected by the budget", usual + 9 * MIB, "B"),
            Evidence("steps in a row", 40, "steps"), Evidence("tokens a step against its peers", 1.0, ""),
            Evidence("moment", "end of forward"),
        ),
        advice=f"Compare what rank {rank} keeps alive between forward and backward with a peer (c): a list that "
        "collects outputs or losses with their graph is the usual cause. Detach what is kept, or keep numbers.",
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
        rule="straggler", severity="warning", ranks=(rank,), subject="forward",
        sentence=f"rank {rank} is slow: 18 % more own work than its peers, 0.36 s of every step of the job, for its "
        "clocks are held down (hardware thermal slowdown)",
        short="slow +18%",
        evidence=(
            Evidence("own work", 2.35, "s"), Evidence(f"median of {len(everyone) - 1} peers", 1.99, "s"),
            Evidence("cost for the job", 0.36, "s"), Evidence("last at collectives", 96.0, "%"),
            Evidence("SM clock", 1290, "MHz"), Evidence("median of its peers", 1755, "MHz"),
            Evidence("temperature", 88, "°C"), Evidence("throttle", "hardware thermal slowdown"),
            Evidence("PCIe", None, "B/s"),
        ),
        advice="Check the cooling of node1's GPU 4. Until then, drain the node or move the rank.",
        since=9_948.0, step=LAST - 26, peers=everyone, confidence="high",
        plot=Plot(
            "own work", "step", "s", steps, (("own work", own), ("median of its peers", tuple(1.99 for _ in steps)))
        ),
    )  # fmt: skip


def hang(ranks: tuple[int, ...] = (5,)) -> Finding:
    return Finding(
        rule="hang", severity="critical", ranks=ranks, subject="collective",
        sentence="the job stands still for 42 s: all wait for rank 5, which has not entered collective 272,895 of "
        "group default (8); it is in data/loader.py:88, read_shard",
        short="waited for",
        evidence=(
            Evidence("time since the last step", 42.0, "s"), Evidence("usual step", 2.31, "s"),
            Evidence("collectives enqueued by rank 5", 272_894), Evidence("by the 7 others", 272_895),
            Evidence("utilization of rank 5", 0, "%"), Evidence("of the 7 others", 100, "%"),
            Evidence("power of rank 5", 118.0, "W"),
        ),
        advice="Look at what the stack below waits for: a file system, a lock, a worker of the data loader.",
        step=LAST, peers=tuple(range(8)),
    )  # fmt: skip


def growth(rank: int) -> Finding:
    steps = tuple(range(LAST - 39, LAST + 1))
    held = tuple(float(16 * GIB + (step - steps[0]) * 24 * MIB) for step in steps)
    return Finding(
        rule="growth", severity="warning", ranks=(rank,), subject="rest", short="grows 24M/st",
        sentence=f"rank {rank} keeps 24.0 MiB more after every step; at this rate the device is full in 1,290 steps "
        "(50 min)",
        evidence=(
            Evidence("kept more per step", 24 * MIB, "B"), Evidence("over", 40, "steps"),
            Evidence("free now", 31 * GIB, "B"),
            Evidence("full in", 3000.0, "s"),
        ),
        advice="Something is collected in the training loop: losses kept with their graph, a growing cache.",
        confidence="medium", since=9_917.0, step=steps[0],
        plot=Plot("held after the step", "step", "B", steps, (("after the step", held),)),
    )  # fmt: skip


def strays(rank: int = 0, others: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)) -> Finding:
    return Finding(
        rule="strays", severity="warning", ranks=(rank,), subject="contexts", short=f"{len(others)} strays",
        sentence=f"ranks {others[0]}-{others[-1]} hold 3.6 GiB on rank {rank}'s GPU: set_device missing, or torch.load "
        "without map_location",
        evidence=(Evidence("contexts of other ranks", len(others)), Evidence("held by them", int(3.6 * GIB), "B")),
        advice="Call torch.cuda.set_device(local_rank) before anything touches CUDA.",
    )  # fmt: skip


def versions(rank: int) -> Finding:
    return Finding(
        rule="versions", severity="warning", ranks=(rank,), subject="torch", short="other torch",
        sentence=f"rank {rank} runs torch 2.12.1, its 7 peers 2.13.0",
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
        sentence=f"rank {rank} ran out of memory in forward of step 1,208: asked for 4.0 GiB, 2.1 GiB free of 79.6 GiB",
        evidence=(Evidence("asked", 4 * GIB, "B"), Evidence("free", int(2.1 * GIB), "B"),
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
        return tuple(sorted(found, key=lambda one: (-one.gravity, one.since or 0.0, one.ranks, one.rule)))
