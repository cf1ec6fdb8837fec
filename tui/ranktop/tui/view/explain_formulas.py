"""The formulas of an explanation, with the run's numbers put in."""

from __future__ import annotations

from typing import Final

from ranktop.budget.explain.explanation import Explanation, Formula, Term
from ranktop.budget.planning.bands import percent
from ranktop.budget.terms import STATES
from ranktop.tui.view.explain_text import WHEN, Paper
from ranktop.tui.view.text import Line, Span

LABEL: Final = 15

PER_ELEMENT: Final = 64
"""A term of fewer bytes each is counted per element."""


def formula_lines(explanation: Explanation, paper: Paper) -> list[Line]:
    """Return the letters and every category's formula."""
    told = ", ".join(f"{letter} = {_count(value)} {words}" for letter, value, words in explanation.symbols)
    lines = paper.told(told, "dim")
    for formula in explanation.formulas:
        lines += _formula(formula, paper)
    return lines


def _formula(formula: Formula, paper: Paper) -> list[Line]:
    room = paper.width - LABEL
    label = LABEL
    if room < 30:
        room, label = paper.width - 3, 3
    parts = [(text, "text") for text in paper.fold(_written(formula, paper), room)]
    source = _source(formula)
    parts += [(text, "dim") for text in paper.fold(source, room)] if source else []
    name: tuple[Span, ...] = ((" ", ""), paper.swatch(formula.category), (f" {formula.category}", "text"))
    lines: list[Line] = []
    if label < LABEL:
        lines.append(name)
    for at, (text, style) in enumerate(parts):
        if at == 0 and label == LABEL:
            gap = " " * (LABEL - 3 - len(formula.category))
            lines.append((*name, (gap, ""), (text, style)))
        else:
            lines.append(((" " * label, ""), (text, style)))
    return lines


def _source(formula: Formula) -> str:
    sure = "" if formula.within in (0.0, None) else f", within {percent(formula.within or 0)}"
    if formula.budget is None:
        return formula.source
    return f"{formula.source}{', a guess' if formula.within is None else sure}"


def _written(formula: Formula, paper: Paper) -> str:
    """Return the formula as one sentence."""
    text = _sum(formula, paper)
    given, budget = formula.bytes, formula.budget
    when = WHEN.get(formula.moment, "")
    if budget is None:
        return f"{text}; not known" if text else "not known"
    if not text:
        where = f"none on the device {when}" if formula.category in STATES else "none"
        text = f"{paper.size(budget)} {when}, tensor by tensor" if budget else where
    elif given is not None and formula.difference:
        text += f"; here {paper.size(budget)} ({_signed(budget - given, paper)}: {formula.difference})"
    if formula.most is not None:
        more = ", ".join(f"{part.name} {paper.size(part.bytes)}" for part in formula.more)
        text += f"; {paper.size(formula.most)} at its highest, {WHEN.get(formula.most_at, formula.most_at)}" + (
            f": of it {more}" if more else ""
        )
    return text


def _signed(difference: int, paper: Paper) -> str:
    return f"{'+' if difference > 0 else '-'}{paper.size(abs(difference))}"


def _sum(formula: Formula, paper: Paper) -> str:
    """Return symbols, numbers and result; empty without terms."""
    terms = formula.terms
    if not terms:
        return ""
    result = paper.size(formula.bytes)
    if all(term.each < PER_ELEMENT and term.symbol for term in terms):
        alone = f" ({terms[0].name})" if len(terms) == 1 and terms[0].name else ""
        return f"{_symbols(terms)} = {_elements(terms)} = {result}{alone}"
    if any(term.symbol for term in terms):
        numbers = " + ".join(_things(term, paper) for term in terms)
        named = "; ".join(f"{term.symbol}: {term.name}" for term in terms[:1] if term.name)
        return f"{_symbols(terms)} = {numbers} = {result}" + (f" ({named})" if named else "")
    many = len(terms) > 1
    pieces = " + ".join(f"{paper.size(term.bytes)} {term.name.partition(' (')[0]}" for term in terms)
    return f"{pieces} = {result}" if many else pieces


def _symbols(terms: tuple[Term, ...]) -> str:
    """Return the symbols of a sum; what has the same letters is added up, as papers write it."""
    if len(terms) > 1 and len({(term.count, term.over) for term in terms}) == 1 and terms[0].each < PER_ELEMENT:
        letters = terms[0].symbol.lstrip("0123456789.")
        return f"{sum(term.each for term in terms):.4g}{letters}"
    return " + ".join(term.symbol for term in terms)


def _elements(terms: tuple[Term, ...]) -> str:
    """Return bytes per element x elements / parts."""
    first = terms[0]
    below = f" / {first.over}" if first.over > 1 else ""
    if len(terms) > 1 and len({(term.count, term.over) for term in terms}) == 1:
        each = " + ".join(f"{term.each:.4g} {term.name}" for term in terms)
        return f"({each}) × {_count(int(first.count))}{below}"
    return " + ".join(
        f"{term.each:.4g} × {_count(int(term.count))}{f' / {term.over}' if term.over > 1 else ''}" for term in terms
    )


def _things(term: Term, paper: Paper) -> str:
    size = paper.size(round(term.each))
    return size if term.count == 1 else f"{term.count:g} × {size}"


def _count(value: int) -> str:
    """Write a count: exact when it is short, else in the short form of the field."""
    if value < 100_000:
        return f"{value}"
    for limit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if value >= limit:
            return f"{value / limit:.4g}{name}"
    return str(value)
