"""What does not depend on the machine: bytes of a message, readings of it by the hub, and what a hub holds at most."""

from __future__ import annotations

import random

import pytest
from bench.simulated import SimulatedJob

from ranktop.agent import hub_state
from ranktop.agent.hub_history import PointRing
from ranktop.agent.hub_ranks import SAMPLES_BYTES, SAMPLES_KEPT
from ranktop.agent.hub_state import RING_BYTES, HubState
from ranktop.wire import codec
from ranktop.wire.codec import BadMessage, encode_ack, encode_body, encode_header
from ranktop.wire.points import HISTORY_SECONDS, point_spacing
from ranktop.wire.schema import Ack, Body, Brief, Card, Header, Job, Sample

DEVICE_SECONDS = 10.0
FRAMING = 2
"""Bytes in front of a frame of less than 256 bytes in ZMTP; 9 of a longer one."""


def job(ranks: int) -> Job:
    return Job(id="j1", name="train", world_size=ranks)


def usual_sample(rank: int = 3, second: int = 60) -> Sample:
    return SimulatedJob(8).sample(rank, second + 0.5, second - 0.5, 1000.5 + second)


def test_a_rank_says_less_than_two_kilobytes_a_second() -> None:
    """A made-up rank on a GPU with a new step in every sample; the sockets' own count is in ``bench_hub.py``."""
    sample = len(encode_body(usual_sample()))
    header = len(encode_header(Header("sample", 3, 123_456, 0, 1000)))
    device = len(encode_body(SimulatedJob(8).detail(3, 60.5)))
    answer = len(encode_ack(Ack(hub="0123456789abcdef", seq=1000)))
    assert sample <= 1800
    assert header <= 24
    assert device <= 1900
    assert answer <= 64
    said = sample + 9 + header + FRAMING + (device + 9 + header + FRAMING) / DEVICE_SECONDS
    assert said + answer + FRAMING <= 2048


class Decodes:
    """Counts the bodies that a hub reads whole, and in brief."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole = self.brief = 0

        def decode_body(header: Header, data: bytes) -> Body:
            self.whole += 1
            return codec.decode_body(header, data)

        def decode_brief(header: Header, data: bytes) -> Brief:
            self.brief += 1
            return codec.decode_brief(header, data)

        monkeypatch.setattr(hub_state, "decode_body", decode_body)
        monkeypatch.setattr(hub_state, "decode_brief", decode_brief)


@pytest.mark.parametrize(("ranks", "whole"), [(8, 60), (256, 60), (1024, 15), (4096, 4)])
def test_a_hub_reads_whole_only_the_samples_whose_points_it_keeps(
    monkeypatch: pytest.MonkeyPatch, ranks: int, whole: int
) -> None:
    state, body = HubState(job(ranks), "hub", 0.0), encode_body(usual_sample())
    decodes = Decodes(monkeypatch)
    for second in range(60):
        state.accept(float(second), encode_header(Header("sample", 3, 100, 0, second)), body)
    assert (decodes.whole, decodes.brief) == (whole, 60 - whole)
    assert len(state.ranks[3].history) == whole


def told(state: HubState) -> list[tuple[float, bytes, bytes]]:
    return [(item.t, item.header, item.body) for item in state.snapshot()]


@pytest.mark.parametrize("seed", range(5))
def test_a_hub_that_reads_in_brief_knows_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Against one that reads every message whole: uneven times, another life, steps, intervals, words on silence."""
    luck = random.Random(seed)
    quick, plain = HubState(job(700), "hub", 0.0), HubState(job(700), "hub", 0.0)
    monkeypatch.setattr(plain, "read_body", lambda header, body, t: codec.decode_body(header, body))
    pids, seqs, t = {0: 10, 1: 11, 2: 12}, dict.fromkeys(range(3), 0), 0.0
    for _ in range(300):
        t += luck.choice((0.1, 0.3, 1.0, 2.6))
        rank = luck.randrange(3)
        if luck.random() < 0.02:
            pids[rank] += 100
        body: Card | Sample = Card(job=job(700), rank=rank, pid=pids[rank])
        if luck.random() < 0.95:
            sample = usual_sample(rank, 60 + int(t))
            body = Sample(rank=rank, step=int(t), interval=luck.choice((0.5, 1.0)), now=sample.now, table=sample.table)
        head = encode_header(Header(type(body).__name__.lower(), rank, pids[rank], 0, seqs[rank]))
        seqs[rank] += 1
        for state in (quick, plain):
            state.accept(t, head, encode_body(body))
        later = t + luck.choice((0.0, 4.0))
        assert quick.silent(later) == plain.silent(later)
    assert told(quick) == told(plain)
    for rank in range(3):
        assert quick.ranks[rank].step == plain.ranks[rank].step
        assert quick.ranks[rank].history.points(t) == plain.ranks[rank].history.points(t)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        encode_body(usual_sample(4)),
        encode_body(usual_sample())[:-1],
        encode_body(usual_sample()) + b"\x00",
        encode_body(Sample(rank=3, uptime=float("nan"))),
        encode_body(Sample(rank=3, step_age=float("inf"))),
    ],
)
def test_what_is_read_in_brief_is_refused_as_ever(body: bytes) -> None:
    state = HubState(job(4096), "hub", 0.0)
    state.accept(0.0, encode_header(Header("sample", 3, 100, 0, 0)), encode_body(usual_sample()))
    assert not state.ranks[3].history.due(1.0)
    with pytest.raises(BadMessage):
        state.accept(1.0, encode_header(Header("sample", 3, 100, 0, 1)), body)
    assert state.ranks[3].seq == 0


def test_what_a_hub_holds_is_bounded_however_long_it_lives() -> None:
    state, body = HubState(job(2), "hub", 0.0), encode_body(usual_sample())
    sizes = []
    for turn in range(3):
        for second in range(2100):
            t = 2100.0 * turn + second
            state.accept(t, encode_header(Header("sample", 3, 100, 0, int(t))), body)
        rank = state.ranks[3]
        assert len(rank.samples) <= SAMPLES_KEPT
        assert rank.samples._bytes <= SAMPLES_BYTES
        assert state.stream.held_bytes <= RING_BYTES
        sizes.append((len(rank.history), len(rank.history._values)))
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0][0] <= HISTORY_SECONDS / point_spacing(2) + 1


@pytest.mark.parametrize(("ranks", "size"), [(1, 1), (1024, 1), (2048, 2), (4096, 4), (10**9, 4)])
def test_a_large_jobs_stream_lasts_for_as_long_as_its_snapshot_takes(ranks: int, size: int) -> None:
    state = HubState(job(1), "hub", 0.0)
    card = Card(job=job(ranks), rank=0, pid=100)
    state.accept(0.0, encode_header(Header("card", 0, 100, 0, 0)), encode_body(card))
    assert state.stream.max_bytes == HubState(job(ranks), "hub", 0.0).stream.max_bytes == size * RING_BYTES


@pytest.mark.parametrize("ranks", [1, 256, 1024, 4096, 65_536])
def test_the_history_of_all_ranks_together_has_a_bound(ranks: int) -> None:
    ring = PointRing(ranks)
    assert ranks * ring._capacity <= 256 * HISTORY_SECONDS / 0.9 + ranks
