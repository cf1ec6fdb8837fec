"""What ``ranktop config`` prints: every setting in force with its source, as lines or as JSON (schema 1)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ranktop.tui.config.force import InForce
from ranktop.tui.config.kinds import written
from ranktop.tui.config.own_findings import AT_LEAST
from ranktop.tui.config.table import AGENT, SETTINGS
from ranktop.tui.keymap import shown
from ranktop.tui.keys import BY_ID
from ranktop.tui.session.findings.limits import BY_NAME

SCHEMA: Final = 1

OF_THE_AGENT: Final = "Of the agents and hubs, read in the job's own environment alone (here: this shell's)"


VALUE: Final = 24
"""Cells of the longest value that what stands behind it is aligned to."""


def lines(found: InForce, environ: Mapping[str, str], room: int) -> Iterator[str]:
    """Yield the page, its explanations in ``room`` cells."""
    file = found.file
    if file.path is None:
        yield "file: none (RANKTOP_CONFIG=off)"
    else:
        yield f"file: {file.path}{'' if file.there else ' (not there: all is by default)'}"
    yield from (f"! {words}" for words in (*found.errors, *found.warnings))
    yield ""
    changed = [*_findings(found), *_keys(found)]
    width = max(len(name) for name in (*(setting.name for setting in SETTINGS), *(name for name, _, _ in changed)))
    values = {setting.name: written(found.value(setting.name)) for setting in SETTINGS}
    cells = _cells([*values.values(), *(text for _, text, _ in changed)])
    for setting in SETTINGS:
        value = values[setting.name]
        flag = f" (flag {setting.flag})" if setting.flag else ""
        yield f"{setting.name:<{width}}  {value:<{cells}}  {found.source(setting.name).words}{flag}"
    yield ""
    for name, text, where in changed:
        yield f"{name:<{width}}  {text:<{cells}}  {where}"
    if not changed:
        yield "findings, keys: as they are by default"
    yield ""
    yield from textwrap.wrap(f"{OF_THE_AGENT}:", room)
    own = {name: _told(environ.get(name, "")) or "not set" for name in AGENT}
    cells, width = _cells(list(own.values())), max(map(len, AGENT))
    for name, words in AGENT.items():
        head = f"  {name:<{width}}  {own[name]:<{cells}}  "
        indent = " " * (width + cells + 6)
        if len(head) > len(indent):
            yield head
        first = head if len(head) == len(indent) else indent
        yield from textwrap.wrap(words, room, initial_indent=first, subsequent_indent=indent)


def _cells(values: Sequence[str]) -> int:
    return max((len(value) for value in values if len(value) <= VALUE), default=0)


def _told(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _findings(found: InForce) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, where) of what is changed of the findings."""
    limits = found.limits
    for rule in sorted(limits.off):
        yield f"findings.{rule}", "not told", found.file.where("findings", rule)
    for rule, severity in limits.floors.items():
        yield f"findings.{rule}.{AT_LEAST}", written(severity), found.file.where("findings", rule, AT_LEAST)
    for name, value in limits.changed.items():
        yield f"findings.{name}", BY_NAME[name].shown(value), found.file.where("findings", *name.split("."))


def _keys(found: InForce) -> Iterator[tuple[str, str, str]]:
    for id, names in found.keymap.items():
        if names != BY_ID[id].names:
            yield f"keys.{id}", " ".join(shown(name) for name in names), found.file.where("keys", id)


def as_json(found: InForce, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the same for scripts."""
    file, limits = found.file, found.limits
    return {
        "schema": SCHEMA,
        "file": {"path": None if file.path is None else str(file.path), "exists": file.there},
        "errors": found.errors,
        "warnings": found.warnings,
        "settings": {
            setting.name: {
                "value": found.value(setting.name),
                "default": setting.default,
                "source": found.source(setting.name).kind,
                "where": found.source(setting.name).where or None,
                "variable": setting.variable,
                "flag": setting.flag or None,
            }
            for setting in SETTINGS
        },
        "findings": {
            "off": sorted(limits.off),
            AT_LEAST: dict(limits.floors),
            "limits": {
                name: {"value": limits[name], "default": limit.default, "unit": limit.unit}
                for name, limit in BY_NAME.items()
            },
        },
        "keys": {id: list(found.keymap.get(id, key.names)) for id, key in BY_ID.items()},
        "agent": {name: environ.get(name) or None for name in AGENT},
    }
