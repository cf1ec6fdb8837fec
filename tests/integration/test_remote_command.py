"""``ranktop watch``, ``status TARGET`` and fetched recordings as a person or a script runs them, over a real sshd."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hub_harness import JOB, Node, pump, sample, until
from sshd import Server, needs_sshd, server

from ranktop.agent.publisher import Publisher
from ranktop.tui.remote.connection import Connection
from ranktop.tui.remote.far import FarError
from ranktop.tui.remote.fetch import fetch_quietly, fetch_recording
from ranktop.tui.remote.place import Place
from ranktop.tui.remote.ssh import Ssh
from ranktop.tui.remote.target import parse_target
from ranktop.wire.endpoints import job_directory
from ranktop.wire.schema import Card, Job

pytestmark = needs_sshd

COMMAND = (sys.executable, "-m", "ranktop.tui.cli")
EMPTY = '{"schema": 1, "ranktop": "%s", "wire": %d, "host": "far", "jobs": []}'


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "far", tmp_path / "far" / "run") as made:
        yield made


@pytest.fixture
def home_of(tmp_path: Path, node: Node) -> Iterator[Server]:
    """The machine that has the node's jobs."""
    with server(tmp_path / "far", node.directory.parent) as made:
        yield made


def jobs(far: Server, target: str = "far") -> str:
    """Return what a person is told instead of the jobs of the far side; empty when there is nothing to tell."""
    place = Place()
    connection = None
    try:
        connection = Connection(Ssh(parse_target(target), config=str(far.config)), place, person=False)
        connection.wait_for_shell(20)
        connection.jobs()
    except FarError as error:
        return str(error)
    finally:
        if connection is not None:
            connection.close()
        place.close()
    return ""


def far_says(far: Server, answer: str) -> None:
    far.ranktop(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")


def test_what_is_wrong_with_the_connection_is_one_line(far: Server) -> None:
    assert "127.0.0.1 refuses the connection" in jobs(far)
    far.start()
    far_says(far, EMPTY % ("9.9.9", 1))
    assert jobs(far) == ""
    assert jobs(far, "nowhere.invalid") == (
        "the name nowhere.invalid is not known: check it, the network, and Host in ~/.ssh/config"
    )
    far.know("other")
    assert jobs(far) == (
        f"host key of [127.0.0.1]:{far.port} has changed: somebody may be in between; if it was set up anew: "
        f"ssh-keygen -R '[127.0.0.1]:{far.port}'"
    )
    (far.folder / "known").unlink()
    assert "host key of far is not known here, or was refused" in jobs(far)
    far.know("host")
    far.configure("Host *", "  NoSuchOption yes")
    assert "ssh refuses" in jobs_or_ssh(far)
    far.configure()
    (far.folder / "authorized").write_text("")
    assert jobs(far).startswith(f"permission denied by {far.user}@127.0.0.1: ssh could not log in")


def jobs_or_ssh(far: Server) -> str:
    from ranktop.tui.remote.ssh import SshError

    try:
        return jobs(far)
    except SshError as error:
        return str(error)


def test_what_is_wrong_with_ranktop_there_is_one_line(far: Server) -> None:
    far.start(path="/usr/bin:/bin")
    assert jobs(far).startswith("no ranktop on far (looked for it in PATH, in python3 and beside a running job)")
    far.stop()
    far.start()
    far.ranktop("#!/bin/sh\necho \"Error: No such command 'jobs'.\" >&2\nexit 2\n")
    assert "cannot list its jobs: upgrade ranktop there" in jobs(far)
    far_says(far, EMPTY % ("0.0.1", 0))
    assert "ranktop on far is 0.0.1 (wire schema 0)" in jobs(far)
    assert "far is older: upgrade ranktop there" in jobs(far)
    far_says(far, EMPTY % ("7.0.0", 7))
    assert jobs(far).endswith("this side is older: upgrade ranktop here")
    far.stop()
    far.start("ForceCommand echo This account is currently not available.; exit 1")
    assert "the shell on far ended at once" in jobs(far)


def test_the_python_of_the_jobs_own_hub_serves_where_nothing_else_is_found(home_of: Server, node: Node) -> None:
    node.connected()
    home_of.start(path="/usr/bin:/bin")
    assert jobs(home_of) == ""


NOISE = """\
#!/bin/sh
printf '\\033[31mWelcome to the cluster\\n*** maintenance on Friday ***'
echo 'quota: 97 %' >&2
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


def run(far: Server, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words, "-F", str(far.config)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="backslashreplace", timeout=60, check=False,
        env={**os.environ, "RANKTOP_RUN_DIR": "/nonexistent", **more},
    )  # fmt: skip


def test_what_the_shells_start_up_prints_is_no_part_of_the_answer(home_of: Server, node: Node) -> None:
    noise = home_of.folder / "noise"
    noise.write_text(NOISE)
    noise.chmod(0o755)
    publisher = node.connected()
    publisher.send(sample(3))
    publisher.pump()
    home_of.start(f"ForceCommand {noise}")
    assert jobs(home_of) == ""
    done = run(home_of, "status", "far", "--json", "--job", JOB.name)
    assert (done.returncode, done.stderr) == (0, "")
    (told,) = json.loads(done.stdout)["jobs"]
    assert told["id"] == JOB.id


def test_output_errors_and_exit_code_are_those_of_the_far_side(far: Server) -> None:
    far.start()
    far.ranktop(
        "#!/bin/sh\nfor word; do printf '<%s>' \"$word\"; done\nprintf '\\377\\0\\n'\n"
        "printf 'ranktop: careful\\033[2J\\n' >&2\nexit 3\n"
    )
    done = run(far, "status", "far", "--job", 'it\'s; $(rm) "x"')
    assert done.returncode == 3
    assert done.stderr == "ranktop: careful\n"
    assert done.stdout == '<status><--job=it\'s; $(rm) "x">\\xff\0\n'


def test_ctrl_c_ends_both_sides(far: Server) -> None:
    far.start()
    mark = far.folder / "pid"
    far.ranktop(f"#!/bin/sh\necho $$ >{mark}.new; mv {mark}.new {mark}\nsleep 600\n")
    with subprocess.Popen(
        [*COMMAND, "status", "far", "-F", far.config], stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as process:  # fmt: skip
        until(mark.exists)
        far_pid = int(mark.read_text())
        asleep = psutil.Process(far_pid).children()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(10) == 130
    until(lambda: not psutil.pid_exists(far_pid) and not any(one.is_running() for one in asleep))


def test_a_recording_is_fetched_whole_over_one_connection(far: Server, capfd: pytest.CaptureFixture[str]) -> None:
    far.start()
    content = os.urandom(300_000)
    (far.folder / "data").write_bytes(content)
    listing = json.loads(EMPTY % ("0.1.0", 1))
    listing["jobs"] = [{"id": "ab12", "name": "train", "state": "past", "bytes": len(content), "socket": None}]
    far.ranktop(
        f"#!/bin/sh\n[ $1 = jobs ] && echo '{json.dumps(listing)}' && exit\n"
        f'[ "$*" = "export ab12 --format recording --output -" ] && exec cat {far.folder / "data"}\n'
        "echo 'ranktop: no such job' >&2; exit 3\n"
    )
    told: list[str] = []
    way = Ssh(parse_target("far"), config=str(far.config))
    path = fetch_recording(way, "ab12", say=told.append)
    assert path.read_bytes() == content
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert told == ["fetching the recording of ab12 from far, 0.3 MiB"]
    log = (far.folder / "sshd.log").read_text()
    assert log.count("Accepted publickey") == 1
    with pytest.raises(FarError, match="far gave no recording of zz"):
        fetch_recording(way, "zz", say=told.append)
    # Beside a dashboard nothing may be written to the terminal.
    capfd.readouterr()
    (quiet := far.folder / "quiet").mkdir()
    assert fetch_quietly(way, "ab12", (), quiet).read_bytes() == content
    with pytest.raises(FarError, match="far gave no recording of zz"):
        fetch_quietly(way, "zz", (), quiet)
    assert capfd.readouterr() == ("", "")


class Terminal:
    """``ranktop watch`` in a pty of 80 x 24."""

    def __init__(self, *words: str, term: str = "xterm-256color") -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=term, LC_ALL="C.UTF-8", PYTHONUTF8="1")
            os.execv(sys.executable, [*COMMAND, "watch", *words])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.status: int | None = None

    def read(self, seconds: float = 0.05) -> bytes:
        got = b""
        with contextlib.suppress(OSError):
            if select.select([self.fd], [], [], seconds)[0]:
                got = os.read(self.fd, 65536)
        os.write(self.fd, b"\x1b[5;7R" * got.count(b"\x1b[6n"))
        return got

    def until(self, *texts: str, seconds: float = 20.0) -> str:
        """Read until all of these have appeared; returns what was read."""
        seen, limit = b"", time.monotonic() + seconds
        while not all(text.encode() in seen for text in texts):
            assert time.monotonic() < limit, f"{texts} did not appear: {seen[-600:]!r}"
            seen += self.read()
        return seen.decode(errors="replace")

    def ended(self, seconds: float = 10.0) -> int | None:
        limit = time.monotonic() + seconds
        while self.status is None and time.monotonic() < limit:
            if self.fd >= 0:
                self.read()
            else:
                time.sleep(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def hang_up(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.fd >= 0:
            self.hang_up()


def test_a_terminal_that_cannot_place_text_gets_the_table_of_the_far_side(far: Server) -> None:
    far.start()
    far.ranktop("#!/bin/sh\nprintf 'asked for %s\\n' \"$*\"\n")
    tty = Terminal("far", "-F", str(far.config), "--job", "ab12", term="dumb")
    try:
        tty.until("asked for status --job=ab12")
        assert tty.ended() == 0
    finally:
        tty.close()


def left(config: Path) -> list[str]:
    """Return the command lines of ssh that use this configuration."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if line.startswith(("ssh ", "/usr/bin/ssh ")) and str(config) in line]


def folder_of(config: Path) -> Path:
    """Return the private folder of the viewer that uses this configuration."""
    (found,) = {match for line in left(config) if (match := re.search(r" -S (/tmp/ranktop-ssh-\w+)/c ", line))}
    folder = Path(found[1])
    assert folder.is_dir()
    return folder


def test_choosing_watching_losing_and_quitting(home_of: Server, node: Node) -> None:
    first = node.connected()
    first.send(sample(41))
    first.pump()
    other = Job(id="b2c3d4", name="other", world_size=1)
    second = Publisher(other, 0, os.getpid(), 0, job_directory(other.id))
    home_of.start()
    tty = None
    try:
        second.send(Card(job=other, rank=0, pid=os.getpid(), node="here"))
        until(lambda: pump(second).connected, 30.0)
        tty = Terminal("far", "-F", str(home_of.config))
        tty.until("several jobs on far: which one?", "other", "train")
        os.write(tty.fd, b"j\r")
        tty.until("far", "live", "train")
        folder = folder_of(home_of.config)
        home_of.stop()
        tty.until("link lost", "refuses the connection")
        home_of.start()
        tty.until("live")
        pressed = time.monotonic()
        os.write(tty.fd, b"q")
        assert tty.ended() == 0
        assert time.monotonic() - pressed < 3.0  # one of its own, the rest for a busy machine
        assert left(home_of.config) == []
        assert not folder.exists()
    finally:
        if tty is not None:
            tty.close()
        second.close(0)
        end_hub(other.id)


def end_hub(job_id: str) -> None:
    from ranktop.tui.simulate import end_hub as end

    end(job_directory(job_id))


def test_all_is_asked_once_before_the_dashboard_and_nothing_is_left_when_the_terminal_goes(
    home_of: Server, node: Node
) -> None:
    node.connected()
    home_of.start()
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "open sesame", "-f", str(home_of.folder / "user")], check=True)
    (home_of.folder / "known").unlink()
    tty = Terminal("far", "-F", str(home_of.config))
    try:
        asked = tty.until("Are you sure you want to continue connecting")
        os.write(tty.fd, b"yes\n")
        asked += tty.until("Enter passphrase for key")
        assert "\x1b[?1049h" not in asked
        os.write(tty.fd, b"open sesame\n")
        tty.until("live")
        folder = folder_of(home_of.config)
        tty.hang_up()
        assert tty.ended() is not None
        until(lambda: not left(home_of.config) and not folder.exists())
    finally:
        tty.close()


def test_what_is_wrong_is_told_without_a_dashboard(far: Server) -> None:
    far.start()
    far.know("other")
    tty = Terminal("far", "-F", str(far.config), "-o", "StrictHostKeyChecking=yes")
    try:
        text = tty.until("ssh-keygen -R")
        assert tty.ended() == 1
        assert "\x1b[?1049h" not in text
        assert "Traceback" not in text
    finally:
        tty.close()
    done = run(far, "watch", "far")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`ranktop status far --json` is for scripts" in done.stderr
    done = run(far, "watch", "-oProxyCommand=x")
    assert done.returncode == 2
