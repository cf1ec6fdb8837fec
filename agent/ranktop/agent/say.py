"""The agent's few words to the person at the terminal: one line on standard error each."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Write one line. Never raises: a script may have closed, replaced or broken its standard error."""
    out = sys.stderr
    if out is not None:
        with contextlib.suppress(Exception):
            out.write(f"ranktop: {text}\n")
            out.flush()
