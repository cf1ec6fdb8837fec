"""How the hub learns that a process has ended: with pidfd, without, before and after the parent has collected it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator

import pytest
from hub_harness import until

from ranktop.agent.hub_watch import Gone, ProcessWatch


def fork(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    return pid


@pytest.fixture
def watch() -> Iterator[ProcessWatch]:
    made = ProcessWatch()
    yield made
    made.close()


@pytest.fixture
def without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse)


def exit_7() -> None:
    os._exit(7)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


CASES = [(exit_7, "exit", 7, "exit code 7"), (kill_self, "signal", 9, "SIGKILL")]


def held(child: Callable[[], None]) -> tuple[int, int]:
    """Fork a child that acts once the returned descriptor is closed."""
    read, write = os.pipe()

    def wait() -> None:
        os.close(write)
        os.read(read, 1)
        child()

    pid = fork(wait)
    os.close(read)
    return pid, write


@pytest.mark.parametrize(("child", "how", "code", "detail"), CASES)
def test_status_of_a_zombie_is_read(
    watch: ProcessWatch, child: Callable[[], None], how: str, code: int, detail: str
) -> None:
    pid, write = held(child)
    assert watch.watch(pid)
    assert watch.gone() == []
    os.close(write)
    assert select.select([watch.fileno()], [], [], 10)[0]
    assert watch.gone() == [Gone(pid, how, code, detail)]
    assert len(watch) == 0
    os.waitpid(pid, 0)


@pytest.mark.parametrize(("child", "how", "code", "detail"), CASES)
def test_status_of_a_collected_process_is_read_where_the_kernel_tells_it(
    watch: ProcessWatch, child: Callable[[], None], how: str, code: int, detail: str
) -> None:
    pid, write = held(child)
    assert watch.watch(pid)
    os.close(write)
    os.waitpid(pid, 0)
    (gone,) = watch.gone()
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    expected = (how, code, detail) if release >= (6, 15) else ("vanished", None, gone.detail)
    assert (gone.how, gone.code, gone.detail) == expected


@pytest.mark.usefixtures("without_pidfd")
@pytest.mark.parametrize(("child", "how", "code", "detail"), CASES)
def test_without_pidfd_a_zombie_is_found_by_looking(
    watch: ProcessWatch, child: Callable[[], None], how: str, code: int, detail: str
) -> None:
    pid, write = held(child)
    assert watch.watch(pid)
    assert watch.must_look
    assert watch.gone() == []
    os.close(write)
    assert until(watch.gone) == [Gone(pid, how, code, detail)]
    os.waitpid(pid, 0)


@pytest.mark.usefixtures("without_pidfd")
def test_without_pidfd_a_collected_process_has_vanished(watch: ProcessWatch) -> None:
    pid, write = held(exit_7)
    assert watch.watch(pid)
    os.close(write)
    os.waitpid(pid, 0)
    (gone,) = watch.gone()
    assert (gone.pid, gone.how, gone.code) == (pid, "vanished", None)
    assert not watch.must_look


def test_processes_that_are_not_there_or_not_ours_are_not_watched(watch: ProcessWatch) -> None:
    pid = fork(exit_7)
    os.waitpid(pid, 0)
    assert not watch.watch(pid)
    for impossible in (0, -1, 2**40, -(2**70)):
        assert not watch.watch(impossible)
    if os.geteuid() == 0:
        read, write = os.pipe()

        def become_another() -> None:
            os.setuid(1)
            os.write(write, b"x")
            signal.pause()

        other = fork(become_another)
        os.read(read, 1)
        assert not watch.watch(other)
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        os.close(read)
        os.close(write)
    assert len(watch) == 0
