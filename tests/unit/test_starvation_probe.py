"""How long a thread waits for a CPU: as the kernel counts it, and with a real rival on the same CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranktop.probes.starvation import StarvationProbe, native_id

SECOND = 10**9
COUNTED = Path("/proc/self/schedstat").exists()


class Kernel:
    """A folder of tasks and a clock that the test moves."""

    def __init__(self, tasks: Path) -> None:
        self.tasks = tasks
        self.now = 50.0
        self.probe = StarvationProbe(tasks, lambda: self.now)

    def say(self, text: str, thread: int | None = None) -> None:
        folder = self.tasks / str(native_id(thread))
        folder.mkdir(exist_ok=True)
        (folder / "schedstat").write_text(text)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_the_share_is_of_the_time_between_two_readings(kernel: Kernel) -> None:
    kernel.say(f"9 {5 * SECOND} 3\n")
    assert kernel.probe.read(None) is None
    shares = []
    for waited, passed in ((5, 1.0), (6, 4.0), (9, 1.0), (8, 1.0)):
        kernel.say(f"9 {waited * SECOND} 3\n")
        kernel.now += passed
        shares.append(kernel.probe.read(None))
    assert shares == [0.0, 0.25, 1.0, 0.0]


def test_two_readings_at_once_say_the_same(kernel: Kernel) -> None:
    kernel.say("9 0 3\n")
    kernel.probe.read(None)
    kernel.say(f"9 {SECOND} 3\n")
    kernel.now += 2.0
    assert kernel.probe.read(None) == 0.5
    kernel.now += 0.001
    assert kernel.probe.read(None) == 0.5


@pytest.mark.parametrize("text", [None, "", "0 0 0\n", "9 x 3\n", "9"])
def test_what_the_kernel_does_not_tell_is_unknown(kernel: Kernel, text: str | None) -> None:
    for _ in range(2):
        if text is not None:
            kernel.say(text)
        assert kernel.probe.read(None) is None
        kernel.now += 1.0


def test_another_thread_begins_anew(kernel: Kernel) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(60,))
    thread.start()
    try:
        kernel.say("9 0 3\n")
        kernel.probe.read(None)
        kernel.say(f"9 {SECOND} 3\n", thread.ident)
        kernel.now += 1.0
        assert kernel.probe.read(thread.ident) is None
        kernel.say(f"9 {2 * SECOND} 3\n", thread.ident)
        kernel.now += 2.0
        assert kernel.probe.read(thread.ident) == 0.5
    finally:
        done.set()
        thread.join()
    assert kernel.probe.read(thread.ident) is None, "it has ended"


@pytest.fixture
def hogs() -> Iterator[int]:
    """Processes that keep one CPU busy, the one that this thread is on."""
    before = os.sched_getaffinity(0)
    cpu = min(before)
    os.sched_setaffinity(0, {cpu})
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        yield cpu
    finally:
        for process in processes:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not COUNTED, reason="this kernel does not count (no schedstat)")
def test_a_thread_beside_others_on_its_cpu_is_starved(hogs: int) -> None:
    probe = StarvationProbe()
    probe.read(threading.get_ident())
    deadline = time.monotonic() + 60
    share: float | None = None
    while share is None or share < 0.5:
        assert time.monotonic() < deadline, share
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
        share = probe.read(threading.get_ident())
    assert share <= 1.0


@pytest.mark.skipif(not COUNTED, reason="this kernel does not count (no schedstat)")
def test_a_thread_that_wants_no_cpu_is_not_starved(hogs: int) -> None:
    probe = StarvationProbe()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(60,))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        share: float | None = None
        while share is None or share > 0.01:
            assert time.monotonic() < deadline, share
            share = probe.read(thread.ident)
    finally:
        done.set()
        thread.join()


def test_threads_that_a_script_replaced_have_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    another = threading.get_ident() + 1  # the main thread needs no search
    monkeypatch.setattr(threading, "enumerate", lambda: [object()])
    assert native_id(another) is None
    assert StarvationProbe().read(another) is None
