"""Ending within a second, whatever hangs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
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
        code = app.run()
    finally:
        asked.set()
        if app.source is not None:
            with contextlib.suppress(Exception):
                app.source.close()
        done.set()
    return app.return_code or 0 if code is None else code


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
