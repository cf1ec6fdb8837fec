"""The habits of whoever watches: ``ranktop.toml``, ``RANKTOP_*`` variables, and what is in force of them.

Reading costs milliseconds and neither Textual nor typer. The agent reads none of this: it has its own variables.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ranktop.tui.config.force import InForce

T = TypeVar("T")


@lru_cache(maxsize=1)
def settings() -> InForce:
    """Return what is in force in this process, read once. ConfigError, of one line, for a configuration with errors."""
    from ranktop.tui.config.force import read
    from ranktop.tui.config.reading import ConfigError

    found = read(os.environ)
    if found.errors:
        more = len(found.errors) - 1
        rest = f" (and {more} more: `ranktop config` lists them)" if more else ""
        raise ConfigError(f"{found.errors[0]}{rest}")
    return found


def given(name: str, flag: T | None) -> T | Any:
    """Return what a flag says, else what is in force of a setting."""
    return settings().value(name) if flag is None else flag


def apply() -> None:
    """Put what is in force where it is used, and tell of unknown variables; ConfigError."""
    from ranktop.tui import keymap
    from ranktop.tui.config.force import pass_on
    from ranktop.tui.session.findings import limits

    found = settings()
    for warning in found.warnings:
        print(f"ranktop: {warning}", file=sys.stderr)
    keymap.use(found.keymap)
    limits.use(found.limits)
    pass_on(found)
