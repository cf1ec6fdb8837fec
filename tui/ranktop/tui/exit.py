"""Ending within a second, whatever hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ranktop.tui.terminal.driver import leave
from ranktop.tui.terminal.kind import kind_of

if TYPE_CHECKING:
    from ranktop.tui.app import RanktopApp

PATIENCE: Final = 0.8
"""Seconds between the wish to quit and leaving by force."""


def guarded(app: RanktopApp) -> int:
    """Run the application and return its exit code.

    A terminal that no longer reads, or a source that hangs while closing, would keep the process alive: after
    ``PATIENCE`` seconds the terminal's settings are put back and the process leaves without waiting.
    """
    settings = _terminal_settings()
    asked = threading.Event()
    done = threading.Event()
    codes: list[int] = []

    def note(code: int) -> None:
        codes.append(code)
        asked.set()

    app.on_quit = note
    threading.Thread(target=_watch, args=(asked, done, codes, settings), daemon=True, name="ranktop-exit").start()
    try:
        # Without mouse reports the terminal's own selection works, and a slow link carries no movements.
        code = app.run(mouse=False)
    finally:
        asked.set()
        if app.source is not None:
            with contextlib.suppress(Exception):
                app.source.close()
        done.set()
    return app.return_code or 0 if code is None else code


def end_on_signals(end: Callable[[int], None]) -> None:
    """Call ``end`` with the shell's exit code when the process is told to go, so that the terminal is put back."""
    loop = asyncio.get_running_loop()
    # SIGABRT from outside; a library that aborts, like one that crashes, leaves no time for anything.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT):
        # Only the main thread's loop can; elsewhere the program around it decides.
        with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
            loop.add_signal_handler(number, end, 128 + number)


def _watch(asked: threading.Event, done: threading.Event, codes: list[int], settings: list[object] | None) -> None:
    asked.wait()
    if done.wait(PATIENCE):
        return
    put_back(settings)
    os._exit(codes[0] if codes else 1)


def put_back(settings: list[object] | None) -> None:
    """Put the terminal back without waiting for it; it may refuse."""
    import termios

    output = sys.__stdout__.fileno() if sys.__stdout__ else 1
    with contextlib.suppress(OSError, termios.error):
        # What nobody has read is thrown away, so that the last words fit; CAN ends a sequence that is cut in half.
        termios.tcflush(output, termios.TCOFLUSH)
    blocking = True
    with contextlib.suppress(OSError):
        blocking = os.get_blocking(output)
        os.set_blocking(output, False)
        os.write(output, b"\x18" + leave(kind_of()).encode())
    with contextlib.suppress(OSError):
        os.set_blocking(output, blocking)  # the shell has the same terminal
    if settings is not None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, settings)  # type: ignore[arg-type]


def _terminal_settings() -> list[object] | None:
    if not sys.__stdin__ or not sys.__stdin__.isatty():
        return None
    import termios

    with contextlib.suppress(termios.error):
        return list(termios.tcgetattr(0))
    return None
