"""Ranks that talk to a HubState as agents would, and what it then tells a viewer."""

from __future__ import annotations

from ranktop.agent.hub_state import HubState
from ranktop.probes.reading import DeviceDetail
from ranktop.wire.codec import decode_body, decode_header, encode_body, encode_header
from ranktop.wire.schema import Body, Box, Card, Device, End, Header, Item, Job, Sample, Stack

JOB = Job(id="j1", name="train", world_size=4)


def state_of_hub(world_size: int = 4) -> HubState:
    return HubState(Job(id="j1", name="train", world_size=world_size), "hub-1", 0.0)


class Rank:
    """A rank that talks to a HubState as an agent would."""

    def __init__(self, state: HubState, rank: int = 0, pid: int = 100, restart: int = 0) -> None:
        self.state, self.rank, self.pid, self.restart, self.seq = state, rank, pid, restart, 0

    def say(self, body: Card | Sample | Device | Stack | Box | End, t: float = 0.0) -> Header:
        kind = type(body).__name__.lower()
        header = Header(kind, self.rank, self.pid, self.restart, self.seq)
        self.seq += 1
        return self.state.accept(t, encode_header(header), encode_body(body))

    def card(self, t: float = 0.0) -> Header:
        return self.say(Card(job=self.state.job, rank=self.rank, pid=self.pid, restart=self.restart), t)

    def sample(self, step: int = 0, t: float = 0.0, padding: int = 0) -> Header:
        return self.say(Sample(rank=self.rank, step=step, phase="x" * padding), t)

    def device(self, energy: float, t: float = 0.0) -> Header:
        return self.say(Device(rank=self.rank, detail=DeviceDetail(energy=energy)), t)

    def end(self, how: str, t: float = 0.0) -> Header:
        return self.say(End(rank=self.rank, how=how), t)


def read(item: Item) -> tuple[Header, Body]:
    header = decode_header(item.header)
    return header, decode_body(header, item.body)


def kinds(items: tuple[Item, ...] | list[Item]) -> list[str]:
    return [f"{header.kind} {header.rank}" for header, _ in map(read, items)]
