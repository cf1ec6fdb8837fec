"""What a recording holds and tells, against what the hub knew when it was made."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path

import pytest
from hub_talk import JOB, Rank, kinds, read, state_of_hub
from made_recording import WALL, Told, items_of, record

from ranktop.wire import recording_writer
from ranktop.wire.codec import encode_body, encode_header
from ranktop.wire.nodes import NodeLink, Nodes
from ranktop.wire.recording import Recording, Stretch
from ranktop.wire.recording_writer import MERGE_EVERY, RecordingWriter, TakenByAnother
from ranktop.wire.schema import Body, Box, Card, End, Header, History, Item, Job, Mark, Point, Sample, Stack


def writer_at(
    path: Path, job: Job = JOB, limit: int = 2**30, began: float = 0.0, hub: str = "hub-1"
) -> RecordingWriter:
    return RecordingWriter.create(path, job, hub=hub, began=began, wall=WALL + began, limit=limit)


class Taped:
    """A hub's state whose stream is recorded, a transaction a second."""

    def __init__(self, path: Path) -> None:
        self.state = state_of_hub(4)
        self.writer = writer_at(path)
        self.state.stream.tap = self.writer.add
        self.at = 0.0

    def until(self, t: float) -> None:
        while self.at < t:
            self.at += 1.0
            self.writer.commit(self.at, WALL + self.at)


def told(items: list[Item]) -> list[tuple[object, ...]]:
    """Return what a snapshot tells, without the numbers of what is made for it only."""
    return [(round(item.t, 6), *read(item)) for item in items]


def test_all_that_came_is_read_back_in_order(tmp_path: Path) -> None:
    messages: list[Told] = [(0.5, rank, Card(job=JOB, rank=rank)) for rank in range(3)]
    messages += [(t + rank / 10, rank, Sample(rank=rank, step=t)) for t in range(1, 150) for rank in range(3)]
    items = items_of([*messages, (150.0, 1, End(rank=1, how="exit", code=0))])
    path = record(JOB, items, path=tmp_path / "a.ranktop")
    with Recording.open(path) as recording:
        assert list(recording.items(-1.0, 1e9)) == items
        assert list(recording.items(10.1, 11.1)) == [item for item in items if 10.1 < item.t <= 11.1]
        assert kinds(list(recording.events())) == ["card 0", "card 1", "card 2", "end 1"]
        assert (recording.job, recording.begin, recording.steps) == (JOB, 0.0, 149)
        assert recording.finished
        assert not recording.live
        assert recording.ended == pytest.approx(WALL + 150)
        assert recording.wall(75.0) == pytest.approx(WALL + 75)
        assert [part.step for part in recording.stretches()] == [0.0]


def test_long_silences_are_passed_over(tmp_path: Path) -> None:
    items = items_of([(t, 0, Sample(rank=0, step=int(t))) for t in (1.0, 2.0, 90_000.0, 90_001.0, 700_000.5)])
    path = record(JOB, items, path=tmp_path / "a.ranktop", every=100_000.0)
    with Recording.open(path) as recording:
        assert list(recording.items(-5.0, 1e7)) == items


def test_the_state_at_a_time_is_the_hubs_snapshot_of_then(tmp_path: Path) -> None:
    """Several ranks speak, stop, fail, come back; what was known then is what the recording says of then."""
    for seed in range(3):
        chance = random.Random(seed)
        tape = Taped(tmp_path / f"{seed}.ranktop")
        state = tape.state
        ranks = {rank: Rank(state, rank, pid=100 + rank) for rank in range(4)}
        known: dict[float, list[Item]] = {}
        for second in range(1, 200):
            for number, rank in list(ranks.items()):
                act(chance, tape, ranks, number, rank, second + number / 10)
            if chance.random() < 0.02:
                state.mark(second + 0.8, "gap", f"at {second}")
            tape.until(second + 0.9)
            if second % 37 == 0 or second == 199:
                known[second + 0.9] = list(state.snapshot())
        with Recording.open(tape.writer.path) as recording:
            for t, expected in known.items():
                assert told(list(recording.state_at(t))) == told(expected), (seed, t)


def act(chance: random.Random, tape: Taped, ranks: dict[int, Rank], number: int, rank: Rank, t: float) -> None:
    """Have a rank say something that ranks say."""
    known = tape.state.ranks.get(number)
    if known is not None and known.end is not None:
        if chance.random() < 0.05:
            ranks[number] = Rank(tape.state, number, pid=rank.pid + 10, restart=rank.restart + 1)
            ranks[number].card(t)
        return
    draw = chance.random()
    if rank.seq == 0 or draw < 0.02:
        rank.card(t)
    elif draw < 0.9:
        rank.sample(step=int(t), t=t, padding=chance.randrange(40))
    elif draw < 0.95:
        rank.device(t, t)
    elif draw < 0.97:
        rank.say(Stack(rank=number, step=int(t), waited=3.0), t)
    elif draw < 0.975:
        tape.state.note_process(t, number, "stopped")
    elif draw < 0.98:
        rank.say(Box(rank=number, error="OutOfMemoryError", step=int(t)), t)
        rank.end("exception", t + 0.01)
    elif draw < 0.985:
        rank.end("exit", t)


def test_a_hub_that_replaces_a_killed_one_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ranktop"
    writer = writer_at(path, began=1000.0)
    first = items_of([(1000.0 + t, 0, Sample(rank=0, step=t)) for t in range(1, 5)])
    card = Item(0, 1000.5, encode_header(Header("card", 0, 100, 0, 0)), encode_body(Card(job=JOB, rank=0)))
    for item in [card, *(Item(item.number + 1, item.t, item.header, item.body) for item in first)]:
        writer.add(item)
    writer.commit(1004.5, WALL + 1004.5)
    writer.close()
    again = RecordingWriter.resume(path, JOB, hub="hub-2", began=1034.0, wall=WALL + 1034.0)
    # The new hub is told the card once more, and a sample that the old one had heard already.
    again.add(Item(0, 1035.0, card.header, card.body))
    again.add(Item(1, 1035.1, first[-1].header, first[-1].body))
    after = Item(2, 1036.0, encode_header(Header("sample", 0, 100, 0, 9)), encode_body(Sample(rank=0, step=7)))
    again.add(after)
    again.finish(1037.0, WALL + 1037.0)
    with Recording.open(path) as recording:
        found = list(recording.items(0.0, 1e9))
        assert [item.t for item in found] == [1000.5, 1001.0, 1002.0, 1003.0, 1004.0, 1036.0]
        assert [item.number for item in found] == sorted({item.number for item in found})
        assert (recording.begin, recording.steps) == (1000.0, 7)
        assert recording.rows("SELECT hub, began FROM hubs ORDER BY id") == [("hub-1", 1000.0), ("hub-2", 1034.0)]


def test_after_a_restart_of_the_machine_the_clock_goes_on_by_the_wall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ranktop"
    writer = writer_at(path, began=5000.0)
    writer.commit(5010.0, WALL + 5010.0)
    writer.close()
    monkeypatch.setattr(recording_writer, "boot_id", lambda: "another start")
    again = RecordingWriter.resume(path, JOB, hub="hub-2", began=20.0, wall=WALL + 5110.0)
    nodes = Nodes(here=0, nodes=(NodeLink(node_rank=0, state="here", since=21.0),))
    points = History(rank=0, points=(Point(22.0, 3, None, None, None, None, None, None, None, None),))
    again.add(Item(0, 25.0, encode_header(Header("nodes", -1, 0, 0, 0)), encode_body(nodes)))
    again.add(Item(1, 25.0, encode_header(Header("history", 0, 0, 0, 0)), encode_body(points)))
    again.add(Item(2, 26.0, encode_header(Header("sample", 0, 1, 0, 0)), encode_body(Sample(rank=0, step=4))))
    again.finish(30.0, WALL + 5120.0)
    with Recording.open(path) as recording:
        bodies = {read(item)[0].kind: read(item)[1] for item in recording.state_at(1e9)}
        link, history = bodies["nodes"], bodies["history"]
        assert isinstance(link, Nodes)
        assert isinstance(history, History)
        assert link.nodes[0].since == pytest.approx(5111.0)
        assert history.points[0].t == pytest.approx(5112.0)
        assert recording.wall(5116.0) == pytest.approx(WALL + 5116.0)
        assert recording.end == pytest.approx(5120.0)


def test_two_hubs_do_not_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_at(tmp_path / "a.ranktop")
    monkeypatch.setattr(os, "getpid", os.getppid)
    with pytest.raises(TakenByAnother):
        # The file says that this very process, which lives, is its writer; whoever asks is another one.
        RecordingWriter.resume(tmp_path / "a.ranktop", JOB, hub="hub-2", began=1.0, wall=WALL)
    writer.close()


def test_messages_of_another_node_that_come_late_take_their_true_place(tmp_path: Path) -> None:
    now = [(t + rank / 10, rank, Sample(rank=rank, step=int(t))) for t in range(1, 200) for rank in (0, 1)]
    cut = [entry for entry in now if entry[1] == 1 and 50 < entry[0] < 110]
    order = [*(entry for entry in now if entry not in cut and entry[0] < 115), *cut, *(e for e in now if e[0] >= 115)]
    items = items_of(order)
    path = record(JOB, items, path=tmp_path / "a.ranktop")
    with Recording.open(path) as recording:
        found = list(recording.items(-1.0, 1e9))
        assert found == sorted(items, key=lambda item: item.t)
        history = next(
            body for header, body in map(read, recording.state_at(150.0)) if header.kind == "history" and header.rank
        )
        assert isinstance(history, History)
        assert [round(point.t, 3) for point in history.points] == [t + 0.1 for t in range(1, 150)]


def test_marks_of_a_rank_are_told_apart(tmp_path: Path) -> None:
    """A hub that gathers puts ``life`` marks into its stream too; they are not what a silent rank's process does."""
    stopped = Mark(what="process", detail="stopped")
    messages: list[Told] = [(1.0, 0, Sample(rank=0)), (2.0, 0, stopped), (3.0, 0, Mark(what="life"))]
    with Recording.open(record(JOB, items_of(messages), path=tmp_path / "a.ranktop")) as recording:
        marks = [body for header, body in map(read, recording.state_at(9.0)) if header.kind == "mark"]
        assert marks == [stopped]


def test_large_jobs_are_sampled_and_what_happens_is_kept(tmp_path: Path) -> None:
    job = Job(id="big", name="train", world_size=1024)
    messages: list[Told] = [(float(t), 7, Sample(rank=7, step=t)) for t in range(1, 41)]
    messages.append((40.5, 7, End(rank=7, how="signal", code=9)))
    items = items_of(messages)
    with Recording.open(record(job, items, path=tmp_path / "a.ranktop")) as recording:
        found = [item.t for item in recording.items(0.0, 1e9)]
        assert found[-2:] == [40.0, 40.5], "the last words of a rank are there"
        assert found[:-2] == [float(t) for t in range(1, 41, 4)][: len(found) - 2]
        assert recording.spacing == pytest.approx(3.6)
        assert recording.stretches()[0].step == pytest.approx(3.6)


def test_a_long_recording_stays_within_its_limit_and_keeps_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hours that would take 7 MiB, in 5 MiB of which 3 are spare: the oldest parts are the coarsest."""
    monkeypatch.setattr(recording_writer, "LEAST_BYTES", 0)
    monkeypatch.setattr(recording_writer, "_LEAST_SPARE", 3 * 2**20)
    writer = writer_at(tmp_path / "a.ranktop", limit=5 * 2**20)
    chance = random.Random(5)
    number = largest = 0
    hours = 3

    def say(t: float, rank: int, body: Body) -> None:
        nonlocal number
        header = encode_header(Header(type(body).__name__.lower(), rank, 100 + rank, 0, number))
        writer.add(Item(number, t, header, encode_body(body)))
        number += 1

    for t in range(0, hours * 3600, 6):
        for rank in range(2):
            say(t + rank / 10, rank, Sample(rank=rank, step=t, phase=chance.randbytes(1000).hex()))
        if t % 1200 == 0:
            say(t + 0.9, -1, Mark(what="gap", detail=str(t)))
        if t == 1200:
            say(t + 0.95, 1, Box(rank=1, error="OutOfMemoryError"))
        if t % 60 == 0:
            writer.commit(t + 6.0, WALL + t)
            largest = max(largest, sum(file.stat().st_size for file in tmp_path.iterdir()))
    writer.finish(hours * 3600.0, WALL + hours * 3600)
    assert 2 * 2**20 < largest <= 5 * 2**20
    with Recording.open(tmp_path / "a.ranktop") as recording:
        steps = [part.step for part in recording.stretches()]
        assert steps == sorted(steps, reverse=True)
        assert steps[0] > 0.0
        assert steps[-1] == 0.0
        assert kinds(list(recording.events())).count("mark -1") == hours * 3
        before_the_box = [item for item in recording.items(1081.0, 1201.0) if read(item)[0].rank == 1]
        assert len(before_the_box) >= 20, "what came before an out-of-memory stays whole"
        assert {"sample 0", "sample 1", "history 0"} <= set(kinds(list(recording.state_at(600.0))))


def test_a_live_recording_is_read_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "a.ranktop"
    writer = writer_at(path)
    items = items_of([(float(t), 0, Sample(rank=0, step=t)) for t in range(1, 200)])
    with Recording.open(path) as recording:
        seen: list[Item] = []
        for item in items:
            writer.add(item)
            writer.commit(item.t + 0.5, WALL + item.t)
            if item.number % 7 == 0:
                recording.refresh()
                seen += recording.items(seen[-1].t if seen else -1.0, recording.end)
                assert seen == items[: item.number + 1]
        assert len(list(recording.state_at(199.0))) == 41
    writer.finish(200.0, WALL + 200)
    assert os.listdir(tmp_path) == ["a.ranktop"]
    assert MERGE_EVERY < 199


def test_what_is_written_again_takes_the_pages_that_became_free(tmp_path: Path) -> None:
    writer = writer_at(tmp_path / "a.ranktop")
    for item in items_of([(float(t), 0, Sample(rank=0, step=t)) for t in range(1, 500)]):
        writer.add(item)
        writer.commit(item.t, WALL + item.t)
    connection = sqlite3.connect(tmp_path / "a.ranktop")
    free, pages = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
    assert free < 0.7 * pages
    assert pages < 200, "five hundred small transactions, each a page at least, were merged"
    connection.close()
    writer.finish(500.0, WALL + 500)
    with Recording.open(tmp_path / "a.ranktop") as recording:
        assert recording.stretches() == [Stretch(1.0, 499.0, 0.0)]
