"""A real hub process, real ranks and real viewers, and what happens when one of them is killed or stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psutil
import pytest
from hub_harness import JOB, TALK, Node, card, end, fresh_node, hubs, pump, sample, until

from ranktop.agent import lifecycle
from ranktop.agent import publisher as publisher_module
from ranktop.agent.lifecycle import ensure_hub
from ranktop.tui.outcome import outcome_of
from ranktop.tui.session import receiver as receiver_module
from ranktop.wire import endpoints
from ranktop.wire.recordings import list_recordings
from ranktop.wire.schema import Card, End, History, Mark, Sample


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice a dead hub within a fraction of a second."""
    monkeypatch.setattr(publisher_module, "HUB_SILENCE", 0.3)
    monkeypatch.setattr(receiver_module, "LOST_AFTER", 0.1)
    monkeypatch.setattr(receiver_module, "ASK_WAIT", 0.2)


def test_late_viewer_is_told_everything_and_then_follows(node: Node) -> None:
    publisher = node.connected()
    publisher.send(sample(1))
    publisher.send(sample(2))
    first = node.viewer()
    first.wait_for(lambda body: isinstance(body, Sample) and body.step == 2)
    late = node.viewer()
    late.wait_for(lambda body: isinstance(body, Sample) and body.step == 2)
    assert [type(event.body) for event in late.received()] == [Card, History, Sample, Sample]
    (reset,) = late.resets()
    assert (reset.job, reset.replaced) == (JOB, False)
    publisher.send(sample(3))
    for watcher in (first, late):
        received = watcher.wait_for(lambda body: isinstance(body, Sample) and body.step == 3)
        assert 0 <= received.age < 5
        assert watcher.source.link().state == "live"
        assert len(watcher.resets()) == 1


def start_hub(barrier: Barrier, directory: str) -> None:
    barrier.wait()
    assert ensure_hub(JOB, Path(directory), wait=15)


def test_ranks_that_race_start_one_hub(node: Node) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    racers = [context.Process(target=start_hub, args=(barrier, str(node.directory))) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(30)
    assert [racer.exitcode for racer in racers] == [0] * 8
    (pid,) = hubs(node.directory)
    (job,) = endpoints.find_jobs().jobs
    assert (job.id, job.hub_pid, job.world_size) == (JOB.id, pid, JOB.world_size)


def test_hub_is_detached_private_and_holds_nothing_of_the_rank(node: Node) -> None:
    before = set(psutil.Process().children())
    with open(os.devnull, "rb") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        node.connected()
    hub = psutil.Process(node.hub())
    assert set(psutil.Process().children()) <= before  # no child, no zombie
    assert os.getsid(hub.pid) != os.getsid(0)
    targets = {os.readlink(f"/proc/{hub.pid}/fd/{number}") for number in os.listdir(f"/proc/{hub.pid}/fd")}
    files = {target for target in targets if target.startswith("/") and target != "/dev/null"}
    assert files == {str(node.directory / "hub.lock"), str(node.directory / "hub.log")}
    assert os.readlink(f"/proc/{hub.pid}/fd/0") == "/dev/null"
    for path in (node.directory, *node.directory.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path
    assert not hub.net_connections("inet")


def test_environment_of_the_job_stays_with_the_job(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    node.connected()
    assert "WANDB_API_KEY" not in psutil.Process(node.hub()).environ()


@pytest.mark.usefixtures("impatient")
def test_killed_hub_is_replaced_with_a_mark_and_gets_the_card_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_CARD_SPACING", 0.0)
    publisher, watcher = node.connected(), node.viewer()
    publisher.send(sample(1))
    watcher.wait_for(lambda body: isinstance(body, Sample))
    first = node.hub()
    os.kill(first, signal.SIGKILL)
    step = 1

    def told_of_the_new_hub() -> bool:
        nonlocal step
        step += 1
        publisher.send(sample(step))
        publisher.pump()
        cards = watcher.bodies(Card)
        return len(cards) >= 2 and any(mark.what == "hub-replaced" for mark in watcher.bodies(Mark))

    until(told_of_the_new_hub)
    assert node.hub() != first
    assert [reset.replaced for reset in watcher.resets()] == [False, True]
    assert watcher.source.link().state == "live"
    assert publisher.connected
    mark = next(mark for mark in watcher.bodies(Mark) if mark.what == "hub-replaced")
    assert mark.detail == "the hub before this one was killed; only the recording has what it held"
    watcher.wait_for(lambda body: isinstance(body, Sample) and body.step >= step)


def test_viewer_of_a_killed_hub_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "LOST_AFTER", 0.1)
    monkeypatch.setattr(receiver_module, "ASK_WAIT", 0.2)
    node.connected()
    watcher = node.viewer()
    watcher.wait_for(lambda body: isinstance(body, Card))
    os.kill(node.hub(), signal.SIGKILL)
    until(lambda: watcher.drain() and watcher.source.link().state == "lost")
    assert "the hub is gone" in watcher.source.link().detail
    assert len(watcher.resets()) == 1
    # As where a scheduler kills it with the job: nobody is left who would start another one.
    monkeypatch.setattr(receiver_module, "OVER_AFTER", 0.1)
    until(lambda: watcher.drain() and watcher.source.link().state == "ended")
    assert watcher.source.link().detail.endswith(f"see how that ended: ranktop replay {JOB.id}")


VIEWER = """
source = HubSource(DIRECTORY)
steps, snapshots = [], 0
print("ready", flush=True)
while not steps or steps[-1] != int(sys.argv[2]):
    source.poll(0.1)
    for event in source.drain():
        if isinstance(event, Reset):
            snapshots += 1
        elif isinstance(event.body, Sample):
            steps.append(event.body.step)
            if len(steps) == 1:
                print("following", flush=True)
import json
print(json.dumps([steps, snapshots, source.link().lost]), flush=True)
"""


def test_stopped_viewer_slows_nobody_and_misses_nothing(node: Node) -> None:
    publisher = node.connected()
    publisher.send(sample(0))
    process = node.run(VIEWER, "6000")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "following\n"]
    hub = psutil.Process(node.hub())
    os.kill(process.pid, signal.SIGSTOP)
    before = hub.memory_info().rss
    times = []
    for step in range(1, 6001):
        start = time.perf_counter()
        publisher.send(sample(step, padding=1000))
        publisher.pump()
        times.append(time.perf_counter() - start)
        if step % 20 == 0:
            time.sleep(0.005)
    until(lambda: pump(publisher)._waiting_since is None)
    growth = hub.memory_info().rss - before
    os.kill(process.pid, signal.SIGCONT)
    steps, snapshots, lost = json.loads(process.stdout.readline())
    assert publisher.dropped == 0
    assert statistics.median(times) < 0.002
    assert growth < 64 * 2**20  # 6000 samples of 1.6 kB, and the ring's 32 MiB at most
    assert (snapshots, lost) == (1, 0)
    assert steps == list(range(6001))


def test_stopped_hub_slows_nobody_and_is_not_doubled(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "HUB_SILENCE", 0.2)
    publisher = node.connected()
    hub = node.hub()
    os.kill(hub, signal.SIGSTOP)
    times = []
    for step in range(3000):
        start = time.perf_counter()
        publisher.send(sample(step, padding=1000))
        times.append(time.perf_counter() - start)
    publisher.send(card())
    publisher.send(End(rank=0, how="exit", code=0))
    until(lambda: not pump(publisher).connected)
    publisher.pump()
    assert hubs(node.directory) == [hub]
    assert statistics.median(times) < 0.002
    assert publisher.dropped > 1000
    os.kill(hub, signal.SIGCONT)
    until(lambda: pump(publisher).connected and not publisher._queue)
    watcher = node.viewer()
    watcher.wait_for(lambda body: isinstance(body, End))
    assert watcher.bodies(Sample)[-1].step == 2999  # the oldest went, the newest came


def test_fork_at_the_wrong_moment_does_not_keep_the_lock(node: Node) -> None:
    endpoints.secure_directory(node.directory.parent)
    endpoints.secure_directory(node.directory)
    lock = endpoints.take_lock(node.directory)
    assert lock is not None
    lifecycle._held.add(lock)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # lives until the parent has looked
        os._exit(0)
    os.close(read)
    try:
        lifecycle._release(lock)
        again = until(lambda: endpoints.take_lock(node.directory) or 0)
        os.close(again)
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_hub_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_node(monkeypatch, linger=0.5) as node:
        process = node.run(TALK + "publisher.send(End(rank=3, how='exit', code=0))\npublisher.close()")
        assert process.wait(15) == 0
        pid = until(lambda: hubs(node.directory))[0]
        watcher = node.viewer()
        watcher.wait_for(lambda body: isinstance(body, End))
        until(lambda: not psutil.pid_exists(pid))
        assert list(node.directory.parent.iterdir()) == []
        assert endpoints.find_jobs() == endpoints.Found()
        monkeypatch.setattr(receiver_module, "LOST_AFTER", 0.1)
        until(lambda: watcher.drain() and watcher.source.link().state == "ended")


def test_hub_stays_while_a_rank_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_node(monkeypatch, linger=0.2) as node:
        process = node.run(TALK + "sys.stdin.readline()")
        assert process.stdout is not None
        process.stdout.readline()
        hub = psutil.Process(node.hub())
        with pytest.raises(psutil.TimeoutExpired):
            hub.wait(1.0)
        end(process)
        until(lambda: not hubs(node.directory))


def test_hub_ends_cleanly_when_told_and_not_with_its_terminal(node: Node) -> None:
    node.connected()
    hub = psutil.Process(node.hub())
    hub.send_signal(signal.SIGHUP)
    hub.send_signal(signal.SIGINT)
    viewer = node.viewer()
    viewer.wait_for(lambda body: isinstance(body, Card))
    hub.send_signal(signal.SIGTERM)
    # Its rank, this process, lives: it would only start another hub.
    viewer.wait_for(lambda body: isinstance(body, Mark) and body.what == "told")
    assert hub.is_running()
    hub.send_signal(signal.SIGTERM)
    until(lambda: not hubs(node.directory))
    assert not node.directory.exists()


def test_hub_that_is_told_to_go_with_its_rank_records_how_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_node(monkeypatch, linger=60.0) as node:
        process = node.run(TALK + "sys.stdin.readline()")
        assert process.stdout is not None
        process.stdout.readline()
        viewer = node.viewer()
        os.kill(node.hub(), signal.SIGTERM)
        viewer.wait_for(lambda body: isinstance(body, Mark) and body.what == "told")
        process.terminate()
        until(lambda: not hubs(node.directory))
        (entry,) = list_recordings()
        assert outcome_of(entry.path, 1).words == "stopped (SIGTERM)"
        end(process)


@pytest.mark.usefixtures("impatient")
def test_removed_directory_is_made_anew(node: Node) -> None:
    publisher = node.connected()
    first = node.hub()
    endpoints.remove_job_directory(node.directory)
    until(lambda: first not in hubs(node.directory))

    def back() -> bool:
        publisher.send(sample(1))
        publisher.pump()
        return bool(endpoints.find_jobs().jobs) and publisher.connected

    until(back)


def test_hub_starts_whatever_lies_in_the_working_directory(node: Node) -> None:
    work = node.directory.parent.parent / "work"
    work.mkdir()
    for name in ("msgspec", "zmq", "ranktop", "socket"):
        (work / f"{name}.py").write_text("raise ImportError('shadowed')")
    script = """
import sys
sys.path = [entry for entry in sys.path if entry]
from pathlib import Path
from ranktop.agent.lifecycle import ensure_hub
from ranktop.wire.schema import Job
assert ensure_hub(Job(id='a1b2c3', name='x', world_size=1), Path(sys.argv[1]), wait=15)
"""
    subprocess.run([sys.executable, "-c", script, str(node.directory)], cwd=work, check=True, timeout=30)
    assert node.hub()


def test_relative_search_path_of_the_job_reaches_the_hub_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["lib", "/abs"]))
    entries = lifecycle._environment()["PYTHONPATH"].split(os.pathsep)
    assert entries[:2] == [os.path.abspath("lib"), "/abs"]
    assert str(Path(lifecycle.__file__).parents[2]) in entries
