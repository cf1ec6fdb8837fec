"""A job's hub by way of a real sshd: what is followed, what is lost and comes back, what is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hub_harness import Node, end_hub, sample, until
from sshd import Server, needs_sshd, server

from ranktop.agent.publisher import Publisher
from ranktop.tui.remote import source as source_module
from ranktop.tui.remote import tunnel as tunnel_module
from ranktop.tui.remote.connection import Connection
from ranktop.tui.remote.place import Place
from ranktop.tui.remote.source import RemoteSource
from ranktop.tui.remote.ssh import Ssh, control
from ranktop.tui.remote.target import parse_target
from ranktop.tui.remote.tunnel import Tunnel
from ranktop.tui.session.source import Received, Reset, Whole
from ranktop.wire.schema import Sample

pytestmark = needs_sshd


@pytest.fixture
def far(tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(tunnel_module, "FIRST_WAIT", 0.1)
    with server(tmp_path / "far", node.directory.parent) as made:
        yield made


class Following:
    """A viewer of a job on the far side."""

    def __init__(self, ssh: Ssh) -> None:
        self.place = Place()
        connection = Connection(ssh, self.place, person=False)
        connection.wait_for_shell(20)
        listing = connection.jobs()
        self.tunnel = Tunnel(ssh, self.place, connection, listing)
        self.tunnel.follow(listing.jobs[0])
        self.source = RemoteSource(self.tunnel)
        self.events: list[Received | Reset | Whole] = []

    def drain(self) -> list[Received | Reset | Whole]:
        self.source.poll(0.02)
        self.events += self.source.drain()
        return self.events

    def steps(self) -> list[int]:
        self.drain()
        samples = [event.body for event in self.events if isinstance(event, Received)]
        return [body.step for body in samples if isinstance(body, Sample)]

    def state(self) -> tuple[str, str]:
        self.drain()
        link = self.source.link()
        return link.state, link.detail

    def resets(self) -> int:
        return len([event for event in self.events if isinstance(event, Reset)])


@contextlib.contextmanager
def following(ssh: Ssh) -> Iterator[Following]:
    made = Following(ssh)
    try:
        yield made
    finally:
        started = time.monotonic()
        made.source.close()
        assert time.monotonic() - started < 1.5
    assert not made.place.path.exists()
    assert ssh_of(made.place.path) == []


def ssh_of(place: Path) -> list[str]:
    """Return the command lines that name a viewer's folder: ssh, and who cleans up."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(place) in line:
            found.append(line)
    return found


def way(far: Server, target: str = "far") -> Ssh:
    return Ssh(parse_target(target), config=str(far.config))


def say(publisher: Publisher, *steps: int) -> None:
    """Have the hub hear of these steps."""
    for step in steps:
        publisher.send(sample(step))
    publisher.pump()


def reach(viewer: Following, last: int) -> list[int]:
    return until(lambda: steps if last in (steps := viewer.steps()) else [], 20.0)


def test_what_was_missed_while_there_was_no_connection_comes_back(far: Server, node: Node) -> None:
    """Not once more, not without a gap in it: the stream goes on where it was, ages as they are."""
    publisher = node.connected()
    far.start()
    with following(way(far)) as viewer:
        say(publisher, *range(5))
        assert reach(viewer, 4) == list(range(5))
        assert viewer.state() == ("live", "")
        assert viewer.source.link().place == "far"
        far.stop()
        until(lambda: viewer.state()[0] == "lost")
        say(publisher, *range(5, 10))
        until(lambda: "refuses" in viewer.state()[1])
        state, detail = viewer.state()
        assert (state, detail.partition(": ")[2]) == (
            "lost",
            "127.0.0.1 refuses the connection: no ssh server at that port (-p)?",
        )
        assert viewer.steps() == list(range(5))
        far.start()
        assert reach(viewer, 9) == list(range(10))
        until(lambda: viewer.state() == ("live", ""))
        far.cut()
        say(publisher, 10, 11)
        assert reach(viewer, 11) == list(range(12))
        assert viewer.resets() == 1


def test_trouble_while_it_is_away_is_told_and_goes_when_mended(
    far: Server, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_module, "AUTH_WAIT", 0.2)
    publisher = node.connected()
    far.start()
    with following(way(far)) as viewer:
        until(lambda: viewer.state()[0] == "live")
        far.know("other")
        far.cut()
        until(lambda: "has changed" in viewer.state()[1])
        far.know("host")
        until(lambda: viewer.state()[0] == "live")
        allowed = far.folder / "authorized"
        keys = allowed.read_text()
        allowed.write_text("")
        far.cut()
        until(lambda: "permission denied" in viewer.state()[1])
        allowed.write_text(keys)
        until(lambda: viewer.state()[0] == "live")
        say(publisher, 1)
        assert reach(viewer, 1) == [1]
        # The lid of a laptop: its clock has stood still, and what ssh has is not to be waited for.
        generation = viewer.tunnel.standing().generation
        monkeypatch.setattr(tunnel_module, "_asleep", lambda: time.time())
        until(lambda: "was suspended" in viewer.state()[1])
        until(lambda: viewer.state()[0] == "live" and viewer.tunnel.standing().generation > generation)
        say(publisher, 2)
        assert reach(viewer, 2) == [1, 2]


def test_a_hub_that_is_silent_replaced_and_gone(far: Server, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three things that look alike from afar, none of which is the connection's fault."""
    monkeypatch.setattr(source_module, "OVERDUE", 1.6)
    monkeypatch.setattr(tunnel_module, "LIST_EVERY", 0.3)
    monkeypatch.setattr(tunnel_module, "SILENT", 1.6)
    monkeypatch.setattr(tunnel_module, "GONE", 6.0)
    publisher = node.connected()
    far.start()
    with following(way(far)) as viewer:

        def followed_another() -> bool:
            say(publisher, 2)
            viewer.drain()
            return viewer.resets() == 2

        say(publisher, 1)
        reach(viewer, 1)
        first = node.hub()
        os.kill(first, signal.SIGSTOP)
        try:
            said = "the hub does not answer, or slowly; the connection to its machine stands"
            until(lambda: viewer.state() == ("lost", said))
        finally:
            os.kill(first, signal.SIGCONT)
        until(lambda: viewer.state()[0] == "live")
        os.kill(first, signal.SIGKILL)
        # Its agents notice when nothing they send is acknowledged.
        until(followed_another, 20.0)
        reach(viewer, 2)
        publisher.close(1.0)
        monkeypatch.setattr(tunnel_module, "GONE", 0.5)
        end_hub(node.directory)
        until(lambda: viewer.state()[0] == "ended", 20.0)
        assert viewer.state()[1].startswith(
            "the hub is gone, with its job it seems; see how that ended: ranktop replay "
        )


def test_the_users_own_shared_connection_is_used_and_left_as_it_was(far: Server, node: Node) -> None:
    publisher = node.connected()
    far.start()
    shared = far.folder / "shared"
    # No key that the server knows: without the user's connection nobody gets in.
    far.configure("Host far", f"  ControlPath {shared}", f"  IdentityFile {far.folder / 'stranger'}")
    text = far.config.read_text().replace(f"  IdentityFile {far.folder / 'user'}\n", "")
    far.config.write_text(text)
    master = subprocess.Popen(
        ["ssh", "-F", far.config, "-M", "-N", "-i", far.folder / "user", "far"], stdin=subprocess.DEVNULL
    )
    try:
        until(shared.exists)
        with following(way(far)) as viewer:
            say(publisher, 1)
            reach(viewer, 1)
            assert viewer.tunnel.place.socket.exists()
            assert not viewer.tunnel.place.control.exists()
        assert control(str(shared), "check")
        assert master.poll() is None
    finally:
        master.terminate()
        master.wait(10)


def test_a_connection_that_the_configuration_keeps_stays_unless_it_is_half_open(
    far: Server, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_module, "PONG_SECONDS", 2.0)
    publisher = node.connected()
    far.start()
    shared = far.folder / "shared"
    far.configure("Host far", "  ControlMaster auto", f"  ControlPath {shared}", "  ControlPersist 60")
    try:
        with following(way(far)) as viewer:
            say(publisher, 1)
            reach(viewer, 1)
            # What a suspended laptop leaves: ssh here thinks that it is connected.
            stopped = [child for one in far.sessions() for child in (one, *one.children(recursive=True))]
            for process in stopped:
                process.suspend()
            say(publisher, 2)
            until(lambda: viewer.state()[0] == "lost")
            reach(viewer, 2)
            assert viewer.tunnel.place.control.exists()
            for process in stopped:
                process.resume()
        assert control(str(shared), "check")
    finally:
        assert control(str(shared), "exit")


def test_a_server_that_forbids_forwarding_is_told(far: Server, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_module, "LIST_EVERY", 0.2)
    monkeypatch.setattr(tunnel_module, "SILENT", 0.5)
    node.connected()
    far.start("AllowStreamLocalForwarding no")
    with following(way(far)) as viewer:
        until(lambda: "forbids to forward Unix sockets (AllowStreamLocalForwarding" in viewer.state()[1])
        assert viewer.state()[0] == "lost"


def test_by_way_of_a_jump_host(far: Server, node: Node) -> None:
    publisher = node.connected()
    far.start()
    far.configure("Host inner", "  HostName 127.0.0.1", "  ProxyJump far")
    with following(way(far, "inner")) as viewer:
        say(publisher, 1)
        reach(viewer, 1)
        assert len(far.sessions()) == 2
    until(lambda: not far.sessions())


VIEWER = """
import sys, time
from ranktop.tui.remote.connection import Connection
from ranktop.tui.remote.place import Place
from ranktop.tui.remote.ssh import Ssh
from ranktop.tui.remote.target import parse_target
place = Place()
connection = Connection(Ssh(parse_target("far"), config=sys.argv[1]), place, person=False)
connection.wait_for_shell(20)
connection.forward(f"{connection.jobs().jobs[0].directory}/viewers.sock")
print(place.path, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("theirs", [False, True])
def test_nothing_is_left_when_the_viewer_is_killed(far: Server, node: Node, theirs: bool) -> None:
    node.connected()
    far.start()
    shared = far.folder / "shared"
    if theirs:
        far.configure("Host far", "  ControlMaster auto", f"  ControlPath {shared}", "  ControlPersist 60")
    viewer = subprocess.Popen([sys.executable, "-c", VIEWER, far.config], stdout=subprocess.PIPE, text=True)
    with viewer:
        try:
            assert viewer.stdout is not None
            place = Path(viewer.stdout.readline().strip())
            assert (place / "viewers.sock").exists()
            assert (place.stat().st_mode & 0o777) == 0o700
        finally:
            viewer.kill()
    until(lambda: not place.exists() and not ssh_of(place), 10.0)
    if theirs:
        assert control(str(shared), "check")
        assert control(str(shared), "exit")
    until(lambda: not far.sessions(), 10.0)
