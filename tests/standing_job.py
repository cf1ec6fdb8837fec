"""A job that has trained well and then stands: what its agents say from then on, second by second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fake_job import FakeClock
from hand_made import advised
from lockstep import wired

from ranktop.budget.plan import Plan
from ranktop.probes.reading import Collectives, DeviceIdentity, DeviceReading, GroupPosition, StepTimes
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.schema import Call, Card, End, Job, Look, Mark, Sample, Stack

TRAIN = Call("train.py", 60, "<module>")
LOOP = Call("train.py", 44, "train")
ENGINE = (TRAIN, LOOP, Call("torch/_tensor.py", 630, "backward"), Call("torch/autograd/graph.py", 829, "_run"))
ALL_REDUCE = (
    TRAIN, Call("train.py", 48, "train"), Call("torch/distributed/c10d_logger.py", 81, "wrapper"),
    Call("torch/distributed/distributed_c10d.py", 2900, "all_reduce"),
)  # fmt: skip
BARRIER = (
    TRAIN, Call("train.py", 50, "train"), Call("torch/distributed/distributed_c10d.py", 4800, "barrier"),
)  # fmt: skip
LOAD = (TRAIN, LOOP, Call("train.py", 31, "load_batch"), Call("threading.py", 320, "wait"))
SAVE = (TRAIN, LOOP, Call("train.py", 20, "save_checkpoint"), Call("torch/serialization.py", 900, "save"))
VALIDATE = (TRAIN, LOOP, Call("train.py", 71, "evaluate"), Call("torch/nn/modules/module.py", 1750, "_call_impl"))
COMPILE = (TRAIN, LOOP, Call("torch/_dynamo/convert_frame.py", 1200, "_compile"), Call("subprocess.py", 1209, "wait"))

Positions = tuple[GroupPosition, ...]


def world(enqueued: int, completed: int, size: int = 4, name: str = "0") -> GroupPosition:
    return GroupPosition(name, "default_pg" if name == "0" else "", size, enqueued, completed)


@dataclass
class Rank:
    """What one rank says once it stands."""

    positions: Positions = (world(1203, 1202),)
    calls: Sequence[Call] | None = ALL_REDUCE
    """Of its stack; None: it sends none."""
    phase: str = "backward"
    utilization: int = 100
    power: float = 78.0
    silent: bool = False
    process: str = ""
    ended: End | None = None
    goes_on: bool = False
    """It finishes steps all the time."""
    moves: bool = False
    """It enqueues collectives all the time."""
    activity: str = ""
    """What its script says that it does."""


@dataclass
class Standing:
    """``ranks`` train with steps of ``usual`` seconds and stand from second 0 on."""

    ranks: dict[int, Rank]
    usual: float = 0.4
    steps: int = 1200
    backend: str = "nccl"
    nodes: Callable[[int], str] = lambda rank: "node1"
    clock: FakeClock = field(default_factory=lambda: FakeClock(1_000.0))
    told: list[tuple[float, Snapshot]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = Job(id="a1", name="job", world_size=len(self.ranks))
        self.session = Session(self.clock)
        self.session.feed([Reset(self.job, "hub", False)])
        for rank in self.ranks:
            card = Card(
                job=self.job, rank=rank, pid=1000 + rank, script="train.py", backend=self.backend,
                plan=Plan(strategy="ddp"), device=self._device(), node=self.nodes(rank),
            )  # fmt: skip
            self.session.feed([wired(rank, card)])

    def _device(self) -> DeviceIdentity:
        return DeviceIdentity(kind="host" if self.backend == "gloo" else "cuda", name="H100")

    def sample(self, rank: int, second: float) -> Sample:
        one = self.ranks[rank]
        going = one.goes_on or second < 0
        step = self.steps + (int(second / self.usual) if going else 0)
        steps = tuple(
            StepTimes(
                index=index, seconds=self.usual, data=0.1 * self.usual, forward=0.3 * self.usual,
                backward=0.5 * self.usual, optimizer=0.1 * self.usual,
            )
            for index in range(max(1, step - 3), step + 1)
        )  # fmt: skip
        positions = one.positions
        if one.moves or (one.goes_on and positions):
            positions = tuple(world((p.enqueued or 0) + int(10 * second), p.completed or 0) for p in positions)
        slot = 100_000 + int(second / 0.25)
        looks = tuple(
            Look(slot - back, tuple((p.enqueued or 0) - back * one.moves for p in positions)) for back in (3, 2, 1, 0)
        )
        return Sample(
            rank=rank, uptime=500 + second, step=step, steps=steps,
            step_age=None if step == 0 else second % self.usual if going else second,
            phase=one.phase, collectives=Collectives(positions, None if positions else "no process group"), looks=looks,
            device=DeviceReading(utilization=one.utilization, power=one.power, power_limit=700.0),
            activity=one.activity if second >= 0 else "",
        )  # fmt: skip

    def message(self, rank: int, second: float) -> Received:
        return wired(rank, self.sample(rank, second))

    def stack(self, rank: int) -> Received:
        return wired(rank, Stack(rank=rank, step=self.steps, waited=3.0, calls=tuple(self.ranks[rank].calls or ())))

    def run(self, seconds: int) -> Standing:
        """Play from 20 s before the stand to ``seconds`` after it, looking once a second."""
        for second in range(-20, seconds + 1):
            self.clock.now = 1_000.0 + second
            for rank, one in self.ranks.items():
                if second == 1 and one.ended is not None:
                    self.session.feed([wired(rank, one.ended)])
                if second > 0 and (one.silent or one.ended is not None):
                    if second == 4 and one.process:
                        self.session.feed([wired(rank, Mark(what="process", detail=one.process))])
                    continue
                self.session.feed([self.message(rank, float(second))])
                if second == 3 and one.calls is not None and not one.goes_on:
                    self.session.feed([self.stack(rank)])
            self.told.append((float(second), self.session.snapshot()))
        return self

    def found(self, rule: str) -> list[Finding]:
        """The findings of a rule at the end."""
        assert all(advised(finding) for finding in self.told[-1][1].findings)
        return [finding for finding in self.told[-1][1].findings if finding.rule == rule]

    def first(self, rule: str) -> float | None:
        """The second at which a rule was first told."""
        for second, snapshot in self.told:
            if any(finding.rule == rule for finding in snapshot.findings):
                return second
        return None
