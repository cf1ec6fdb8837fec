"""Runs a command of ranktop on the far side and passes on what it prints and its exit code."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from ranktop.tui.cli import FAILED, fail
from ranktop.tui.remote.connection import MOST_NOISE
from ranktop.tui.remote.explain import explain
from ranktop.tui.remote.far import NOT_FOUND, SHELL, FarError, no_ranktop, once_script
from ranktop.tui.remote.ssh import Ssh, SshError
from ranktop.tui.remote.talk import Talk, pump
from ranktop.wire.codec import clean

SSH_FAILED: Final = 255
"""Exit code of ssh where it, and not the command, failed."""

Take = Callable[[bytes], None]


def run_far(
    ssh: Ssh, arguments: list[str], take: Take, *, person: bool = True, lead: tuple[str, ...] = (), quiet: bool = False
) -> int:
    """Run ``ranktop ARGUMENTS`` on the far side, give its standard output to ``take`` and return its exit code.

    Its standard error goes to ours, unless ``quiet``. FarError where it could not be run, SshError without a usable
    ssh.
    """
    ssh.check()
    token = f"ranktop-{secrets.token_hex(8)}"
    talk = Talk(person=person, token=None if quiet else f"{token} hello".encode())
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    try:
        process = subprocess.Popen(
            ssh.command(SHELL, batch=not person, lead=lead),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=talk.write_end, bufsize=0,
        )  # fmt: skip
    except OSError as error:
        raise SshError(f"ssh cannot be started: {error.strerror}") from None
    finally:
        talk.start()
    assert process.stdin is not None
    assert process.stdout is not None
    strip = _Strip(f"{token} hello\n".encode(), take)
    with process:
        try:
            with contextlib.suppress(OSError):
                process.stdin.write(once_script(ssh, token, arguments, columns))
            pump(process.stdout.fileno(), strip)
            code = process.wait()
        except BaseException:
            # Ctrl-C, a reader that has gone, a full disk: the far side ends when its input does.
            process.terminate()
            raise
        finally:
            process.stdin.close()
    said = talk.finish()
    if not strip.begun or code == SSH_FAILED:
        kind, line = explain(said, ssh.target)
        if code != SSH_FAILED and not said.strip():
            line = f"the shell on {ssh.target.words} ended at once: may commands be run there?"
        raise FarError(line, kind)
    if code == NOT_FOUND:
        raise FarError(no_ranktop(ssh), "final")
    return code if code >= 0 else 128 - code


def words(command: str, **flags: str | bool | None) -> list[str]:
    """Return a command's arguments: those of its flags that are set.

    >>> words("status", job="ab", json=True, fail_on=None)
    ['status', '--job=ab', '--json']
    """
    given = [(name.replace("_", "-"), value) for name, value in flags.items() if value not in (None, False)]
    return [command, *(f"--{name}" if value is True else f"--{name}={value}" for name, value in given)]


class _Strip:
    """Drops what the start-up files of the far shell print before the mark."""

    def __init__(self, mark: bytes, take: Take) -> None:
        self._mark, self._take = mark, take
        self._rest = b""
        self._noise = 0
        self.begun = False

    def __call__(self, data: bytes) -> None:
        if self.begun:
            self._take(data)
            return
        before, marked, after = (self._rest + data).partition(self._mark)
        if not marked:
            self._noise += len(data)
            if self._noise > MOST_NOISE:
                raise FarError("the start-up files of the shell there print without end", "final")
            self._rest = before[-len(self._mark) :]
            return
        self.begun = True
        if after:
            self._take(after)


def pass_on(ssh: Ssh, arguments: list[str]) -> int:
    """Run ``ranktop ARGUMENTS`` on the far side and return its exit code; output, errors and code are its own.

    What goes to a terminal is made harmless; what goes anywhere else is passed on byte by byte.
    """
    out = sys.stdout.buffer
    lines = _Lines() if sys.stdout.isatty() else None

    def write(data: bytes) -> None:
        (lines or out.write)(data)
        out.flush()

    try:
        code = run_far(ssh, arguments, write)
        if lines is not None:
            lines.close()
    except (FarError, SshError) as error:
        fail(clean(str(error)), FAILED)
    return code


class _Lines:
    """Writes lines to the terminal without what would steer it."""

    def __init__(self) -> None:
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            sys.stdout.write(clean(line.decode(errors="replace")) + "\n")
        if len(self._rest) > MOST_NOISE:
            # A line without end must not fill the memory here.
            self.close()
        sys.stdout.flush()

    def close(self) -> None:
        if self._rest:
            sys.stdout.write(clean(self._rest.decode(errors="replace")))
            sys.stdout.flush()
            self._rest = b""
