"""``ranktop compare``: reads the runs, compares them, and prints what was asked for."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranktop.tui.cli import FOUND, NONE, USAGE
from ranktop.tui.compare.comparison import LETTERS, compare
from ranktop.tui.compare.loading import load
from ranktop.tui.compare.side import Loaded
from ranktop.tui.runs import NoRun, find_run
from ranktop.tui.stdout import colour, columns, put
from ranktop.tui.view.text import plain

if TYPE_CHECKING:
    from ranktop.tui.remote.ssh import Way

QUIET: Final = 1.0
"""Seconds of reading before anything is said of it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for."""

    form: str = "page"
    """``page``, ``json`` or ``markdown``."""
    first: int | None = None
    last: int | None = None
    """Steps to compare; None: all but the warm-up."""


def run(sources: Sequence[str], wish: Wish, way: Way | None = None) -> int:
    """Compare the runs and return the exit code: 0, 1 when one cannot be read, 2 bad usage, 3 no such run.

    ``way``: as ``find_run`` has it.
    """
    if not 2 <= len(sources) <= len(LETTERS):
        return _complain(f"compare takes 2 to {len(LETTERS)} runs, not {len(sources)}", USAGE)
    if wish.first is not None and wish.last is not None and wish.last < wish.first:
        return _complain(f"there is no step from {wish.first} to {wish.last}: give --from a smaller one", USAGE)
    try:
        runs = [_load(source, way) for source in sources]
    except NoRun as error:
        return _complain(str(error), error.code)
    silent = [run.source for run in runs if not any(life.ranks for life in run.gathered.lives)]
    if silent:
        return _complain(f"{silent[0]}: no rank has said anything in it", NONE)
    comparison = compare(runs, wish.first, wish.last)
    if wish.form == "json":
        from ranktop.tui.compare.as_json import comparison_json

        put(json.dumps(comparison_json(comparison), indent=2) + "\n")
    elif wish.form == "markdown":
        from ranktop.tui.compare.markdown import markdown

        put(markdown(comparison))
    else:
        from ranktop.tui.compare.page import as_text, page

        coloured = colour()
        lines = page(comparison, columns(), colour=coloured, ascii_only=not _speaks_unicode(), height=_height())
        put("\n".join(as_text(line, colour=coloured) for line in lines) + "\n")
    return FOUND


def _load(source: str, way: Way | None) -> Loaded:
    """Read a run; a person who waits for a long one sees how far it has come."""
    found = find_run(source, way)
    started, told = time.monotonic(), False

    def say(share: float) -> None:
        nonlocal told
        if time.monotonic() - started > QUIET:
            told = True
            print(f"\rreading {plain(source)[:40]}: {share:4.0%} ", end="", file=sys.stderr, flush=True)

    try:
        return load(source, found, say if sys.stderr.isatty() else None)
    finally:
        if told:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)


def _height() -> int | None:
    """Return the lines of the terminal; None where the page goes elsewhere."""
    return shutil.get_terminal_size().lines if sys.stdout.isatty() else None


def _speaks_unicode() -> bool:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "▀≈–".encode(encoding)
    except UnicodeEncodeError:
        return False
    return os.environ.get("TERM") != "dumb"


def _complain(text: str, code: int) -> int:
    print(f"ranktop: {text}", file=sys.stderr)
    return code
