"""Where text cannot be placed (TERM=dumb, or none set): one look at the job as a plain table, and how to look again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ranktop.tui.cli import FAILED, FOUND, NONE

if TYPE_CHECKING:
    from ranktop.tui.session.source import Source
    from ranktop.wire.endpoints import Found, JobEntry

PATIENCE: Final = 5.0
"""Seconds to wait for a picture of all ranks."""

LOOK_EVERY: Final = 0.05

HINT: Final = (
    "ranktop: this terminal cannot place text (TERM={term}): one look instead of the dashboard; "
    "`ranktop status --watch 5` looks again every 5 s"
)


def look_once(
    source: Source | None, find: Callable[[], Found] | None, connect: Callable[[JobEntry], Source] | None, term: str
) -> int:
    """Print the job's ranks once and return the exit code: 0, 1 when it did not answer, 3 when there is no job."""
    if source is None and find is not None and connect is not None:
        found = find()
        entry = found.obvious()
        if entry is None:
            return _choose(found)
        source = connect(entry)
    if source is None:
        return NONE
    try:
        code = _print(source)
    finally:
        source.close()
    print(HINT.format(term=term or "not set"), file=sys.stderr)
    return code


def _choose(found: Found) -> int:
    from ranktop.tui.status import nothing_found
    from ranktop.wire.codec import clean

    if not found.jobs:
        print(nothing_found(), file=sys.stderr)
        return NONE
    print("several jobs run here; name one with --job:")
    for job in found.jobs:
        print(f"  {clean(job.id)}  {clean(job.name)}")
    return FOUND


def _print(source: Source) -> int:
    from ranktop.tui.session.state import Session
    from ranktop.tui.status_table import print_table

    session = Session()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        session.feed(source.drain())
        if session.ranks and getattr(source, "caught_up", True):
            break
        time.sleep(LOOK_EVERY)
    if session.job is None:
        print(f"ranktop: {source.link().detail or 'the job did not answer'}", file=sys.stderr)
        return FAILED
    print_table([session])
    return FOUND


def again(look: Callable[[], int], seconds: float) -> int:
    """Print a look every so many seconds until one doesn't end well; returns that one's exit code. Ctrl-C ends it."""
    while True:
        print(f"-- {time.strftime('%H:%M:%S')} --")
        code = look()
        sys.stdout.flush()
        if code != FOUND:
            return code
        time.sleep(seconds)
