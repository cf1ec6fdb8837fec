"""``ranktop config``: what is in force and where it comes from."""

from __future__ import annotations

import json
import os
import sys

from ranktop.tui.cli import FOUND, USAGE
from ranktop.tui.config.force import read
from ranktop.tui.config.reading import ConfigError, place
from ranktop.tui.stdout import columns


def config(*, as_json: bool = False, path: bool = False, example: bool = False) -> int:
    """Print it; exit code 2 for a configuration with errors, all of which are told."""
    if example:
        from ranktop.tui.config.example import example as text

        print(text(), end="")
        return FOUND
    if path:
        named, _ = place(os.environ)
        print("off" if named is None else named)
        return FOUND
    from ranktop.tui.config import report

    try:
        found = read(os.environ)
    except ConfigError as error:
        print(f"ranktop: {error}", file=sys.stderr)
        return USAGE
    if as_json:
        print(json.dumps(report.as_json(found, os.environ), indent=2))
    else:
        room = max(columns(), 72) if sys.stdout.isatty() else 160
        print("\n".join(line.rstrip() for line in report.lines(found, os.environ, room)))
    for words in found.errors:
        print(f"ranktop: {words}", file=sys.stderr)
    return USAGE if found.errors else FOUND
