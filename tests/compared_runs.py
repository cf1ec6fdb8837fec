"""Recordings of runs to be compared, made by hand: the same model under two strategies, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from fake_job import GIB, MIB, FakeJob, Spec, fsdp_job
from made_recording import Told, items_of, record

from ranktop.budget.plan import Ddp, Layout, Plan
from ranktop.probes.reading import Collectives, GroupPosition, StepTimes
from ranktop.wire.schema import Card, End, Job, Sample, Table

B200 = 191_503_532_032
"""Bytes of a GPU on which the replicated model fits."""


def _on_b200(made: FakeJob) -> FakeJob:
    device = made.device
    made.device = lambda rank: replace(device(rank), name="NVIDIA B200", total=B200)
    made.specs = {rank: replace(spec, total=B200, step_s=2.0) for rank, spec in made.specs.items()}
    return made


def fsdp2(ranks: int = 2) -> FakeJob:
    """A fine-tuning of a Llama on B200s, all ranks well."""
    made = _on_b200(fsdp_job(ranks))
    made.job = Job(id="f5d9", name="llama-fsdp", world_size=ranks, launcher="torchrun")
    return made


def ddp(ranks: int = 2) -> FakeJob:
    """The same model replicated: whole states on every rank."""
    made = _on_b200(fsdp_job(ranks))
    whole = made.inventory.numel * 4
    made.specs = {rank: replace(spec, states=(whole, whole, 2 * whole), cache=GIB) for rank, spec in made.specs.items()}
    layout = Layout(world_size=ranks, replicate=ranks)
    plan = replace(made.plan, strategy="ddp", layout=layout, fsdp=None, ddp=Ddp(gradient_as_bucket_view=True))
    made.plan = plan
    made.job = Job(id="d0d9", name="llama-ddp", world_size=ranks, launcher="torchrun")
    return made


@dataclass
class Run:
    """How a fake job runs: ``steps`` steps of ``seconds(step, rank)`` each, a sample of every rank after each."""

    job: FakeJob
    steps: int = 60
    seconds: Callable[[int, int], float] = lambda step, rank: 2.0 + 0.01 * ((7 * step + rank) % 5 - 2)
    tokens: int | None = 4096
    calls: int = 226
    peak: int | None = None
    """The allocator's running peak, added to what is held; None: not told."""
    card: Callable[[Card], Card] = lambda card: card
    sample: Callable[[Sample], Sample] = lambda sample: sample
    how: str = "exit"
    """How the ranks end; empty: they don't."""
    code: int | None = 0
    first_is_slow: float = 0.0
    restart: int = 0
    path: Path | None = field(default=None)

    def told(self) -> Iterator[Told]:
        """Everything that the ranks say."""
        t = 1.0
        for rank in sorted(self.job.specs):
            yield 0.5, rank, self.card(self.job.card(rank))
        for step in range(1, self.steps + 1):
            t += self.seconds(step, 0) + (self.first_is_slow if step == 1 else 0.0)
            for rank in sorted(self.job.specs):
                yield t, rank, self.sample(self.one(rank, step))
        if self.how:
            for rank in sorted(self.job.specs):
                yield t + 1.0, rank, End(rank=rank, how=self.how, code=self.code)

    def one(self, rank: int, step: int) -> Sample:
        """The sample after a step."""
        base = self.job.sample(rank, 0.0)
        seconds = self.seconds(step, rank) + (self.first_is_slow if step == 1 else 0.0)
        times = StepTimes(
            index=step, seconds=seconds, data=0.02 * seconds, forward=0.3 * seconds, backward=0.6 * seconds,
            optimizer=0.08 * seconds, clock="device", tokens=self.tokens,
        )  # fmt: skip
        table = base.table
        assert table is not None
        position = step * self.calls
        held = self.job.specs[rank]
        peak = None if self.peak is None else sum(held.states) + held.activations + self.peak
        return msgspec.structs.replace(
            base, step=step, steps=(times,), table=Table(step=step, moments=table.moments, first=step == 1),
            peak_allocated=peak,
            collectives=Collectives((GroupPosition("0", "default", len(self.job.specs), position, position),)),
        )  # fmt: skip

    def record(self, **more: Any) -> Path:
        """Write it as a recording and return its path."""
        items = items_of(self.told(), restart=self.restart)
        return record(self.job.job, items, path=self.path, finish=bool(self.how), **more)


__all__ = ["GIB", "MIB", "Plan", "Run", "Spec", "ddp", "fsdp2"]
