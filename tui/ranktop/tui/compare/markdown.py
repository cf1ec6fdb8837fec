"""A comparison as Markdown, to be pasted into a pull request or a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ranktop.budget.words import strategy_words
from ranktop.tui.compare.cells import TableRow, loss_rows, memory_rows, memory_unit, time_rows
from ranktop.tui.compare.comparison import Comparison
from ranktop.tui.compare.small_print import findings, notes
from ranktop.tui.compare.verdict import verdicts
from ranktop.tui.view.text import plain


def markdown(comparison: Comparison) -> str:
    """Return the whole comparison, ending with a newline."""
    parts = [
        "\n".join([f"**{_safe(verdict.sentence)}**", *(f"- {_safe(text)}" for text in verdict.because)])
        for verdict in verdicts(comparison)
    ]
    warned = [f"- {_safe(one.sentence)}" for one in comparison.caveats if one.hurts != "all"]
    if warned:
        parts.append("\n".join(warned))
    parts.append(_runs(comparison))
    unit = memory_unit(comparison)
    memory = memory_rows(comparison, unit)
    if memory:
        parts.append(_numbers(comparison, f"memory, {unit.name}", memory, with_expected=True))
    times = time_rows(comparison)
    if times:
        parts.append(_numbers(comparison, "time", times, with_expected=False))
    losses = loss_rows(comparison)
    if losses:
        parts.append(_numbers(comparison, "loss", losses, with_expected=False))
    if comparison.plans:
        rows = [[name, *(value or "–" for value in values)] for name, values in comparison.plans]
        parts.append(_table(["what differs", *(one.letter for one in comparison.sides)], rows))
    told = [f"- {_safe(text)}" for text, _ in findings(comparison)]
    if told:
        parts.append("\n".join(told))
    parts.append("\n".join(f"<sub>{_safe(text)}</sub>  " for text in notes(comparison)))
    return "\n\n".join(parts) + "\n"


def _runs(comparison: Comparison) -> str:
    rows = []
    for one in comparison.sides:
        plan = one.card.plan if one.card is not None else None
        rows.append(
            [one.letter, f"{plain(one.run.job.name)} {plain(one.run.job.id)}", strategy_words(plan) if plan else "–"]
        )
    return _table(["", "run", "strategy"], rows)


def _numbers(comparison: Comparison, title: str, rows: Sequence[TableRow], *, with_expected: bool) -> str:
    heads = [title]
    for one in comparison.sides:
        heads += [f"{one.letter} expected", f"{one.letter} measured"] if with_expected else [one.letter]
    heads += [f"{other.letter} − {comparison.base.letter}" for other in comparison.others]
    lines = []
    for row in rows:
        cells = [f"**{row.name.strip()}**" if row.strong else row.name.strip()]
        for expected, measured in zip(row.expected, row.measured, strict=True):
            cells += [expected.text, measured.text] if with_expected else [measured.text]
        lines.append([*cells, *(cell.text for cell in row.away)])
    return _table(heads, lines, right=True)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> str:
    rule = ["---", *(["---:" if right else "---"] * (len(heads) - 1))]
    lines = [heads, rule, *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    bold = text.startswith("**") and text.endswith("**") and len(text) > 4
    return f"**{_safe(text[2:-2])}**" if bold else _safe(text)


def _safe(text: str) -> str:
    """What a job calls itself must become neither markup nor a control character."""
    text = plain(text)
    for mark in "\\`*_[]|#":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
