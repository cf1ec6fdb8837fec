"""Bytes of others: messages with bytes turned, small recordings that unpack to a lot. Only documented errors."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import sqlite3
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hub_talk import JOB, state_of_hub
from made_recording import items_of, record

from ranktop.agent.hub_merge import Merge
from ranktop.agent.hub_nodes import _checked
from ranktop.probes.reading import DeviceDetail
from ranktop.wire import codec, recording_file
from ranktop.wire.endpoints import JOB_FILE, JobFile, read_job_file
from ranktop.wire.nodes import Door, Doors, NodeLink, Nodes
from ranktop.wire.recording import Recording
from ranktop.wire.recording_file import Points, RecordingError, pack_items, pack_points
from ranktop.wire.recording_state import _MOST_LIVES
from ranktop.wire.schema import (
    Ack,
    Ask,
    Batch,
    Body,
    Box,
    Card,
    Device,
    End,
    Header,
    History,
    Item,
    Mark,
    Point,
    Sample,
    Stack,
)

DOOR = Door(node_rank=1, host="b", addresses=("10.0.0.2", "fe80::1"), port=4000, key="k" * 40, hub="h1", job_id="j1")
MESSAGES: list[tuple[int, Body]] = [
    (0, Card(job=JOB, rank=0, model="M", notes=("a", "b"))),
    (0, Sample(rank=0, step=5, phase="forward")),
    (0, Device(rank=0, detail=DeviceDetail(energy=1.5))),
    (0, Stack(rank=0, step=4, waited=2.5)),
    (0, Box(rank=0, error="OutOfMemoryError: x", asked=2**30)),
    (0, End(rank=0, how="signal", code=9, detail="SIGKILL")),
    (0, History(rank=0, points=(Point(1.0, 5, 0.5, 1, 2, 3, 4, 50, 300.0, 60), Point(2.0, 6, *[None] * 8)))),
    (-1, Mark(what="hub-replaced", detail="x")),
    (-1, Nodes(here=0, nodes=(NodeLink(node_rank=1, host="b", state="lost", since=2.0, ranks=(1, 2)),))),
    (0, Doors(node_rank=0, nodes=2, host="a", addresses=("10.0.0.1",), doors=(DOOR,))),
]
BATCH = Batch(hub="h", job=JOB, now=5.0, snapshot=True, last=3, items=tuple(items_of([(1.0, *MESSAGES[1])])))
READERS: list[tuple[bytes, Callable[[bytes], object]]] = [
    (codec.encode_ack(Ack(hub="h", want_card=True, seq=9, door=DOOR)), codec.decode_ack),
    (codec.encode_ask(Ask(hub="h", since=7, wait=1.5)), codec.decode_ask),
    (codec.encode_batch(BATCH), codec.decode_batch),
]


HUGE = (
    b"\xdf\xff\xff\xff\xff", b"\xdd\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xcb\x7f\xf0" + bytes(6),
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7),
)  # fmt: skip
"""How a map, an array and bytes without end begin in msgpack; infinity; the largest and the smallest integer."""


def turned(luck: random.Random, data: bytes) -> bytes:
    """Return bytes with some turned, left out, doubled, or replaced by what begins something huge."""
    made = bytearray(data)
    for _ in range(luck.choice((1, 1, 2, 5))):
        at = luck.randrange(len(made) + 1)
        what = luck.randrange(5)
        if what == 0 and at < len(made):
            made[at] = luck.randrange(256)
        elif what == 1:
            del made[at : at + luck.randrange(1, 9)]
        elif what == 2:
            made[at:at] = made[at : at + luck.randrange(1, 30)]
        elif what == 3:
            made[at : at + luck.randrange(9)] = luck.choice(HUGE)
        else:
            del made[at:]
    return bytes(made)


@pytest.mark.parametrize("seed", range(4))
def test_turned_messages_raise_wire_errors_only(seed: int) -> None:
    luck = random.Random(seed)
    for data, read in READERS:
        for _ in range(250):
            with contextlib.suppress(codec.WireError):
                read(turned(luck, data))


@pytest.mark.parametrize("seed", range(4))
def test_a_hub_takes_turned_messages_of_agents_and_of_other_hubs(seed: int) -> None:
    luck = random.Random(seed)
    state, now = state_of_hub(), 10.0
    failures: list[str] = []
    merge = Merge(state, 0, lambda: "node 1", failures.append)
    items = items_of([(1.0, *message) for message in MESSAGES])
    for round_ in range(100):
        for item in items:
            now += 0.01
            head = turned(luck, item.header) if luck.random() < 0.4 else item.header
            body = turned(luck, item.body)
            with contextlib.suppress(codec.WireError):
                header = state.accept(now, head, body)
                assert 0 <= header.rank < 65536
            with contextlib.suppress(codec.WireError):
                told = codec.decode_body(codec.decode_header(head), body)
                if isinstance(told, Doors):
                    assert all(len(door.host) <= 256 for door in _checked(told).doors)
            t = luck.choice((item.t, -1e308, 1e308, now + 1e6, 0.0))
            merge.take(
                Item(luck.choice((0, -1, 2**62, round_)), t, head, body), "hub-2", luck.choice((0.0, -5.0, 1e9)), now
            )
    assert failures == []
    batch = codec.encode_batch(
        Batch(hub="h", job=state.job, now=now, snapshot=True, last=1, items=tuple(state.snapshot()))
    )
    assert codec.decode_batch(batch).items


@pytest.mark.parametrize("seed", range(3))
def test_a_turned_job_file_is_one_of_two_errors(seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    sound = msgspec.json.encode(JobFile.of(JOB, 1.5, hub_pid=7))
    for _ in range(200):
        (tmp_path / JOB_FILE).write_bytes(turned(luck, sound))
        with contextlib.suppress(ValueError, OSError):
            assert isinstance(read_job_file(tmp_path).id, str)
    (tmp_path / JOB_FILE).unlink()
    os.mkfifo(tmp_path / JOB_FILE)
    with pytest.raises(ValueError):  # noqa: PT011 (any reason will do: it does not wait for a writer)
        read_job_file(tmp_path)


def bomb(path: Path, kind: str) -> Path:
    """Make a small recording that unpacks to far more than it has, each part of it within what a part may be."""
    told: list[tuple[float, int, Body]] = [(0.5, 0, Card(job=JOB, rank=0)), (1.0, 0, Sample(rank=0, step=1))]
    record(JOB, items_of([*told, (50.0, 0, Sample(rank=0, step=2))]), path=path)
    into = "INSERT INTO chunks (kind, level, first, last, count, unpacked, data) VALUES (?, 1, 1.0, 3.0, 1, ?, ?)"
    with contextlib.closing(sqlite3.connect(path)) as file:
        if kind == "events":
            body = zlib.compress(msgspec.msgpack.encode({"what": "x", "detail": "x" * (4 * 2**20 - 100)}), 9)
            head = codec.encode_header(Header("mark", -1, 0, 0, 0))
            rows = [(1000 + i, 2.0, "mark", -1, head, body) for i in range(40)]
            file.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
        elif kind == "chunks":
            head = codec.encode_header(Header("sample", 0, 100, 0, 5))
            data, size = pack_items([Item(5, 2.0, head, b"x" * (12 * 2**20))], 9)
            file.executemany(into, [("samples", size, data)] * 12)
        elif kind == "points":
            points, size = pack_points([Points(0, (Point(2.0, 1, *[None] * 8),) * 60_000)])
            file.executemany(into, [("points", size, points)] * 4)
        else:
            rows_of_lives = ((100 + i, i % 60000, 1, i, 0.5) for i in range(_MOST_LIVES + 1))
            file.executemany("INSERT INTO lives VALUES (?, ?, ?, ?, ?)", rows_of_lives)
        file.commit()
    return path


def read_all(path: Path) -> None:
    with Recording.open(path) as recording:
        list(recording.items(-1.0, 1e9))
        list(recording.state_at(50.0))


@pytest.mark.parametrize("kind", ["events", "chunks", "points", "lives"])
def test_a_small_recording_that_unpacks_to_a_lot_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_file, "MOST_AT_ONCE", 64 * 2**20)
    monkeypatch.setattr("ranktop.wire.recording_state._MOST_POINTS", 200_000)
    path = bomb(tmp_path / "a.ranktop", kind)
    assert path.stat().st_size < 20 * 2**20
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(RecordingError, match="refused"):
        read_all(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    assert time.process_time() - began < 10


def test_a_view_that_calls_itself_the_counter_of_numbers_is_refused(tmp_path: Path) -> None:
    path = record(JOB, items_of([(1.0, 0, Sample(rank=0, step=1))]), path=tmp_path / "a.ranktop")
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA writable_schema=ON")
        file.execute("UPDATE sqlite_master SET type='view', sql='CREATE VIEW sqlite_sequence AS SELECT 1' "
                     "WHERE name='sqlite_sequence'")  # fmt: skip
        file.commit()
    with pytest.raises(RecordingError):
        Recording.open(path)
