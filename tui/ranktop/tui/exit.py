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
    app.on_quit = asked.set
    threading.Thread(target=_watch, args=(asked, done, settings), daemon=True, name="ranktop-exit").start()
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
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Only the main thread's loop can; elsewhere the program around it decides.
        with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
            loop.add_signal_handler(number, end, 128 + number)


def _watch(asked: threading.Event, done: threading.Event, settings: list[object] | None) -> None:
    asked.wait()
    if done.wait(PATIENCE):
        return
    if settings is not None:
        import termios

        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, settings)  # type: ignore[arg-type]
    with contextlib.suppress(OSError):
        # Leave the alternate screen, show the cursor, stop mouse reports; the terminal may refuse.
        os.set_blocking(2, False)
        os.write(2, b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l")
    os._exit(0)


def _terminal_settings() -> list[object] | None:
    if not sys.__stdin__ or not sys.__stdin__.isatty():
        return None
    import termios

    with contextlib.suppress(termios.error):
        return list(termios.tcgetattr(0))
    return None
