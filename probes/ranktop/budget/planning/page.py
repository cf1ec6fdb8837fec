"""The whole page: header, table, notes, as text for a width, with or without colours."""

from __future__ import annotations

from typing import Final

from ranktop.budget.planning.answer import Answer
from ranktop.budget.planning.notes import header, legend, notes
from ranktop.budget.planning.sizes import fold
from ranktop.budget.planning.table import Cell, lines

_SGR: Final = {"good": "32", "bad": "31", "strong": "1", "best": "1;32", "dim": "2"}

_ASCII: Final = str.maketrans({"–": "-", "×": "x", "±": "~", "≥": ">", "→": ">", "·": "-", "…": "~", "µ": "u"})


def page(answer: Answer, width: int, colour: bool) -> str:
    """Return the page, ending with a newline; no line is wider than ``width`` unless the table itself must be."""
    told = [line for text in header(answer) for line in fold(text, width, "  ")]
    form, cells = lines(answer, width)
    table = ["".join(painted(cell, colour) for cell in line).rstrip() for line in cells]
    below: list[str] = []
    last = ""
    for about, text in notes(answer, form.wide):
        below += _note("" if about == last else about, text, width, colour)
        last = about
    how = [painted((line, "dim"), colour) for line in fold(legend(answer, form.wide), width)]
    return "\n".join([*told, "", *table, *how, "", *below]) + "\n"


def _note(about: str, text: str, width: int, colour: bool) -> list[str]:
    """Return the lines of a note; without a label it goes on with what the note before is about."""
    if not about:
        return ["  " + line for line in fold(text, width - 2, "  ")]
    label = f"{about}:"
    first, *rest = fold(f"{label} {text}", width, "    ")
    return [painted((label, "dim"), colour) + first[len(label) :], *rest]


def painted(cell: Cell, colour: bool) -> str:
    """Return a cell's text, in its style where there are colours."""
    text, style = cell
    code = _SGR.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code and text.strip() else text


def in_ascii(text: str) -> str:
    """Return the text for a terminal that cannot show more."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
