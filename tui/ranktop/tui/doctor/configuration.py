"""Whether ranktop.toml and the RANKTOP_* variables can be used."""

from __future__ import annotations

from ranktop.tui.config.force import read
from ranktop.tui.config.reading import ConfigError
from ranktop.tui.doctor.check import Result, failed, passed, warned
from ranktop.tui.doctor.scene import Scene


def look_at_configuration(scene: Scene) -> Result:
    """Check the file and the variables of whoever watches."""
    try:
        found = read(scene.environ)
    except ConfigError as error:
        return failed(str(error), "mend the file, or move it away: no command starts with it", errors=[str(error)])
    path = found.file.path
    facts = {"path": None if path is None else str(path), "exists": found.file.there, "errors": found.errors}
    if found.errors:
        more = f" (and {len(found.errors) - 1} more)" if len(found.errors) > 1 else ""
        return failed(
            f"{found.errors[0]}{more}", "mend it, ranktop config lists all; no command starts with it", **facts
        )
    if found.warnings:
        return warned("; ".join(found.warnings), "unset it, or write it as it is meant", **facts)
    if path is None:
        return passed("no file is read (RANKTOP_CONFIG=off)", **facts)
    return passed(str(path) if found.file.there else f"no file at {path}: all is by default", **facts)
