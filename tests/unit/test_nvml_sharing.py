"""The ranks of one device on one host read it once; a reader that hangs, ends or stops holds up nobody."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, device, device_uuid
from nvml_stub.remote import Client

from ranktop.probes.nvml.sharing import Sharing

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]

KEY = device_uuid(0).removeprefix("GPU-")
GAP = 0.1
OPTIONS: dict[str, Any] = {"gap": GAP, "settle": 0.05, "deadline": 0.4, "retry": 0.05}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


def open_device_0(client: Client, folder: Path) -> None:
    client.tell("open", uuids=[device_uuid(0)], options={**OPTIONS, "share": str(folder)})


def job(stub: NvmlStub, start: Start, folder: Path, ranks: int = 3) -> list[Client]:
    """Processes that all read device 0, with a context of (rank + 1) GiB each."""
    stub.devices(device(0))
    clients = [start(stub) for _ in range(ranks)]
    sizes = (f"{client.process.pid}:{(n + 1) * GIB}" for n, client in enumerate(clients))
    stub.update({"d0.procs": ",".join(sizes)})
    for client in clients:
        open_device_0(client, folder)
    deadline = time.monotonic() + 10
    file = folder / f"nvml-{KEY}.json"
    readings = [client.read(0) for client in clients]
    # Each by its own id, out of the one list; the file is there once the reader has seen that it is wanted.
    while not file.exists() or any(reading["process_used"] is None for reading in readings):
        assert time.monotonic() < deadline, readings
        readings = [client.read(0) for client in clients]
    assert [reading["process_used"] for reading in readings] == [(n + 1) * GIB for n in range(ranks)]
    assert [reading["process_pid"] for reading in readings] == [client.process.pid for client in clients]
    assert {len(reading["processes"]) for reading in readings} == {ranks}
    return clients


def reader(clients: list[Client], folder: Path) -> tuple[Client, list[Client]]:
    """Return who reads the driver, and the others."""
    pid = json.loads((folder / f"nvml-{KEY}.json").read_text())["pid"]
    return next(c for c in clients if c.process.pid == pid), [c for c in clients if c.process.pid != pid]


def fresh(reading: dict[str, Any]) -> bool:
    return bool(reading["state"] == "ok" and reading["age"] < 2 * GAP)


def test_one_reads_for_all(nvml_stub: NvmlStub, nvml_client: Start, folder: Path) -> None:
    clients = job(nvml_stub, nvml_client, folder)
    for client in clients:
        # Detail and identity are the reader's too.
        told = client.told(0)
        assert told["detail"]["energy"] == 5_000_000.0
        assert (told["identity"]["name"], told["identity"]["driver"]) == ("NVIDIA Test 0", "570.86.15")
    started, calls = time.monotonic(), len(nvml_stub.calls())
    while time.monotonic() - started < 10 * GAP:
        for client in clients:
            client.read(0)
    rounds = 1 + (time.monotonic() - started) / GAP
    assert len(nvml_stub.calls()) - calls <= 12 * rounds, "more than one of them reads the driver"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_call_that_hangs_is_told_to_all_in_the_readers_words(
    nvml_stub: NvmlStub, nvml_client: Start, folder: Path
) -> None:
    clients = job(nvml_stub, nvml_client, folder)
    nvml_stub.update({"d0.nvmlDeviceGetTemperature.sleep": "forever"})
    deadline = time.monotonic() + 10
    readings: list[dict[str, Any]] = []
    while not readings or any(reading["state"] != "no answer" for reading in readings):
        assert time.monotonic() < deadline, readings
        readings = [client.read(0) for client in clients]
    for reading in readings:
        assert "nvmlDeviceGetTemperature" in reading["reasons"]["device"]
        assert reading["used"] is not None
    asked = [name for _, name in nvml_stub.calls() if name == "nvmlDeviceGetTemperature"]
    later = [client.until(0, lambda r: r["age"] > 1) for client in clients]
    assert {reading["state"] for reading in later} == {"no answer"}
    # Nobody else has run into the same call.
    assert [name for _, name in nvml_stub.calls() if name == "nvmlDeviceGetTemperature"] == asked


def test_another_takes_over_from_a_reader_that_is_killed(
    nvml_stub: NvmlStub, nvml_library: Path, nvml_client: Start, folder: Path
) -> None:
    nvml_stub.devices(device(0))
    first = Client(nvml_stub)
    try:
        open_device_0(first, folder)
        first.until(0, fresh)
        others = [nvml_client(nvml_stub) for _ in range(2)]
        for client in others:
            open_device_0(client, folder)
            deadline = time.monotonic() + 10
            while client.read(0)["state"] != "ok":
                first.read(0)
                assert time.monotonic() < deadline
    finally:
        first.process.kill()
        first.end()
    nvml_stub.update({"d0.util": 77})
    for client in others:
        client.until(0, lambda r: r["utilization"] == 77 and fresh(r), seconds=2)
    reader(others, folder)


def test_a_reader_that_is_stopped_does_not_stop_the_others(
    nvml_stub: NvmlStub, nvml_client: Start, folder: Path
) -> None:
    clients = job(nvml_stub, nvml_client, folder, ranks=2)
    stopped, (other,) = reader(clients, folder)
    os.kill(stopped.process.pid, signal.SIGSTOP)
    try:
        nvml_stub.update({"d0.util": 78})
        other.until(0, lambda r: r["utilization"] == 78 and fresh(r))
    finally:
        os.kill(stopped.process.pid, signal.SIGCONT)
    stopped.until(0, lambda r: r["utilization"] == 78)


def test_a_lost_device_is_lost_to_all_and_comes_back_to_all(
    nvml_stub: NvmlStub, nvml_client: Start, folder: Path
) -> None:
    clients = job(nvml_stub, nvml_client, folder, ranks=2)

    def all_are(state: str) -> None:
        deadline = time.monotonic() + 10
        while any(client.read(0)["state"] != state for client in clients):
            assert time.monotonic() < deadline

    nvml_stub.update({"d0.*.ret": 15})
    all_are("lost")
    nvml_stub.update({"d0.*.ret": None})
    all_are("ok")


def test_closing_takes_the_files_along_and_lets_another_read(
    nvml_stub: NvmlStub, nvml_client: Start, folder: Path
) -> None:
    clients = job(nvml_stub, nvml_client, folder, ranks=2)
    closed, (other,) = reader(clients, folder)
    assert closed.tell("close", probe=0)["seconds"] < 1
    nvml_stub.update({"d0.util": 79})
    other.until(0, lambda r: r["utilization"] == 79 and fresh(r), seconds=2)
    other.tell("close", probe=0)
    assert list(folder.iterdir()) == []


def _held(folder: Path, content: str | None) -> object:
    if content is not None:
        (folder / f"nvml-{KEY}.json").write_text(content)
    lock = (folder / f"nvml-{KEY}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


@pytest.mark.parametrize("content", [None, "", '{"version":', '{"version": 99}', "\0" * 100], ids=repr)
def test_a_file_that_is_of_no_use_is_not_waited_for_long(
    nvml_stub: NvmlStub, nvml_client: Start, folder: Path, content: str | None
) -> None:
    nvml_stub.devices(device(0))
    lock = _held(folder, content)
    client = nvml_client(nvml_stub)
    open_device_0(client, folder)
    client.until(0, fresh, seconds=5)
    assert lock is not None


@pytest.mark.parametrize("kind", ["missing", "a file", "a pipe in its place"])
def test_a_folder_that_can_not_be_used_costs_nothing(
    nvml_stub: NvmlStub, nvml_client: Start, folder: Path, kind: str
) -> None:
    nvml_stub.devices(device(0))
    where = folder / "sub"
    if kind == "a file":
        where.write_text("")
    elif kind == "a pipe in its place":
        where = folder
        os.mkfifo(folder / f"nvml-{KEY}.json")
    client = nvml_client(nvml_stub)
    open_device_0(client, where)
    client.until(0, fresh, seconds=5)


RANK_WITH_A_LOADER = """
import os, sys, time
from pathlib import Path
from ranktop.probes.nvml.sharing import Sharing
sharing = Sharing(Path(sys.argv[1]), sys.argv[2], 1.0, time.monotonic)
assert sharing.reads()
if os.fork() == 0:
    print("forked", flush=True)
    os.close(1)
sys.stdin.read()
"""


def test_a_lock_ends_with_its_process_and_not_with_the_last_of_its_children(folder: Path) -> None:
    # The data loader that the rank has forked outlives it: both wait for the end of their input, the rank is killed.
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK_WITH_A_LOADER, str(folder), KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert rank.stdin is not None
    assert rank.stdout is not None
    with rank.stdin, rank.stdout:
        assert rank.stdout.readline() == b"forked\n"
        mine = Sharing(folder, KEY, 1.0, time.monotonic)
        assert not mine.reads()
        rank.kill()
        rank.wait(timeout=10)
        assert mine.reads()
        mine.close()
