"""Standard output: how wide it is, whether it has colours, and that a reader may leave. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys


def columns() -> int:
    """Return the cells of a line: those of the terminal, or of the one that a pipe's reader shares, or 80."""
    if os.environ.get("COLUMNS", "").isdigit():
        import shutil

        return max(20, shutil.get_terminal_size().columns)
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            return max(20, os.get_terminal_size(stream.fileno()).columns)  # type: ignore[union-attr]
    return 80


def colour() -> bool:
    """Say whether standard output is a terminal that shows colours and a user who wants them (no-color.org)."""
    out = sys.stdout  # None when it is closed
    return out is not None and out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(text: str) -> None:
    """Write to standard output. A reader that has read enough, such as ``head``, is no error."""
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        from ranktop.budget.planning.page import in_ascii

        text = in_ascii(text)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        let_go()


def let_go() -> None:
    """Write no more to standard output, which takes nothing: the interpreter would complain once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
