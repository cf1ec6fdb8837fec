"""JSON with one item a line, as ``json.dumps(value, indent=2)`` writes it: that goes item by item through Python."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

_WORDS: Final = {None: "null", True: "true", False: "false"}


def json_text(value: Any) -> str:
    """Return the text, to the byte that of ``json.dumps(value, indent=2)``. Keys are strings."""
    out: list[str] = []
    _put(value, out, "\n")
    return "".join(out)


def _put(value: Any, out: list[str], line: str) -> None:
    """Append what is written for a value in a line that begins with ``line``."""
    kind = type(value)
    if kind is str:
        out.append(quoted(value))
    elif kind is int:
        out.append(str(value))
    elif isinstance(value, dict) and value:
        inner = line + "  "
        lead = "{" + inner
        for key, item in value.items():
            out += (lead, quoted(key), ": ")
            _put(item, out, inner)
            lead = "," + inner
        out += (line, "}")
    elif isinstance(value, list | tuple) and value:
        inner = line + "  "
        if set(map(type, value)) == {int}:
            out += ("[", inner, ("," + inner).join(map(str, value)), line, "]")
            return
        lead = "[" + inner
        for item in value:
            out.append(lead)
            _put(item, out, inner)
            lead = "," + inner
        out += (line, "]")
    elif kind is bool or value is None:
        out.append(_WORDS[value])
    else:
        out.append(json.dumps(value))
