"""The agent's few words to the person at the terminal: one line on standard error each."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import Any


def say(text: str) -> None:
    """Write one line. Never raises: a script may have closed, replaced or broken its standard error.

    Where it has not replaced it, nothing of Python's is locked and nothing waits: a thread that does, in the
    buffer of a pipe that nobody reads, has the interpreter abort a script that ends.
    """
    out: Any = sys.stderr
    if out is None:
        return
    line = f"ranktop: {text}\n"
    with contextlib.suppress(Exception):
        replaced: bool = out is not sys.__stderr__
        if replaced:
            out.write(line)
            out.flush()
            return
        descriptor = out.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if any(event & select.POLLOUT for _, event in poll.poll(0)):
            # A pipe that is ready takes as much as this at once.
            os.write(descriptor, line.encode(out.encoding or "utf-8", "backslashreplace")[: select.PIPE_BUF])
