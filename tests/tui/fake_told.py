"""A fake job whose script tells loss, learning rate and tokens, and names what it does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
from fake_job import FakeJob, fsdp_job, host_job

from ranktop.wire.progress import Progress
from ranktop.wire.schema import History, Sample

TOTAL = 5000


def loss_at(step: int) -> float:
    """A loss that falls as losses do, with a little noise that is the same every time."""
    return 1.9 + 9.0 * math.exp(-step / 300) + 0.06 * math.sin(2.4 * step)


@dataclass
class ToldJob(FakeJob):
    """The same job, told about by its script."""

    by: frozenset[int] | None = None
    """Ranks that tell; None: all."""
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rank -> fields of its Progress that are otherwise."""
    activities: dict[int, str] = field(default_factory=dict)

    def told(self, rank: int, step: int) -> Progress | None:
        if self.by is not None and rank not in self.by:
            return None
        made = Progress(
            step=step, total_steps=TOTAL, epoch=step / 1000, loss=loss_at(step) + 0.01 * rank,
            learning_rate=3e-4 * (1 - step / TOTAL), gradient_norm=0.8, tokens_per_second=1800.0 + rank,
            age=0.4, source="script", counted=step, every=2.3,
        )  # fmt: skip
        return msgspec.structs.replace(made, **self.changes.get(rank, {}))

    def sample(self, rank: int, elapsed: float) -> Sample:
        made = super().sample(rank, elapsed)
        return msgspec.structs.replace(
            made, progress=self.told(rank, made.step), activity=self.activities.get(rank, "")
        )

    def history(self, rank: int) -> History:
        points = []
        for point in super().history(rank).points:
            told = self.told(rank, point.step)
            known = (told.loss, told.learning_rate, point.step) if told is not None else (None, None, None)
            loss, rate, step = known
            points.append(msgspec.structs.replace(point, loss=loss, learning_rate=rate, loss_step=step))
        return History(rank=rank, points=tuple(points))


def told(job: FakeJob, **more: Any) -> ToldJob:
    """Return a fake job with a script that tells."""
    return ToldJob(**{one.name: getattr(job, one.name) for one in fields(job)}, **more)


def told_fsdp(ranks: int = 8, **more: Any) -> ToldJob:
    """The usual fine-tuning, told about, without a finding."""
    made = told(fsdp_job(ranks), **more)
    made.findings = ()
    return made


def told_host(**more: Any) -> ToldJob:
    """The demo's job on a machine without a GPU, told about."""
    job = host_job()
    job.first_step = more.pop("first_step", job.first_step)
    return told(job, **more)
