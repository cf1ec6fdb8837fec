"""The report as text for people and as JSON for scripts."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranktop.tui.doctor.check import FAIL, PASS, SKIP, STATUSES, WARN, Line
from ranktop.wire.codec import clean

SCHEMA: Final = 1

_MARKS: Final = {PASS: "✓", WARN: "!", FAIL: "✗", SKIP: "–"}
_ASCII_MARKS: Final = {PASS: "+", WARN: "!", FAIL: "x", SKIP: "-"}
_COLORS: Final = {PASS: "32", WARN: "33", FAIL: "1;31", SKIP: "2"}
"""SGR codes of the terminal's own colours."""
_PLAIN: Final = str.maketrans({"→": "->", "–": "-", "×": "x", "≥": ">=", "≤": "<=", "…": "...", "µ": "u", "°": " deg "})
LABEL: Final = 12
"""Cells of a check's name."""
_INDENT: Final = 2 + 2 + 5 + LABEL + 1


def exit_code(lines: Sequence[Line]) -> int:
    """Return 1 when a check fails, else 0."""
    return int(any(line.result.status == FAIL for line in lines))


def as_json(lines: Sequence[Line], seconds: float, version: str) -> str:
    """Return the documented JSON (schema 1)."""
    counts = Counter(line.result.status for line in lines)
    summary: dict[str, Any] = {status: counts[status] for status in STATUSES}
    return json.dumps(
        {
            "schema": SCHEMA,
            "ranktop": version,
            "checks": [_line_json(line) for line in lines],
            "summary": {**summary, "seconds": round(seconds, 3), "exit": exit_code(lines)},
        },
        indent=2,
        default=str,
    )


def _line_json(line: Line) -> dict[str, Any]:
    result = line.result
    common: dict[str, Any] = {
        "id": line.id,
        "group": line.group,
        "status": result.status,
        "found": clean(result.found),
        "advice": clean(result.advice) or None,
    }
    # No fact takes the place of what every check has.
    return {**common, **{name: value for name, value in result.facts.items() if name not in common}}


def as_text(
    lines: Sequence[Line], titles: Mapping[str, str], seconds: float, *, width: int, unicode: bool, color: bool
) -> str:
    """Return the report for a terminal of ``width`` columns; ``titles``: of groups; without ``unicode`` in ASCII."""
    out: list[str] = []
    group = None
    for line in lines:
        if line.group != group:
            group = line.group
            title = _styled(titles.get(group, group), "1", color)
            out.extend(["", title] if out else [title])
        out.extend(_line_text(line, width, unicode, color))
    counts = Counter(line.result.status for line in lines)
    sums = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    out.append("")
    for status in (FAIL, WARN):
        found = [line for line in lines if line.result.status == status]
        if found:
            # On a small screen the line itself may have scrolled away.
            named = "; ".join(
                f"{titles.get(group, group)}: {', '.join(clean(line.label) for line in found if line.group == group)}"
                for group in dict.fromkeys(line.group for line in found)
            )
            out.extend(_styled(text, _COLORS[status], color) for text in _wrapped(f"{status}: {named}", width, unicode))
    out.append(f"{len(lines)} checks in {seconds:.1f} s: {sums}")
    text = "\n".join(out)
    return text if unicode else text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")


def _line_text(line: Line, width: int, unicode: bool, color: bool) -> list[str]:
    status = line.result.status
    mark = (_MARKS if unicode else _ASCII_MARKS)[status]
    head = f"{_styled(f'{mark} {status}', _COLORS[status], color)} {clean(line.label)[:LABEL]:<{LABEL}} "
    # Narrow terminals get the text below the label instead of a column one word wide.
    beside = width - _INDENT >= 30
    indent = " " * (_INDENT if beside else 4)
    found = _wrapped(clean(line.result.found), width - len(indent), unicode)
    out = [f"  {head}{found[0]}"] if beside else [f"  {head}".rstrip(), f"{indent}{found[0]}"]
    out.extend(f"{indent}{more}" for more in found[1:])
    if line.result.advice:
        for number, more in enumerate(_wrapped(clean(line.result.advice), width - len(indent) - 3, unicode)):
            lead = "→ " if number == 0 else "  "
            out.append(f"{indent}{lead}{_styled(more, '36', color)}")
    return out


def _wrapped(text: str, width: int, unicode: bool) -> list[str]:
    # What ASCII writes with two letters must fit too.
    text = text if unicode else text.translate(_PLAIN)
    return textwrap.wrap(text, max(width, 16), break_on_hyphens=False) or [""]


def _styled(text: str, code: str, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color else text
