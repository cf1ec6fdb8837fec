"""Sharing a device's reading amid what scripts, crashes and strangers do to files and descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ranktop.probes.nvml import NvmlDevice, Target
from ranktop.probes.nvml.followed import Followed
from ranktop.probes.nvml.processes import Entry
from ranktop.probes.nvml.sharing import Shared, Sharing
from ranktop.probes.reading import DeviceIdentity, DeviceProcess, DeviceReading

KEY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def share(folder: Path) -> Iterator[Callable[[], Sharing]]:
    """Make parts in the sharing of one device, as several processes would."""
    made: list[Sharing] = []

    def make() -> Sharing:
        made.append(Sharing(folder, KEY, 1.0, time.monotonic))
        return made[-1]

    yield make
    for sharing in made:
        sharing.close()


def told(reading: DeviceReading, entries: list[Entry] | None) -> Shared:
    return Shared(
        version=1, pid=1, stamp=time.monotonic(), identity=DeviceIdentity(), reading=reading, detail=None,
        entries=entries,
    )  # fmt: skip


def descriptor_of(path: Path) -> int:
    inode = path.stat().st_ino
    return next(n for n in map(int, os.listdir("/proc/self/fd")) if n > 2 and inode_of(n) == inode)


def inode_of(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return -1


def test_a_file_of_the_scripts_under_the_locks_number_is_left_alone(
    share: Callable[[], Sharing], folder: Path, tmp_path: Path
) -> None:
    sharing = share()
    assert sharing.reads()
    number = descriptor_of(folder / f"nvml-{KEY}.lock")
    # As os.closerange does, and then the script opens a file of its own.
    own = os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
    os.dup2(own, number)
    os.close(own)
    child = os.fork()
    if child == 0:
        os._exit(0 if inode_of(number) == (tmp_path / "checkpoint").stat().st_ino else 1)
    assert os.waitpid(child, 0)[1] == 0, "a forked child has lost its file"
    assert sharing.reads(), "the lock is taken again"
    with (tmp_path / "checkpoint").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Nobody else has locked it.
    sharing.close()
    os.close(number)


def test_a_reader_whose_lock_file_is_gone_locks_the_one_that_others_find(
    share: Callable[[], Sharing], folder: Path
) -> None:
    first, second = share(), share()
    assert first.reads()
    (folder / f"nvml-{KEY}.lock").unlink()
    assert second.reads()
    assert not first.reads(), "two of them read"
    second.close()
    first.reads()
    assert first.reads()


def test_what_a_former_reader_has_left_is_not_taken_for_the_new_ones(
    share: Callable[[], Sharing], folder: Path
) -> None:
    """After a reboot the clock begins anew: what was written before may look fresh."""
    (folder / f"nvml-{KEY}.json").write_bytes(msgspec.json.encode(told(DeviceReading(used=7), None)))
    reader, other = share(), share()
    assert reader.reads()
    assert not other.reads()
    assert other.news() is None
    reader.tell(told(DeviceReading(used=8), None))
    news = other.news()
    assert news is not None
    assert news.reading.used == 8


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"unknown":' * 50_000, b'{"unknown":' + b"[" * 500_000], ids=["[", "{", "{["]
)
def test_a_file_that_is_nested_without_end_is_no_news(
    share: Callable[[], Sharing], folder: Path, content: bytes
) -> None:
    (folder / f"nvml-{KEY}.json").write_bytes(content)
    assert share().news() is None


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_folder_that_others_may_write_to_is_not_used(share: Callable[[], Sharing], folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert share().reads()
    assert share().reads(), "each for itself"
    assert list(folder.iterdir()) == []


FULL = f"""
import os, resource, sys, time
from pathlib import Path
from ranktop.probes.nvml.sharing import Shared, Sharing
from ranktop.probes.reading import DeviceIdentity, DeviceReading
sharing = Sharing(Path(sys.argv[1]), "{KEY}", 1.0, time.monotonic)
assert sharing.reads()
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
sharing.tell(Shared(1, os.getpid(), time.monotonic(), DeviceIdentity(), DeviceReading(), None, None))
os._exit(0)
"""


def test_nothing_is_left_of_a_reading_that_the_disk_has_no_room_for(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", FULL, str(folder)], check=True, timeout=30)
    assert [path.name for path in folder.iterdir()] == [f"nvml-{KEY}.lock"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 50


def test_the_readers_own_process_is_never_the_followers() -> None:
    """The list may have gone between the reading and what is told of it."""
    reading = DeviceReading(used=9, processes=(DeviceProcess(1, 5),), process_used=5, process_pid=1)
    own = Followed(told(reading, None), (2,)).reading(time.monotonic())
    assert (own.used, own.process_used, own.process_pid, own.processes) == (9, None, None, None)
    assert {"process_used", "process_pid", "processes"} <= own.reasons.keys()


def test_a_probe_closed_while_it_finds_its_device_lets_go_of_the_lock(folder: Path) -> None:
    asked, answer = threading.Event(), threading.Event()

    def locate() -> Target:
        asked.set()
        answer.wait(10)
        return Target(uuids=(f"GPU-{KEY}",))

    probe = NvmlDevice(locate, share=folder)
    assert asked.wait(10)
    thread = next(thread for thread in threading.enumerate() if thread.name == "ranktop-nvml")
    probe.close()
    answer.set()
    thread.join(10)
    assert not thread.is_alive()
    mine = Sharing(folder, KEY, 1.0, time.monotonic)
    assert mine.reads()
    mine.close()


def test_torchs_own_trouble_is_not_said_to_be_pynvmls() -> None:
    def locate() -> Target:
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`")

    probe = NvmlDevice(locate)
    deadline = time.monotonic() + 10
    while "device" not in (reading := probe.read()).reasons or reading.state == "pending":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    probe.close()
    assert (reading.state, reading.reasons["device"]) == (
        "unavailable",
        "torch can't tell the device: CUDA error: device-side assert triggered",
    )
