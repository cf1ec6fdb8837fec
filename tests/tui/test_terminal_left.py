"""However the dashboard ends, the terminal is as it was; however the terminal changes or ends, the dashboard copes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_link import Cell, ThrottledPty

SCRIPT = str(Path(__file__).with_name("link_dashboard.py"))
JOB = "llama8b"

HASH = re.compile("[0-9a-f]{32}")
MODES = re.compile(rb"\x1b\[\?(\d+)([hl])")


def command(ranks: int = 4, seconds: str = "2", trouble: str = "") -> list[str]:
    return [sys.executable, SCRIPT, str(ranks), seconds, "", trouble]


@contextlib.contextmanager
def terminals(*commands: list[str], size: tuple[int, int] = (80, 24)) -> Iterator[list[ThrottledPty]]:
    """Start the dashboard in several terminals at once, with nothing slow about them."""
    opened = [ThrottledPty(each, size, rate=1e9, delay=0.0) for each in commands]
    try:
        yield opened
    finally:
        for terminal in opened:
            terminal.close()


def modes_left(raw: bytes) -> set[int]:
    """Return the private modes that are not as a shell has them: the cursor (25) and wrapping (7) are on there."""
    state = {7: True, 25: True}
    for number, how in MODES.findall(raw):
        if number != b"2026":
            state[int(number)] = how == b"h"
    return {mode for mode, on in state.items() if on != (mode in (7, 25))}


ENDINGS = {
    "q": 0, "ctrl+c": 0, "TERM": 143, "HUP": 129, "INT": 130, "QUIT": 131, "ABRT": 134, "exception": 1,
}  # fmt: skip


def test_every_ending_puts_the_terminal_back() -> None:
    """An exception on a thread ends nothing, and is told."""
    commands = [command(trouble="thread" if how == "q" else "beat") for how in ENDINGS]
    with terminals(*commands) as opened:
        before = opened[0].settings()
        for how, terminal in zip(ENDINGS, opened, strict=True):
            terminal.until(lambda terminal=terminal: JOB in terminal.text(), 40)  # type: ignore[misc]
            assert modes_left(bytes(terminal.raw)) == {7, 25, 1049, 2004}
            if how == "q":
                terminal.press("x")
                terminal.until(lambda terminal=terminal: "trouble on a thread" in terminal.text())  # type: ignore[misc]
            if how in ("q", "ctrl+c", "exception"):
                terminal.press({"q": "q", "ctrl+c": "\x03", "exception": "x"}[how])
            else:
                os.kill(terminal.pid, getattr(signal, f"SIG{how}"))
        for (how, code), terminal in zip(ENDINGS.items(), opened, strict=True):
            assert terminal.ended() == code, how
            raw = bytes(terminal.raw)
            assert modes_left(raw) == set(), how
            assert terminal.settings() == before, how
            # Outside of the other screen nothing is left but what an exception had to say.
            rest = raw[raw.rindex(b"\x1b[?1049l") :]
            assert (b"trouble in the application" in rest) == (how == "exception")
            assert how == "exception" or len(rest) < 20


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash for its job control")
def test_stopped_and_brought_back() -> None:
    with terminals(["bash", "--norc", "-i"]) as (terminal,):
        terminal.press("PS1='shell> '; stty -a | md5sum\n")
        terminal.until(lambda: len(HASH.findall(terminal.text())) == 1)
        before = HASH.findall(terminal.text())
        terminal.press(" ".join(f"'{word}'" for word in command(seconds="0")) + "\n")
        terminal.until(lambda: JOB in terminal.text())
        picture = steady(terminal, 2.0)
        for _ in range(2):
            mark = len(terminal.raw)
            terminal.press("\x1a")
            terminal.until(lambda mark=mark: b"Stopped" in terminal.raw[mark:])  # type: ignore[misc]
            assert modes_left(bytes(terminal.raw)) - {2004} == set()  # bash itself has 2004 on while it waits
            mark = len(terminal.raw)
            terminal.press("stty -a | md5sum; fg\n")
            terminal.until(lambda mark=mark: b"\x1b[?1049h" in terminal.raw[mark:])  # type: ignore[misc]
            assert HASH.findall(terminal.raw[mark:].decode(errors="replace")) == before
            terminal.until(lambda: terminal.cells() == picture)
        child = int(
            subprocess.run(["pgrep", "-P", str(terminal.pid)], capture_output=True, text=True).stdout.split()[0]
        )
        # Stopped by somebody else, who cannot wait for it to leave the screen first.
        os.kill(child, signal.SIGSTOP)
        terminal.until(lambda: b"Stopped" in terminal.raw[-400:])
        terminal.press("fg\n")
        terminal.until(lambda: terminal.cells() == picture)
        terminal.press("j")  # one thread reads the keys, not two
        terminal.until(lambda: "▶    1" in terminal.text())
        terminal.press("q")
        terminal.until(lambda: terminal.raw.endswith(b"shell> "))
        assert modes_left(bytes(terminal.raw)) - {2004} == set()


@pytest.mark.parametrize("controls", [True, False])
def test_a_terminal_that_vanishes_ends_it(controls: bool) -> None:
    """As its controlling terminal (SIGHUP), and as one that only gives errors from then on."""
    master, slave = pty.openpty()
    os.set_blocking(slave, True)
    process = subprocess.Popen(
        [*(["setsid", "-c"] if controls else []), *command(seconds="inf")], stdin=slave, stdout=slave, stderr=slave,
        env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    try:
        seen = b""
        while JOB.encode() not in seen:
            seen += os.read(master, 65536)
            os.set_blocking(master, True)
        os.close(slave)
        os.close(master)
        began = time.monotonic()
        process.wait(10)
        assert time.monotonic() - began < 4  # a second of its own, the rest for a busy machine
        assert process.returncode == 129
    finally:
        process.kill()
        process.wait()


def test_a_blocked_terminal_is_left_as_the_shell_needs_it() -> None:
    """Nobody reads: the program leaves by force, and whoever shares the terminal finds it in blocking mode."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command(seconds="inf"), stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"}
    )
    try:
        seen = b""
        while JOB.encode() not in seen:
            seen += os.read(master, 65536)
        # The queue of the line is full from here on.
        os.set_blocking(slave, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(slave, b" " * 512)
        os.set_blocking(slave, True)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(6) == 143
        assert os.get_blocking(slave)
        # The kernel hands on what was written in its own time.
        until = time.monotonic() + 10
        while modes_left(seen) and time.monotonic() < until:
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65536)
        assert modes_left(seen) == set()
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def test_sizes_that_change_in_a_storm() -> None:
    """The picture is that of a terminal beside it, whose size has never changed: the job of both stands still."""
    with terminals(command(seconds="0"), command(seconds="0"), size=(100, 30)) as (terminal, calm):
        for one in (terminal, calm):
            one.until(lambda one=one: JOB in one.text(), 40)  # type: ignore[misc]
        for turn in range(40):
            for width, height in ((1, 1), (200, 3), (100, 30 + turn % 2), (100, 30)):
                terminal.resize(width, height)
            if turn % 10 == 0:
                time.sleep(0.05)
        picture = steady(calm, 2.0)
        terminal.until(lambda: terminal.cells() == picture)
        # Back before anybody could notice: what the terminal lost meanwhile is drawn again, and is the same.
        with terminal.lock:
            terminal.emulator.screen.reset()
        os.kill(terminal.pid, signal.SIGWINCH)
        terminal.until(lambda: terminal.cells() == picture)


def steady(terminal: ThrottledPty, silence: float) -> list[list[Cell]]:
    """Return the picture when nothing more has come for so many seconds: its job stands still."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < silence:
        if terminal.emulator.bytes != seen:
            seen, since = terminal.emulator.bytes, time.monotonic()
        time.sleep(0.02)
    return terminal.cells()


SENT = re.compile(rb"\x1b\[[\x30-\x3f]*[\x20-\x2f]*[\x40-\x7e]|\x1b.")
KINDS: dict[str, dict[str, str]] = {
    "linux": {}, "vt100": {"LC_ALL": "C"}, "screen": {"LC_ALL": "", "LC_CTYPE": "", "LANG": "C"},
    "xterm": {"NO_COLOR": "1", "COLORTERM": ""}, "xterm-color": {"COLORTERM": ""},
}  # fmt: skip


def test_kinds_of_terminals_get_what_they_know() -> None:
    opened = {
        term: ThrottledPty(command(), environment={"TERM": term, "COLORTERM": "", **more}, rate=1e9, delay=0.0)
        for term, more in KINDS.items()
    }
    try:
        for terminal in opened.values():
            terminal.until(lambda terminal=terminal: JOB in terminal.text(), 40)  # type: ignore[misc]
            terminal.press("?")
            terminal.until(lambda terminal=terminal: "Order and filter" in terminal.text())  # type: ignore[misc]
            terminal.press("q")
            assert terminal.ended() == 0
        sent = {term: SENT.findall(bytes(terminal.raw)) for term, terminal in opened.items()}
        colours = {term: {code for each in found if each.endswith(b"m") for code in each[2:-1].split(b";")}
                   for term, found in sent.items()}  # fmt: skip
        modern = re.compile(rb"\x1b\[([>?=<][\d;]*[^hl\d]|.*\$p)")
        for term in ("linux", "vt100", "screen"):
            assert not [each for each in sent[term] if modern.match(each)], term
        assert colours["vt100"] <= {b"", b"0", b"1", b"4", b"5", b"7"}
        assert not {code for code in colours["xterm"] if len(code) > 1 and code[:1] in b"3479"}
        for term in ("linux", "screen", "xterm-color"):
            assert not colours[term] & {b"38", b"48"}, term
        for term in ("vt100", "screen"):
            assert bytes(opened[term].raw).isascii(), term
        assert b"\x1b[2J\x1b[H\x1b[?1049l" in opened["xterm"].raw, "wiped for mosh, which has no other screen"
        assert opened["linux"].raw.rstrip(b"\x1b[?25h").endswith(b"\x1b[2J\x1b[H"), "wiped, without another screen"
    finally:
        for terminal in opened.values():
            terminal.close()
