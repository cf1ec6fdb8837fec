"""The lines that ask for one of the plans that fit, as a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from ranktop.tui.view.fit_table import changes_words
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, Span, pad, plain

if TYPE_CHECKING:
    from ranktop.budget.fit import Candidate


def plan_lines(one: Candidate, form: int, options: Options, width: int) -> tuple[list[Line], list[Line]]:
    """Return head and body for one of the forms in which a plan can be asked for; ``form`` counts them round."""
    from ranktop.budget.fitting.lines import KINDS, beside, lines_of

    forms = lines_of(one)
    kinds = list(forms)
    title: list[Span] = [(" what fits ", "head accent"), (f" {one.title}: {changes_words(one, options)}", "head")]
    if not kinds:
        return [pad(title, width, "head")], wrapped("nothing has to be asked for", width, "dim")
    kind = kinds[form % len(kinds)]
    others = ", ".join(KINDS[name] for name in kinds if name != kind)
    second: list[Span] = [(f" in {KINDS[kind]}", "panel bold"), (f"  (tab: {others})" if others else "", "panel dim")]
    body = [pad([(f"  {text}", "text")], width) for text in _folded(forms[kind], width - 2)]
    body.append(pad((), width))
    for text in (*beside(one, kind), *(f"assumed: {plain(text)}" for text in one.projection.assumptions)):
        body += wrapped(text, width, "dim")
    return [pad(title, width, "head"), pad(second, width, "panel")], body


def _folded(lines: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines of code; what is too long goes on in the next row, so that nothing of it is lost."""
    room = max(10, width)
    for line in lines:
        yield line[:room]
        for start in range(room, len(line), room - 4):
            yield "    " + line[start : start + room - 4]


def wrapped(text: str, width: int, style: str) -> list[Line]:
    """Return a sentence in as many lines as it takes."""
    return [pad([(f" {part}", style)], width) for part in wrap(text, max(10, width - 2))]
