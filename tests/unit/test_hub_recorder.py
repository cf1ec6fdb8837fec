"""Disks that are full, read-only, slow or damaged: viewers are told, the hub goes on, and nothing is deleted."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_talk import Rank, kinds, read, state_of_hub
from made_recording import WALL, items_of, record

from ranktop.agent import hub_recorder, hub_recordings
from ranktop.agent.hub_recorder import RETRY, Recorder, parse_bytes, recording_wanted
from ranktop.agent.hub_recordings import remove_old
from ranktop.agent.hub_recordings import set_aside as set_aside_file
from ranktop.agent.hub_state import HubState
from ranktop.wire.recording import Recording
from ranktop.wire.recording_place import state_directory
from ranktop.wire.recording_writer import RecordingWriter
from ranktop.wire.recordings import find_recordings, list_recordings, recording_path
from ranktop.wire.schema import End, Job, Mark, Sample


class Hub:
    """A hub's state with a recorder whose turns and whose time are the test's."""

    def __init__(self, hub: str = "hub-1", started: float = WALL, world_size: int = 2, **environ: str) -> None:
        self.now = 100.0
        self.state = HubState(Job(id="j1", name="train", world_size=world_size), hub, self.now)
        self.recorder = Recorder(
            self.state.job, "j1", started, hub, self.now,
            clock=lambda: self.now, wall=lambda: WALL + self.now, environ=environ,
        )  # fmt: skip
        self.state.stream.tap = self.recorder.put
        self.rank = Rank(self.state, 0)
        self.news: list[str] = []

    def turn(self, seconds: float = 1.0, samples: int = 1, last: bool = False) -> list[str]:
        """Let some time pass in which the rank speaks; returns what viewers are told."""
        for _ in range(samples):
            self.now += seconds / max(1, samples)
            self.rank.sample(step=int(self.now), t=self.now)
        self.recorder.turn(last=last)
        news = self.recorder.follow(self.state.job, self.state)
        for text in news:
            self.state.mark(self.now, "recording", text)
        self.news += news
        return news

    @property
    def path(self) -> Path:
        return recording_path("j1", WALL)

    def steps(self) -> list[int]:
        """Return the steps that the recording holds."""
        with Recording.open(self.path) as recording:
            bodies = [read(item)[1] for item in recording.items(-1.0, 1e9)]
        return [body.step for body in bodies if isinstance(body, Sample)]


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real disk of 1 MiB as the state directory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount a small disk here")
    monkeypatch.setenv("RANKTOP_STATE_DIR", str(disk))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_nothing_is_made_before_the_first_message() -> None:
    hub = Hub()
    hub.recorder.turn()
    assert not state_directory().exists()
    hub.turn()
    assert hub.path.exists()
    assert (hub.path.stat().st_mode & 0o777, state_directory().stat().st_mode & 0o777) == (0o600, 0o700)
    assert list_recordings()[0].live is False, "of a clock that stands long ago"


def test_a_full_disk_is_told_once_and_recording_goes_on_when_there_is_room(small_disk: Path) -> None:
    hub = Hub()
    hub.rank.card(hub.now)
    hub.turn()
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(2**20))
    for _ in range(40):
        hub.turn(samples=3)
    assert len(hub.news) == 1
    assert "recording stopped" in hub.news[0]
    assert "full" in hub.news[0]
    assert str(small_disk) in hub.news[0]
    hub.rank.end("exit", hub.now)
    ballast.unlink()
    hub.turn(seconds=RETRY + 1)
    assert len(hub.news) == 2
    assert "recording again after" in hub.news[1]
    assert "messages are missing" in hub.news[1]
    hub.turn()
    hub.turn(last=True)
    with Recording.open(hub.path) as recording:
        assert {"card 0", "end 0", "mark -1"} <= set(kinds(list(recording.events())))
        marks = [body.detail for body in (read(item)[1] for item in recording.events()) if isinstance(body, Mark)]
        assert marks == hub.news, "what was told is recorded too"
    check_integrity(hub.path)


def check_integrity(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_what_waited_for_a_disk_has_its_own_wall_clock_times() -> None:
    hub = Hub()
    hub.turn(seconds=300.0)
    with Recording.open(hub.path) as recording:
        assert recording.clocks() == [(100.0, WALL + 100.0)]


def test_a_directory_that_cannot_be_made_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file"
    place.write_text("not a directory")
    monkeypatch.setenv("RANKTOP_STATE_DIR", str(place / "state"))
    hub = Hub()
    hub.rank.card(hub.now)
    for _ in range(10):
        hub.turn()
    assert len(hub.news) == 1
    assert "cannot be made" in hub.news[0]
    assert "RANKTOP_STATE_DIR" in hub.news[0]
    place.unlink()
    hub.turn(seconds=RETRY + 1)
    hub.turn()
    hub.turn()
    assert hub.news[1].startswith("recording again after")
    with Recording.open(hub.path) as recording:
        assert "card 0" in kinds(list(recording.events())), "a recording that begins late has the cards"


def test_a_read_only_disk_is_told(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKTOP_STATE_DIR", str(small_disk / "state"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    hub = Hub()
    hub.turn()
    hub.turn()
    assert len(hub.news) == 1
    assert "recording stopped" in hub.news[0]
    assert "Read-only file system" in hub.news[0]
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    hub.turn(seconds=RETRY + 1)
    hub.turn()
    assert "recording again" in hub.news[1]
    hub.turn(last=True)


@pytest.mark.parametrize("how", ["garbage", "cut", "empty", "directory", "newer", "link"])
def test_what_lies_in_its_place_is_set_aside_and_never_deleted(how: str, tmp_path: Path) -> None:
    first = Hub()
    for _ in range(5):
        first.turn()
    first.recorder._writer.close()  # type: ignore[union-attr]
    spoil(first.path, how, tmp_path)
    hub = Hub(hub="hub-2")
    hub.rank.card(hub.now)
    for _ in range(3):
        hub.turn()
    assert len(hub.news) == 1
    assert "it is kept as j1-1700000000.ranktop.damaged, and another one begins" in hub.news[0]
    assert os.path.lexists(state_directory() / "j1-1700000000.ranktop.damaged")
    assert hub.steps() == [101, 102, 103]
    assert len(list_recordings()) == 1


def spoil(path: Path, how: str, tmp_path: Path) -> None:
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    if how == "garbage":
        path.write_bytes(os.urandom(20_000))
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "newer":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        path.unlink()
        if how == "directory":
            path.mkdir()
        else:
            path.symlink_to(tmp_path / "elsewhere")


def test_a_file_that_is_damaged_while_it_is_written_is_set_aside() -> None:
    hub = Hub()
    hub.rank.card(hub.now)
    for _ in range(3):
        hub.turn()
    writer = hub.recorder._writer
    assert writer is not None
    real, writer._connection = writer._connection, Failing("database disk image is malformed")  # type: ignore[assignment]
    hub.turn()
    real.close()
    for _ in range(3):
        hub.turn()
    assert "the file was damaged (database disk image is malformed); it is kept as" in hub.news[0]
    with Recording.open(hub.path) as recording:
        assert "card 0" in kinds(list(recording.events()))


class Failing:
    """A connection that says that its file is damaged."""

    def __init__(self, text: str) -> None:
        self.text = text

    def execute(self, *_: object) -> None:
        raise sqlite3.DatabaseError(self.text)

    def close(self) -> None:
        """Nothing is held."""


def test_a_file_that_is_removed_is_made_anew() -> None:
    hub = Hub()
    hub.rank.card(hub.now)
    hub.turn()
    shutil.rmtree(state_directory())
    hub.turn()
    hub.turn()
    with Recording.open(hub.path) as recording:
        assert "card 0" in kinds(list(recording.events()))


def test_a_disk_that_hangs_never_holds_up_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread stands in a transaction; the hub's goes on, tells it, and counts what no longer fits."""
    hangs = threading.Event()
    stands = threading.Event()
    goes_on = hub_recordings.open_recording

    def hung(*arguments: object) -> object:
        stands.set()
        assert hangs.wait(30)
        return goes_on(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(hub_recorder, "open_recording", hung)
    monkeypatch.setattr(hub_recorder, "QUEUE_ITEMS", 100)
    monkeypatch.setattr(hub_recorder, "PERIOD", 0.01)
    hub = Hub()
    hub.rank.card(hub.now)
    hub.recorder.start()
    assert stands.wait(30)
    began = time.perf_counter()
    for _ in range(1000):
        hub.rank.sample(step=1, t=hub.now)
    assert time.perf_counter() - began < 5.0
    hub.now += 11.0
    assert hub.recorder.follow(hub.state.job, hub.state) == ["the disk has not answered for 11 s; live viewing goes on"]
    assert hub.recorder.follow(hub.state.job, hub.state) == []
    hangs.set()
    told: list[str] = []
    deadline = time.monotonic() + 30
    while not told and time.monotonic() < deadline:
        told = hub.recorder.follow(hub.state.job, hub.state)
        time.sleep(0.005)
    assert told == ["the disk is too slow: 900 messages are missing from the recording"]
    hub.recorder.close()
    assert not hub.recorder._thread.is_alive()


def test_the_next_hub_goes_on_in_the_file_of_a_killed_one() -> None:
    first = Hub()
    first.rank.card(first.now)
    for _ in range(3):
        first.turn()
    first.recorder._writer.close()  # type: ignore[union-attr]
    second = Hub(hub="hub-2")
    second.now, second.rank.seq = 130.0, first.rank.seq
    second.turn()
    second.turn(last=True)
    assert second.steps() == [101, 102, 103, 131, 132]
    assert len(list_recordings()) == 1
    assert os.listdir(state_directory()) == [second.path.name]


def test_two_hubs_of_one_home_directory_have_a_file_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of a job may start in the same second and share a home directory."""
    first = Hub()
    first.turn()
    monkeypatch.setattr(os, "getpid", os.getppid)
    second = Hub(hub="hub-2")
    second.turn()
    assert sorted(name for name in os.listdir(state_directory()) if name.endswith(".ranktop")) == [
        "j1-1700000000.2.ranktop", "j1-1700000000.ranktop",
    ]  # fmt: skip
    assert second.news == []


def test_a_job_that_goes_by_another_id_later_is_recorded_under_it() -> None:
    hub = Hub()
    hub.rank.card(hub.now)
    hub.turn()
    hub.state.rename("j0")
    hub.turn()
    hub.turn(last=True)
    with Recording.open(hub.path) as recording:
        assert recording.job.id == "j0"
        cards = [body for header, body in map(read, recording.state_at(1e9)) if header.kind == "card"]
        assert [card.job.id for card in cards] == ["j0"]  # type: ignore[union-attr]


def test_the_oldest_recordings_go_and_never_a_live_one() -> None:
    paths = [
        record(Job(id=f"j{n}", name="t", world_size=1), items_of([(1.0, 0, Sample(rank=0))]), begin=10.0 * n)
        for n in range(6)
    ]
    live = Hub()
    live.recorder._wall = time.time
    live.turn()
    live.turn()
    assert remove_old(paths[5], keep=4) == paths[:3]
    assert sorted(entry.job_id for entry in list_recordings()) == ["j1", "j3", "j4", "j5"]
    assert [entry.live for entry in list_recordings()] == [True, False, False, False]


def test_a_local_disk_is_used_where_the_state_directory_cannot_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_recordings, "local_directory", lambda: tmp_path / "local")
    monkeypatch.setattr(hub_recordings, "journal_for", lambda path: "TRUNCATE" if path == state_directory() else "WAL")
    create = RecordingWriter.create

    def refuses(path: Path, *arguments: object, **named: object) -> object:
        if path.parent == state_directory():
            raise sqlite3.OperationalError("locking protocol")
        return create(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordingWriter, "create", refuses)
    hub = Hub()
    hub.turn()
    assert hub.news == [
        f"the disk of {state_directory()} can't lock files (locking protocol): recording to {tmp_path / 'local'}"
    ]
    assert (tmp_path / "local" / hub.path.name).exists()


def test_on_a_network_disk_the_journal_is_one_that_several_machines_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_recordings, "journal_for", lambda _: "TRUNCATE")
    hub = Hub()
    for _ in range(70):
        hub.turn()
    assert not hub.path.with_name(hub.path.name + "-wal").exists()
    connection = sqlite3.connect(f"file:{hub.path}?mode=ro", uri=True)
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete", "a mode of each connection, WAL is not"
    connection.close()
    hub.turn(last=True)
    assert hub.steps() == list(range(101, 172))
    assert hub.news == []


@pytest.mark.parametrize(("text", "size"), [
    ("", 7), ("1048576", 2**20), ("64M", 2**26), ("64 MiB", 2**26), ("1.5g", 3 * 2**29), ("much", 7), ("-3", 0),
])  # fmt: skip
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text, 7) == size


def test_recording_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recording_wanted({})
    assert not any(recording_wanted({"RANKTOP_RECORD": word}) for word in ("off", "0", "No", " OFF "))
    state = state_of_hub()
    monkeypatch.setenv("RANKTOP_RECORD", "off")
    assert hub_recorder.record(state, "j1", WALL) is None
    assert state.stream.tap is None


def test_files_set_aside_do_not_replace_each_other() -> None:
    state_directory().mkdir(parents=True)
    for text in ("one", "two"):
        path = state_directory() / "a-1.ranktop"
        path.write_text(text)
        set_aside_file(path)
    assert sorted(file.read_text() for file in state_directory().iterdir()) == ["one", "two"]
    assert find_recordings().entries == []


def test_how_a_rank_ended_is_on_disk_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler kills the hub with the job's last process: the next transaction would be too late."""
    monkeypatch.setattr(hub_recorder, "PERIOD", 3600.0)
    hub = Hub()
    hub.recorder.start()
    try:
        hub.rank.sample(step=1, t=101.0)
        hub.rank.say(End(rank=0, how="signal", code=15, detail="SIGTERM"), t=101.5)
        deadline = time.monotonic() + 10.0
        while not (hub.path.exists() and kinds_in(hub.path) == ["end"]):
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        hub.recorder.close()


def kinds_in(path: Path) -> list[str]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
        try:
            return [kind for (kind,) in file.execute("SELECT kind FROM events")]
        except sqlite3.OperationalError:  # not made yet
            return []
