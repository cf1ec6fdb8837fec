"""The comparison as a notebook shows it: a plain table, no script, every text escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from ranktop.budget.planning.answer import Answer, Row
from ranktop.budget.planning.notes import header, legend, notes
from ranktop.budget.planning.table import Column, columns, mark

RIGHT: Final = ' style="text-align: right"'
LEFT: Final = ' style="text-align: left"'


def comparison_html(answer: Answer) -> str:
    """Return the whole page: what was asked, a row for each strategy, how to read it, notes."""
    shown = columns(wide=True, times=answer.request.run.link is not None)
    told = "".join(f"<div>{escape(line)}</div>" for line in header(answer))
    below = [f"<div>{escape(legend(answer, wide=True))}</div>"]
    below += [f"<div><i>{escape(about)}:</i> {escape(text)}</div>" for about, text in notes(answer, wide=True)]
    heads = "".join(f"<th{_side(column)}>{escape(column.long)}</th>" for column in shown)
    rows = "".join(f"<tr>{''.join(_cells(answer, row, shown))}</tr>" for row in answer.rows)
    table = f"<table><thead><tr><th{LEFT}>strategy</th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div>{told}{table}{''.join(below)}</div>"


def _cells(answer: Answer, row: Row, shown: list[Column]) -> Iterator[str]:
    name = escape(f"{mark(answer, row)} {row.name}".strip())
    yield f"<th{LEFT}>{name}</th>"
    if row.projection.refused:
        yield f'<td colspan="{len(shown)}"{LEFT}>not possible: {escape(row.projection.refused)}</td>'
        return
    for column in shown:
        text, style = column.cell(row, answer.unit)
        words = escape(text)
        yield f"<td{_side(column)}>{f'<b>{words}</b>' if style in ('strong', 'bad') else words}</td>"


def _side(column: Column) -> str:
    return LEFT if column.left else RIGHT
