"""One authenticated connection to the far side: asks it for jobs, forwards a hub's socket, knows whether it lives."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from ranktop.tui.remote.explain import explain
from ranktop.tui.remote.far import SHELL, FarError, Listing, listen_script, read_listing
from ranktop.tui.remote.place import PATIENCE, Place
from ranktop.tui.remote.ssh import Ssh, SshError, share
from ranktop.tui.remote.talk import Talk, pump

MOST_NOISE: Final = 1024 * 1024
"""Bytes that the start-up files of the far shell may print before the mark."""

MOST_LISTING: Final = 8 * 1024 * 1024

HELLO_SECONDS: Final = 25.0
"""How long a connection may take where nobody is asked anything."""

JOBS_SECONDS: Final = 30.0
"""... and ranktop there to list its jobs: it may lie on a slow network file system."""


class Connection:
    """A running ssh with a shell on the far side that answers line by line."""

    def __init__(self, ssh: Ssh, place: Place, *, person: bool, only_own: bool = False) -> None:
        """Start ssh; ``person``: somebody at the terminal can be asked. SshError."""
        self.ssh = ssh
        self._place = place
        self._token = f"ranktop-{secrets.token_hex(8)}"
        self._mark = self._token.encode() + b" "
        self.shared = share(ssh, place.control, only_own=only_own)
        self.talk = Talk(person=person)
        self._news = threading.Condition()
        self._hello = self._over = False
        self._ponged = 0
        self._noise = 0
        self._answer: bytearray | None = None
        self._listed: tuple[bytes, int] | None = None
        self._rest = b""
        self._spec = ""
        self.heard = time.monotonic()
        """When the far side last said anything."""
        self.on_end: Callable[[], None] = lambda: None
        """Called on another thread when ssh has ended."""
        command = ssh.command(SHELL, batch=not person, lead=self.shared.arguments)
        try:
            # A person is asked by way of the terminal, which another session would not have.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.talk.write_end,
                start_new_session=not person, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise SshError(f"ssh cannot be started: {error.strerror}") from None
        finally:
            self.talk.start()
        place.note_ssh(self._process.pid)
        self._send(listen_script(ssh, self._token))
        threading.Thread(target=self._read, daemon=True, name="ranktop-ssh").start()

    # -- what the far side says ------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError), self._process.stdout as stdout:
            pump(stdout.fileno(), self._take)
        with self._news:
            self._over = True
            self._news.notify_all()
        self.on_end()

    def _take(self, data: bytes) -> None:
        with self._news:
            self.heard = time.monotonic()
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > MOST_LISTING:
                self._noise += len(self._rest)
                self._rest = b""
            for line in lines:
                self._line(line)
            self._news.notify_all()

    def _line(self, line: bytes) -> None:
        _, marked, word = line.partition(self._mark)
        if not marked:
            self._noise += 0 if self._hello else len(line)
            if self._answer is not None and len(self._answer) <= MOST_LISTING:
                self._answer += line + b"\n"
            return
        order, _, value = word.decode(errors="replace").partition(" ")
        if order == "hello":
            self._hello = True
        elif order == "pong":
            self._ponged = _number(value, 0)
        elif order == "begin":
            self._answer = bytearray()
        elif order == "end" and self._answer is not None:
            self._listed = bytes(self._answer), _number(value, 255)
            self._answer = None

    def _send(self, data: bytes) -> bool:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            return self._process.stdin.write(data) == len(data)
        return False

    # -- what is asked of it ---------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether ssh runs and the far shell has not ended."""
        return not self._over and self._process.poll() is None

    def wait_for_shell(self, seconds: float | None) -> None:
        """Wait until the far shell answers; None: as long as a person needs. FarError."""
        with self._news:
            ready = self._news.wait_for(lambda: self._hello or self._over or self._noise > MOST_NOISE, seconds)
            if self._hello:
                self.talk.quiet()
                return
            if self._noise > MOST_NOISE:
                raise FarError(f"the start-up files of the shell on {self.ssh.target.words} print without end", "final")
        if not ready:
            raise FarError(f"{self.ssh.target.words} did not answer within {seconds:.0f} s (timed out)")
        raise self.failure()

    def failure(self) -> FarError:
        """Return why ssh has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        kind, line = explain(self.talk.finish(), self.ssh.target)
        if self._process.returncode != 255 and not self._hello and "failed" in line:
            line = f"the shell on {self.ssh.target.words} ended at once: may commands be run there?"
        return FarError(line, kind)

    def jobs(self, seconds: float = JOBS_SECONDS) -> Listing:
        """Return the jobs of the far side; FarError."""
        with self._news:
            self._listed = None
        self.talk.forget()
        if not self._send(b"jobs\n"):
            raise self.failure()
        with self._news:
            answered = self._news.wait_for(lambda: self._listed is not None or self._over, seconds)
            listed = self._listed
        if listed is None:
            if answered:
                raise self.failure()
            raise FarError(f"ranktop on {self.ssh.target.words} did not list its jobs within {seconds:.0f} s")
        said = self.talk.until(f"{self._token} end")
        return read_listing(*listed, said, self.ssh, version("ranktop"))

    def forward(self, remote: str) -> None:
        """Have a Unix socket of the far side appear as ``Place.socket``; FarError."""
        self._place.unlink_socket()
        spec = f"{self._place.socket}:{remote}"
        if self.shared.theirs:
            self._place.note_theirs(self.shared, spec)
        if not self.shared.control("forward", "-L", spec):
            if not self.alive:
                raise self.failure()
            _, line = explain(self.talk.said(), self.ssh.target)
            raise FarError(f"ssh cannot forward the hub's socket: {line}")
        self._spec = spec

    def stop_forwarding(self) -> None:
        """Let the forwarded socket go; the connection stays."""
        if self._spec:
            self.shared.control("cancel", "-L", self._spec, seconds=PATIENCE)
            self._spec = ""
            self._place.forget_theirs()
        self._place.unlink_socket()

    def ping(self, number: int) -> bool:
        """Ask for a sign of life; False when ssh has gone."""
        return self._send(b"ping %d\n" % number)

    def answered(self, number: int) -> bool:
        """Tell whether that sign has come."""
        return self._ponged >= number

    def close(self) -> None:
        """End it at once."""
        if self.shared.theirs:
            self.stop_forwarding()
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(OSError):
            self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._place.note_ssh(None)
        self._place.unlink_socket()


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else otherwise
