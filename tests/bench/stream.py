"""What a hub would send to a viewer of a simulated job, without the hub: encoded messages on a clock of one's own.

The dashboard's receiver takes them apart as it does a hub's, so nothing is shared between two messages that a job's
would not share either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.simulated import DEVICE_EVERY, SimulatedJob
from fake_job import FakeClock
from msgspec.structs import replace as changed

from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Received, Reset, Whole
from ranktop.wire.codec import encode_batch, encode_body, encode_header
from ranktop.wire.points import HISTORY_SECONDS, point_of, point_spacing
from ranktop.wire.schema import LOOK_SECONDS, Batch, Body, Header, History, Item, Look, Sample

IN_A_BATCH = 128
"""Messages of one answer at most: what comes in a tenth of a second from a thousand ranks."""

VARIANTS = 8
"""Samples of a rank that are made in full; those after them differ in step, times and positions alone."""

STEP = 0.9001
"""Seconds that a variant is further on than the one before: a step."""


class Stream:
    """A job's messages, encoded; ``clock`` is the hub's and the viewer's."""

    def __init__(self, ranks: int, interval: float = 1.0) -> None:
        self.job, self.interval = SimulatedJob(ranks), interval
        self.clock = FakeClock()
        self.rounds = 0
        self._number = 0
        self._made: dict[tuple[int, int], Sample] = {}

    def item(self, rank: int, body: Body) -> Item:
        """Return a message that reaches the hub now, as it keeps it."""
        kind = type(body).__name__.lower()
        self._number += 1
        header = Header(kind=kind, rank=rank, pid=1000 + rank, restart=0, seq=self._number)
        return Item(self._number, self.clock.now, encode_header(header), encode_body(body))

    def batch(self, items: Sequence[Item], *, snapshot: bool = False) -> bytes:
        """Return an answer with these messages."""
        return encode_batch(
            Batch(hub="h", job=self.job.job, now=self.clock.now, snapshot=snapshot, last=self._number,
                  items=tuple(items))
        )  # fmt: skip

    def start(self, history: float = 0.0) -> list[bytes]:
        """Return the hub's snapshot: the cards, and so many seconds of history of each rank, as the hub thins it."""
        ranks = range(self.job.ranks)
        items = [self.item(rank, self.job.card(rank, 1000 + rank)) for rank in ranks]
        if history:
            items += [self.item(rank, self._history(rank, history)) for rank in ranks]
        first, *rest = [items[at : at + IN_A_BATCH] for at in range(0, len(items), IN_A_BATCH)]
        return [self.batch(first, snapshot=True), *map(self.batch, rest)]

    def _history(self, rank: int, seconds: float) -> History:
        spacing = point_spacing(self.job.ranks)
        point = point_of(self.sample(rank, 0), self.clock.now)
        count = int(min(seconds, HISTORY_SECONDS) / spacing)
        times = [self.clock.now - back * spacing for back in range(count, 0, -1)]
        return History(rank=rank, points=tuple(changed(point, t=t) for t in times))

    def sample(self, rank: int, at: int) -> Sample:
        """Return the sample of a rank in round ``at``: a new step, memory that breathes, four looks."""
        made = self._made.get((rank, at % VARIANTS))
        if made is None:
            elapsed = (at % VARIANTS + 1) * STEP
            made = self._made[rank, at % VARIANTS] = self.job.sample(rank, elapsed, elapsed - STEP, 0.0)
        step = self.job.fake.first_step + at + 1
        groups = tuple(replace(one, enqueued=226 * step, completed=226 * step - 1) for one in made.collectives.groups)
        slot = int(self.clock.now / LOOK_SECONDS)
        return changed(
            made, step=step, uptime=self.clock.now, interval=self.interval,
            table=changed(made.table, step=step) if made.table is not None else None,
            steps=tuple(replace(one, index=step) for one in made.steps[-1:]),
            collectives=replace(made.collectives, groups=groups),
            looks=tuple(Look(slot - back, (226 * step - 56 * back,)) for back in (3, 2, 1, 0)),
        )  # fmt: skip

    def parts(self, count: int) -> list[bytes]:
        """Return the next interval's messages of all ranks in so many answers, while the clock goes on by it."""
        found: list[bytes] = []
        ranks = range(self.job.ranks)
        for part in range(count):
            self.clock.advance(self.interval / count)
            items = []
            for rank in ranks[part * len(ranks) // count : (part + 1) * len(ranks) // count]:
                items.append(self.item(rank, self.sample(rank, self.rounds)))
                if (self.rounds + rank) % DEVICE_EVERY == 0:
                    items.append(self.item(rank, self.job.detail(rank, self.clock.now)))
            found.append(self.batch(items))
        self.rounds += 1
        return found


def receiver(clock: FakeClock) -> HubSource:
    """Return a receiver that nobody answers; ``taken`` gives it what a hub would have answered."""
    return HubSource(Path("/nonexistent/ranktop"), clock=clock)


def taken(source: HubSource, answers: Sequence[bytes]) -> list[Received | Reset | Whole]:
    """Return what a receiver makes of some answers."""
    found: list[Received | Reset | Whole] = []
    for answer in answers:
        source._read([answer], found)
    return found
