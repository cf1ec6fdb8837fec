"""A second user of the same machine, with an account of his own: every attempt is refused."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_harness import PREAMBLE, Node, fresh_node, pump, sample, until

from ranktop.tui.session.receiver import HubSource
from ranktop.wire.codec import decode_batch, encode_ask
from ranktop.wire.endpoints import AGENTS_SOCKET, VIEWERS_SOCKET, find_jobs, is_listening
from ranktop.wire.peers import is_trusted, user_at
from ranktop.wire.schema import Ask, Sample

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="making an account needs root"),
    pytest.mark.skipif(shutil.which("useradd") is None, reason="useradd is not installed"),
]

# Imported before the user is changed: the interpreter may lie where only its owner may read.
AS_OTHER = (
    PREAMBLE
    + """
import fcntl, json, signal, socket, zmq, encodings.idna
from ranktop.wire import codec, endpoints
from ranktop.wire.schema import Ack, Ask, Batch, Header, Sample
user = int(sys.argv[2])
os.setgroups([]); os.setgid(user); os.setuid(user)
def say(what):
    print(json.dumps(what), flush=True)
def tries(what, attempt):
    try:
        return [what, repr(attempt())[:80]]
    except OSError:
        return None
"""
)


@pytest.fixture(scope="module")
def other() -> Iterator[int]:
    """The uid of a real account that is made for these tests."""
    name = f"rt{os.getpid()}"
    made = subprocess.run(["useradd", "--no-create-home", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"useradd: {made.stderr.strip()}")
    try:
        yield pwd.getpwnam(name).pw_uid
    finally:
        subprocess.run(["userdel", name], capture_output=True, check=False)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with fresh_node(monkeypatch) as made:
        # As /tmp is: anybody may enter, nobody may touch what is another's.
        made.directory.parent.parent.chmod(0o1777)
        yield made


def told(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


LOOK = """
run, state, hub = DIRECTORY.parent, Path(sys.argv[3]), int(sys.argv[4])
def connect(path):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(path))
def lock():
    with open(DIRECTORY / "hub.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
done = [tries(f"list {place}", lambda: os.listdir(place)) for place in (run, DIRECTORY, state)]
for name in endpoints.JOB_DIRECTORY_FILES:
    path = DIRECTORY / name
    done += [tries(f"stat {name}", path.stat), tries(f"read {name}", path.read_bytes), tries(f"rm {name}", path.unlink),
             tries(f"connect {name}", lambda: connect(path)), tries(f"chmod {name}", lambda: path.chmod(0o777))]
for path in sys.argv[5:]:
    done += [tries(f"read {path}", Path(path).read_bytes), tries(f"rm {path}", Path(path).unlink)]
done += [tries("lock", lock), tries("kill", lambda: os.kill(hub, signal.SIGTERM)),
         tries("write", lambda: (DIRECTORY / "x").write_text("x")), tries("rename", lambda: run.rename(f"{run}.mine"))]
done += [tries(f"/proc {name}", (Path("/proc") / str(hub) / name).read_bytes) for name in ("environ", "maps", "mem")]
done += [tries("/proc fd", lambda: os.listdir(f"/proc/{hub}/fd"))]
say([what for what in done if what])
"""


def test_another_user_reaches_nothing_of_a_job(node: Node, other: int) -> None:
    publisher = node.connected()
    publisher.send(sample(1))
    state = Path(os.environ["RANKTOP_STATE_DIR"])
    state.parent.chmod(0o755)
    recordings = until(lambda: [str(path) for path in state.glob("*.ranktop*")])
    hub = node.hub()
    assert told(node.run(AS_OTHER + LOOK, str(other), str(state), str(hub), *recordings)) == []
    assert {oct(path.stat().st_mode & 0o777) for path in state.iterdir()} == {"0o600"}
    assert oct(state.stat().st_mode & 0o777) == "0o700"
    assert node.hub() == hub
    publisher.send(sample(2))
    node.viewer().wait_for(lambda body: isinstance(body, Sample) and body.step == 2)


PUSH = """
context = zmq.Context()
agents, viewers = (context.socket(zmq.DEALER) for _ in range(2))
agents.connect(f"ipc://{DIRECTORY}/agents.sock")
viewers.connect(f"ipc://{DIRECTORY}/viewers.sock")
agents.send_multipart([codec.encode_header(Header("sample", 0, int(sys.argv[3]), 0, 2**40)),
                       codec.encode_body(Sample(rank=0, step=666))])
viewers.send(codec.encode_ask(Ask(wait=0)))
say([bool(agents.poll(700)), bool(viewers.poll(100))])
"""


def test_the_kernels_word_on_who_connects_holds_where_modes_do_not(node: Node, other: int) -> None:
    publisher = node.connected()
    publisher.send(sample(1))
    for path in (node.directory.parent, node.directory, *node.directory.glob("*.sock")):
        path.chmod(0o777)
    assert told(node.run(AS_OTHER + PUSH, str(other), str(os.getpid()))) == [False, False]
    for path in (node.directory, node.directory.parent):
        path.chmod(0o700)
    raw = node.socket(VIEWERS_SOCKET)
    raw.send(encode_ask(Ask(wait=0)))
    assert raw.poll(10_000)
    assert decode_batch(raw.recv()).refused == 0, "connections are no messages that were lost"
    assert f"a connection of user {other}" in (node.directory / "hub.log").read_text()
    viewer = node.viewer()
    viewer.wait_for(lambda body: isinstance(body, Sample))
    assert {body.step for body in viewer.bodies(Sample)} == {1}


IMPERSONATE = """
for place in (DIRECTORY.parent, DIRECTORY):
    if sys.argv[3] == "rename" and place == DIRECTORY.parent:
        place.rename(f"{place}.was")
    place.mkdir()
    place.chmod(0o777)
context = zmq.Context()
routers = {}
for name in ("agents.sock", "viewers.sock"):
    routers[name] = context.socket(zmq.ROUTER)
    routers[name].bind(f"ipc://{DIRECTORY}/{name}")
    (DIRECTORY / name).chmod(0o777)
say("there")
batch = codec.encode_batch(Batch(hub="evil", job=JOB, now=1.0, snapshot=True, last=0))
answers = {"agents.sock": codec.encode_ack(Ack(hub="evil", seq=2**40)), "viewers.sock": batch}
while True:
    for name, router in routers.items():
        if router.poll(20):
            router.send_multipart([router.recv_multipart()[0], answers[name]])
"""


def test_who_puts_himself_into_the_hubs_place_is_found_out(node: Node, other: int) -> None:
    """In a directory where anybody may rename: an agent and a viewer that are connected come back to another hub."""
    publisher = node.connected()
    source = HubSource(node.directory)
    until(lambda: source.drain())
    node.directory.parent.parent.chmod(0o777)
    until(lambda: (node.directory / "job.json").exists())
    stranger = node.run(AS_OTHER + IMPERSONATE, str(other), "rename")
    assert told(stranger) == "there"
    hub = publisher._hub

    def say() -> str:
        publisher.send(sample(3))
        return pump(publisher).problem

    until(lambda: "refused" in say(), 30)
    assert publisher._hub == hub
    until(lambda: not source.drain() and "refused" in source.link().detail, 30)
    assert source.link().state == "lost"
    assert f"served by user {other}" in source.link().detail
    source.close()
    assert not is_listening(node.directory, AGENTS_SOCKET)
    found = find_jobs()
    assert found.jobs == []
    assert "belongs to user rt" in found.problems[0]
    stranger.kill()
    stranger.wait()
    shutil.rmtree(node.directory.parent)
    Path(f"{node.directory.parent}.was").rename(node.directory.parent)


VICTIM = """
os.environ["XDG_RUNTIME_DIR"] = ""
for line in sys.stdin:
    if line.strip():
        os.environ["RANKTOP_RUN_DIR"] = line.strip()
    else:
        os.environ.pop("RANKTOP_RUN_DIR", None)
    place = endpoints._candidates()[0]
    publisher = Publisher(JOB, 0, os.getpid(), 0, place / JOB.id)
    began = time.monotonic()
    publisher.send(Card(job=JOB, rank=0))
    publisher.pump()
    publisher.send(Sample(rank=0, step=1))
    publisher.close(0.5)
    say([publisher.problem, time.monotonic() - began, endpoints.find_jobs().problems])
"""


def test_a_run_directory_that_another_has_taken_before_costs_one_line(node: Node, other: int) -> None:
    """``/tmp/ranktop-UID`` of a user who has not come yet, made by somebody else; and one named for two users."""
    place = Path(f"/tmp/ranktop-{other}")
    elsewhere = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
    victim = node.run(AS_OTHER + VICTIM, str(other))
    assert victim.stdin is not None

    def look(named: str = "") -> str:
        assert victim.stdin is not None
        victim.stdin.write(f"{named}\n")
        victim.stdin.flush()
        problem, took, problems = told(victim)
        assert took < 5
        assert problem in problems
        assert "\n" not in problem
        return str(problem)

    def taken(kind: str) -> str:
        if kind == "directory":
            place.mkdir()
            place.chmod(0o777)
        elif kind == "link":
            os.chown(elsewhere, other, other)
            place.symlink_to(elsewhere)
        elif kind == "pipe":
            os.mkfifo(place, 0o666)
        else:
            place.write_text("")
        os.chown(place, 1, 1, follow_symlinks=False)
        try:
            return look()
        finally:
            (place.rmdir if kind == "directory" else place.unlink)()

    try:
        assert "belongs to user daemon: refused; set RANKTOP_RUN_DIR" in taken("directory")
        assert "is a symbolic link: refused" in taken("link")
        assert "is not a directory" in taken("pipe")
        assert "is not a directory" in taken("file")
        assert os.listdir(elsewhere) == []
        node.directory.parent.mkdir(mode=0o700)
        assert "belongs to user root: refused" in look(str(node.directory.parent))
    finally:
        victim.kill()
        victim.wait(10)
        shutil.rmtree(elsewhere)


@pytest.mark.parametrize(
    ("address", "user"),
    [("localhost:0:0:77", 0), ("localhost:1000:1000:5", 1000), ("localhost", None), ("127.0.0.1", None), ("", None),
     ("::1", None), ("x:-1:0:0", None), ("localhost:1:2:3:4", None)],
)  # fmt: skip
def test_a_peers_user_is_read_from_its_address(address: str, user: int | None) -> None:
    assert user_at(address) == user
    assert is_trusted(user) == (user in (None, 0))
