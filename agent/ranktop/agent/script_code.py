"""Which code runs as ``__main__``: a few digits of its hash, so that ranks can be told apart that run another."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from typing import Any, Final

DIGITS: Final = 8
AGENT: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
LARGEST: Final = 16 * 1024 * 1024
"""Bytes; a larger file is no script."""


class ScriptCode:
    """Hashes the script's file once, as soon as the script is what runs."""

    def __init__(self) -> None:
        self._digest: str | None = None

    def digest(self) -> str:
        """Return ``DIGITS`` hexadecimal digits of the SHA-256 of the script's bytes; empty before it runs or without.

        Never raises.
        """
        if self._digest is None:
            path = _path(sys.modules.get("__main__"))
            if path:
                self._digest = _hashed(path)
        return self._digest or ""


def _path(main: Any) -> str:
    """Return the file that runs as ``__main__``; empty while that is the agent, which runs the script later."""
    if getattr(getattr(main, "__spec__", None), "name", "").startswith("ranktop.agent"):
        return ""
    path = getattr(main, "__file__", None)
    # A launcher that takes no module is given the agent's own file.
    return path if isinstance(path, str) and os.path.abspath(path) != AGENT else ""


def _hashed(path: str) -> str:
    try:
        found = os.stat(path)
        # What is read from a pipe would be taken from the script.
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            return ""
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(LARGEST)).hexdigest()[:DIGITS]
    except (OSError, ValueError):
        return ""
