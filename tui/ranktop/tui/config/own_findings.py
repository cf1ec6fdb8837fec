"""Rules and limits of findings that a person has changed: ``[findings]`` of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ranktop.tui.config.kinds import nearest
from ranktop.tui.config.table import NEVER
from ranktop.tui.session.findings.finding import SEVERITIES
from ranktop.tui.session.findings.limits import BY_NAME, LIMITS, RULE_NAMES, Limits

AT_LEAST: Final = "at_least"
"""Key of every rule: the severity from which on it is told, or ``never``."""

Wrong = tuple[tuple[str, ...], str]
"""(path of a key below ``findings``, what is wrong with it)."""


def read_findings(content: Mapping[str, Any]) -> tuple[Limits, list[Wrong]]:
    """Return the limits that the section asks for, and what is wrong with it."""
    changed: dict[str, float] = {}
    off: set[str] = set()
    floors: dict[str, str] = {}
    wrong: list[Wrong] = []
    for rule, asked in content.items():
        if rule not in RULE_NAMES:
            wrong.append(((rule,), f"no rule is named {rule!r}{nearest(rule, RULE_NAMES)}"))
        elif asked is False:
            off.add(rule)
        elif isinstance(asked, dict):
            for key, value in asked.items():
                if words := _read_one(rule, key, value, changed, floors):
                    wrong.append(((rule, key), words))
        elif asked is not True:
            wrong.append(((rule,), f"{rule} takes false (not told), or limits: {rule}.{AT_LEAST} = ..."))
    off |= {rule for rule, severity in floors.items() if severity == NEVER}
    floors = {rule: severity for rule, severity in floors.items() if severity != NEVER}
    wrong += [((rule,), words) for rule, words in _contradictions(Limits(changed))]
    return Limits(changed, frozenset(off), floors), wrong


def _read_one(rule: str, key: str, value: object, changed: dict[str, float], floors: dict[str, str]) -> str:
    """Take one key of a rule; return what is wrong with it."""
    if key == AT_LEAST:
        if value not in (*SEVERITIES, NEVER):
            like = nearest(str(value), (*SEVERITIES, NEVER))
            return f"{rule}.{key}: {value!r} is none of {', '.join((*SEVERITIES, NEVER))}{like}"
        if value != SEVERITIES[0]:
            floors[rule] = str(value)
        return ""
    limit = BY_NAME.get(f"{rule}.{key}")
    if limit is None:
        known = [AT_LEAST, *(one.key for one in LIMITS if one.rule == rule)]
        return f"{rule} has no limit {key!r}{nearest(key, known) or ': it has ' + ', '.join(known)}"
    kinds = (int,) if limit.whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not limit.low <= value <= limit.high:
        units = {"share": "a share of 1", "B": "bytes", "s": "seconds"}.get(limit.unit, limit.unit)
        whole = "a whole number" if limit.whole else "a number"
        span = f"from {limit.low:.15g} to {limit.high:.15g}"
        return f"{limit.name}: {value!r} is not {whole} {span} ({units})"
    if value != limit.default:
        changed[limit.name] = value
    return ""


def _contradictions(limits: Limits) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for low, high in (("hang.alone_warning", "hang.alone_critical"), ("silent.min_seconds", "silent.warning_seconds")):
        if limits[low] > limits[high]:
            words = f"{low} ({limits[low]:g} s) is more than {high} ({limits[high]:g} s)"
            found.append((low.partition(".")[0], words))
    return found
