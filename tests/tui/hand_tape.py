"""Recordings made by hand, in memory: of simulated jobs, on a clock of their own. What a hub would tell is its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache

from ranktop.agent.hub_state import HubState
from ranktop.agent.simulation.faults import KINDS as KINDS_OF_FAULT
from ranktop.agent.simulation.faults import Fault
from ranktop.agent.simulation.job import Setup
from ranktop.agent.simulation.voice import Job as SimulatedJob
from ranktop.agent.simulation.voice import Said, Voice
from ranktop.wire.codec import decode_header, encode_body, encode_header
from ranktop.wire.recording import Stretch
from ranktop.wire.schema import BODIES, Header, Item, Job

KINDS = {body: kind for kind, body in BODIES.items()}
WALL = 1_790_000_000.0
"""When the hub's clock was 0, seconds since 1970."""

Message = tuple[float, Header, Said]


class HandTape:
    """Holds the items that a hub's stream would, and tells its snapshots by asking a hub's state anew."""

    def __init__(
        self, job: Job, messages: Sequence[Message], marks: list[tuple[float, str, str]] | None = None
    ) -> None:
        self.job = job
        self.all: list[Item] = []
        self.live_until = float("inf")
        """What comes later is not there yet: a recording that grows."""
        state = HubState(job, "hub-1", 0.0)
        state.stream.max_items = state.stream.max_bytes = 1 << 40
        events: list[tuple[float, Message | None, tuple[str, str]]] = [
            (t, (t, header, body), ("", "")) for t, header, body in messages
        ]
        events += [(t, None, (what, detail)) for t, what, detail in marks or []]
        for t, message, (what, detail) in sorted(events, key=lambda event: event[0]):
            if message is None:
                state.mark(t, what, detail)
            else:
                state.accept(t, encode_header(message[1]), encode_body(message[2]))
        self.all = state.stream.after(-1, 1 << 60)
        self.times = [item.t for item in self.all]
        self.closed = False
        self.last = 0.0
        """Until then at least something was recorded: that nobody spoke any more."""
        self.spacing = 0.0
        self.kept: list[Stretch] = []

    def stretches(self) -> list[Stretch]:
        return self.kept

    @property
    def begin(self) -> float:
        return self.times[0]

    @property
    def end(self) -> float:
        return min(max(self.times[-1], self.last), self.live_until)

    def wall(self, t: float) -> float:
        return WALL + t

    def clocks(self) -> list[tuple[float, float]]:
        return [(self.begin, self.wall(self.begin))]

    def items(self, after: float, until: float) -> Iterator[Item]:
        yield from self.all[bisect_right(self.times, after) : bisect_right(self.times, min(until, self.end))]

    def state_at(self, t: float) -> Iterator[Item]:
        state = HubState(self.job, "hub-1", 0.0)
        for item in self.all[: bisect_right(self.times, t)]:
            if decode_header(item.header).kind != "mark":
                state.accept(item.t, item.header, item.body)
        return state.snapshot()

    def events(self) -> Iterator[Item]:
        for item in self.all:
            if item.t <= self.end and decode_header(item.header).kind in ("mark", "box", "end", "card"):
                yield item

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@lru_cache
def simulated(
    fault: str = "",
    rank: int = 1,
    *,
    ranks: int = 4,
    seconds: int = 120,
    start: int = 20,
    seed: int = 3,
    by: float = 0.0,
) -> tuple[Message, ...]:
    """Return what the ranks of a simulated job say in so many seconds."""
    faults = (Fault(fault, rank, by or KINDS_OF_FAULT[fault].by, start),) if fault else ()
    setup = Setup(ranks=ranks, faults=faults, seed=seed)
    job = SimulatedJob(setup)
    voices = [Voice(job, number, pid=100 + number) for number in range(ranks)]
    said: list[Message] = []
    number = 0
    for second in range(seconds):
        for place, voice in enumerate(voices):
            t = second + 0.5 * place / ranks
            for body in voice.speak(t, 5000.0 + t):
                number += 1
                header = Header(KINDS[type(body)], voice.rank, voice.pid + 1000 * voice.life, voice.life, number)
                said.append((1000.0 + t, header, body))
    return tuple(said)


def job_of(messages: Sequence[Message]) -> Job:
    """Return the job that its first card tells."""
    from ranktop.wire.schema import Card

    return next(body.job for _, _, body in messages if isinstance(body, Card))


def tape(fault: str = "", rank: int = 1, **wishes: float) -> HandTape:
    """Return the recording of a simulated job."""
    messages = simulated(fault, rank, **wishes)
    made = HandTape(job_of(messages), messages)
    made.last = 1000.0 + wishes.get("seconds", 120)
    return made
