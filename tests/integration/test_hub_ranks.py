"""Ranks that die, fork or never say goodbye: what the hub says of them, and that they are not held up."""

from __future__ import annotations

import os
import signal

import pytest
from hub_harness import TALK, Node

from ranktop.wire.schema import Card, End, Sample


@pytest.mark.parametrize(
    ("script", "how", "code", "detail"),
    [
        ("os.kill(os.getpid(), 9)", "signal", 9, "SIGKILL"),
        ("os.kill(os.getpid(), 11)", "signal", 11, "SIGSEGV"),
        ("os._exit(3)", "exit", 3, "exit code 3"),
        ("os._exit(0)", "exit", 0, "exit code 0"),
    ],
)
def test_rank_that_dies_without_a_word_is_accounted_for(
    node: Node, script: str, how: str, code: int, detail: str
) -> None:
    watcher_of = node.connected(0)  # keeps the hub from being alone
    process = node.run(TALK + "sys.stdin.readline()\n" + script)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    watcher = node.viewer()
    watcher.wait_for(lambda body: isinstance(body, Card) and body.rank == 3)
    process.stdin.write("\n")
    process.stdin.flush()
    ended = watcher.wait_for(lambda body: isinstance(body, End))
    assert ended.body == End(rank=3, how=how, code=code, detail=detail)
    assert (ended.header.pid, ended.header.restart) == (process.pid, 0)
    assert process.wait(10) == (-code if how == "signal" else code)
    assert watcher_of.connected
    late = node.viewer()
    assert late.wait_for(lambda body: isinstance(body, End)).body == ended.body


def test_end_that_the_rank_tells_itself_stays(node: Node) -> None:
    node.connected(0)
    process = node.run(
        TALK + "publisher.send(End(rank=3, how='exception', detail='ValueError: x'))\n"
        "publisher.close()\nos.kill(os.getpid(), 9)"
    )
    process.wait(15)
    watcher = node.viewer()
    watcher.wait_for(lambda body: isinstance(body, End))
    # The hub takes another process's end for certain only after this one's: once it is told, nothing is to come.
    other = node.run("connect(4)\nos._exit(1)")
    other.wait(15)
    watcher.wait_for(lambda body: isinstance(body, End) and body.rank == 4)
    assert [body for body in watcher.bodies(End) if body.rank == 3] == [
        End(rank=3, how="exception", detail="ValueError: x")
    ]


FORK = """
publisher = connect(0)
publisher.send(Sample(rank=0, step=1))
pid = os.fork()
if pid == 0:
    publisher.send(Sample(rank=0, step=666))
    publisher.pump()
    publisher.close()
    sys.exit(5)
start = time.monotonic()
while True:
    done, status = os.waitpid(pid, os.WNOHANG)
    publisher.pump()
    if done:
        break
    assert time.monotonic() - start < 10, "the forked child hangs"
    time.sleep(0.005)
assert os.waitstatus_to_exitcode(status) == 5
assert publisher._owner == os.getpid()
publisher.send(Sample(rank=0, step=2))
publisher.close(5)
print(publisher.dropped)
"""


def test_rank_that_dies_before_its_hub_is_up_is_told_of(node: Node) -> None:
    process = node.run("""
publisher = Publisher(JOB, 3, os.getpid(), 0, DIRECTORY)
publisher.send(Card(job=JOB, rank=3, pid=os.getpid()))
publisher.pump()
publisher.send(End(rank=3, how="exception", code=1, detail="NameError: x"))
publisher.close()
print(publisher.dropped)
""")
    assert process.communicate(timeout=15)[0] == "0\n"
    watcher = node.viewer()
    ended = watcher.wait_for(lambda body: isinstance(body, End))
    assert ended.body == End(rank=3, how="exception", code=1, detail="NameError: x")
    assert [body.rank for body in watcher.bodies(Card)] == [3]


@pytest.mark.parametrize("stopped", [False, True])
def test_process_that_never_closes_its_publisher_exits_at_once(node: Node, stopped: bool) -> None:
    node.connected(1)
    hub = node.hub()
    process = node.run(
        TALK + "sys.stdin.readline()\nfor step in range(3000):\n"
        "    publisher.send(Sample(rank=3, step=step, phase='x' * 1000))\nprint('end', flush=True)"
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    if stopped:
        os.kill(hub, signal.SIGSTOP)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "end\n"
    assert process.wait(5) == 0


def test_forked_child_neither_publishes_nor_hangs(node: Node) -> None:
    node.connected(1)
    process = node.run(FORK)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "0\n")
    watcher = node.viewer()
    watcher.wait_for(lambda body: isinstance(body, Sample) and body.step == 2)
    assert 666 not in [body.step for body in watcher.bodies(Sample)]
