"""Files of others: refused in one line, nothing in them is run, and none of them costs much."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_talk import JOB, read
from made_recording import items_of, record

from ranktop.budget.terms import Memory
from ranktop.wire.recording import Recording
from ranktop.wire.recording_file import MAX_UNPACKED, RecordingError
from ranktop.wire.recording_place import check, filesystem, journal_for, prepare
from ranktop.wire.recordings import find_recordings, list_recordings
from ranktop.wire.schema import Box, Card, Sample


@pytest.fixture
def path(tmp_path: Path) -> Path:
    messages = [(float(t), rank, Sample(rank=rank, step=t)) for t in range(1, 80) for rank in range(2)]
    events = [(0.5, 0, Card(job=JOB, rank=0)), (70.5, 1, Box(rank=1, error="OutOfMemoryError"))]
    return record(JOB, items_of([events[0], *messages, events[1]]), path=tmp_path / "a.ranktop")  # type: ignore[list-item]


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def read_all(path: Path) -> None:
    with Recording.open(path) as recording:
        list(recording.items(-1.0, 1e9))
        list(recording.events())
        list(recording.state_at(75.0))
        recording.stretches()
        recording.wall(1.0)


def bomb(mebibytes: int = 200) -> bytes:
    """Zeros, packed a mebibyte at a time: pieces that end on a byte and know nothing of each other are all alike."""
    packer = zlib.compressobj(9)
    zeros = bytes(2**20)
    first, piece = (packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    check = 1
    for _ in range(mebibytes):
        check = zlib.adler32(zeros, check)
    # An empty last block, then the checksum.
    return first + piece * (mebibytes - 1) + b"\x03\x00" + check.to_bytes(4, "big")


BOMB = bomb()


@pytest.mark.parametrize(("statement", "words"), [
    ("CREATE TRIGGER t AFTER INSERT ON meta BEGIN SELECT load_extension('x'); END", "not those that ranktop makes"),
    ("CREATE VIEW v AS SELECT * FROM meta", "not those that ranktop makes"),
    ("CREATE TABLE more (a)", "not those that ranktop makes"),
    ("DROP TABLE clock", "not those that ranktop makes"),
    ("PRAGMA user_version = 2", "has schema 2, this ranktop reads schema 1: upgrade ranktop here"),
    ("PRAGMA user_version = 0", "has schema 0, this ranktop reads schema 1: open it with the version that made it"),
    ("PRAGMA application_id = 7", "no recording of ranktop"),
    ("DELETE FROM clock", "no clock"),
    ("UPDATE clock SET wall = 'x'", "damaged"),
    ("UPDATE meta SET value = '{' WHERE key = 'job'", "damaged"),
    ("UPDATE chunks SET data = x'00'", "damaged"),
    ("UPDATE chunks SET data = 'text'", "damaged"),
    ("UPDATE chunks SET first = 'a'", "damaged"),
    ("UPDATE events SET body = x'00'", "damaged"),
    ("UPDATE events SET header = 5", "damaged"),
    ("UPDATE lives SET rank = 'a' WHERE rank = 1", "damaged"),
])  # fmt: skip
def test_a_changed_file_is_refused_in_one_line(path: Path, statement: str, words: str) -> None:
    change(path, statement)
    with pytest.raises(RecordingError, match=words) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)


def test_what_unpacks_to_far_more_is_refused_before_it_is_made(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE chunks SET data = ?", (BOMB,))
    connection.execute("UPDATE events SET body = ?", (BOMB,))
    connection.commit()
    connection.close()
    began = time.process_time()
    with Recording.open(path) as recording:
        for items in (recording.items(-1.0, 1e9), recording.events()):
            with pytest.raises(RecordingError, match="unpacks to more than"):
                list(items)
    assert time.process_time() - began < 2.0
    assert MAX_UNPACKED < 16 * 2**20


def test_bytes_that_were_turned_raise_nothing_else(path: Path) -> None:
    sound = path.read_bytes()
    choice = random.Random(3)
    refused = 0
    for _ in range(60):
        data = bytearray(sound)
        for _ in range(choice.choice((1, 4, 64))):
            data[choice.randrange(len(data))] = choice.randrange(256)
        path.write_bytes(data)
        try:
            read_all(path)
        except RecordingError:
            refused += 1
    assert refused > 5


@pytest.mark.parametrize(("make", "words"), [
    (lambda path: None, "No such file"),
    (lambda path: path.mkdir(), "not a file"),
    (lambda path: os.mkfifo(path), "not a file"),
    (lambda path: path.symlink_to("/proc/self/mem"), "cannot be read: "),
    (lambda path: path.write_bytes(b""), "no recording"),
    (lambda path: path.write_text("hello\n" * 1000), "damaged"),
])  # fmt: skip
def test_what_is_no_recording_is_told(make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ranktop"
    make(path)
    with pytest.raises(RecordingError, match=words):
        Recording.open(path)


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = record(JOB, items_of([(1.0, 0, Sample(rank=0, step=4))]))
    (good.parent / "bad-1.ranktop").write_bytes(os.urandom(5000))
    (good.parent / "notes.txt").write_text("not ours")
    (entry,) = list_recordings()
    assert (entry.job_id, entry.path, entry.steps, entry.world_size) == (JOB.id, good, 4, JOB.world_size)
    (problem,) = find_recordings().problems
    assert problem.startswith("bad-1.ranktop: ")


def test_a_finished_one_is_read_where_nothing_can_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda place, mode: mode != os.W_OK)
    read_all(path)
    assert os.listdir(path.parent) == [path.name]
    path.with_name(path.name + "-wal").write_bytes(b"something")
    with pytest.raises(RecordingError, match="was cut off and lies where nothing can be written"):
        Recording.open(path)


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "state"
    prepare(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.chmod(0o770)
    with pytest.raises(RecordingError, match="can be written by others: chmod 700"):
        check(place)
    place.chmod(0o755)
    check(place)
    if os.geteuid() == 0:
        os.chown(place, 1, 1)
        with pytest.raises(RecordingError, match="belongs to user 1: refused"):
            check(place)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(tmp_path)
    with pytest.raises(RecordingError, match="symbolic link"):
        check(shared / "link")


MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/local rw - xfs /dev/sdb rw
32 22 0:42 / /scratch\040big rw - lustre mds@tcp:/fs rw
33 22 0:43 / /mnt/far rw - fuse.sshfs me@there:/ rw
34 22 0:44 / /covered rw - nfs a:/b rw
35 34 0:45 / /covered rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(("place", "kind"), [
    ("/var/tmp/x", "ext4"), ("/home/me/.local", "nfs4"), ("/home/local/me", "xfs"), ("/homes/me", "ext4"),
    ("/scratch big/me", "lustre"), ("/mnt/far", "fuse.sshfs"), ("/covered/x", "tmpfs"),
])  # fmt: skip
def test_the_disk_below_a_directory_is_known(place: str, kind: str) -> None:
    assert filesystem(Path(place), MOUNTS) == kind


def test_the_journal_follows_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert journal_for(tmp_path) == "WAL"
    for kind, journal in (("nfs4", "TRUNCATE"), ("fuse.sshfs", "TRUNCATE"), ("xfs", "WAL"), ("", "WAL")):
        monkeypatch.setattr("ranktop.wire.recording_place.filesystem", lambda path, kind=kind: kind)
        assert journal_for(tmp_path) == journal


@pytest.mark.parametrize("absurd", [
    Sample(rank=0, step=2**64 - 1),
    Sample(rank=0, step=5, now=Memory(parameters=2**64 - 1, gradients=2**63, optimizer=2**62)),
])  # fmt: skip
def test_absurd_numbers_of_one_rank_cost_no_recording(tmp_path: Path, absurd: Sample) -> None:
    told = [(float(t), rank, absurd if rank == 0 else Sample(rank=1, step=t)) for t in range(1, 80) for rank in (0, 1)]
    path = record(JOB, items_of(told), path=tmp_path / "a.ranktop")
    with Recording.open(path) as recording:
        assert recording.finished
        assert len(list(recording.items(0.0, 80.0))) == len(told)
        assert [read(item)[0].kind for item in recording.state_at(79.0)].count("history") == 2
