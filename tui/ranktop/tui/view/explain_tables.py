"""The tables of an explanation: collectives and knobs."""

from __future__ import annotations

from typing import Final

from ranktop.budget.collective import Collective
from ranktop.budget.explain.explanation import Explanation, Knob
from ranktop.budget.planning.sizes import seconds
from ranktop.tui.view.explain_text import Paper
from ranktop.tui.view.text import Line, Span, fit

NARROW: Final = 66
"""Cells below which a row of a table takes two lines."""

WIDE: Final = 104
"""Cells from which on a knob says what to type."""

NUMBER: Final = 8

NAMES: Final = 36
"""Cells of a knob's name that are kept before what else it changes gets room."""

REMARK: Final = 18
"""Cells for what else a knob changes; a longer name then has a line to itself."""

_KINDS: Final = {
    "all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter", "all_gather": "all-gather",
    "broadcast": "broadcast", "reduce": "reduce", "all_to_all": "all-to-all", "p2p": "send",
}  # fmt: skip


def collective_lines(explanation: Explanation, paper: Paper) -> list[Line]:
    """Return the collectives in their order, each with calls, bytes and time."""
    if not explanation.collectives:
        return paper.told("nothing: there is no other rank", "dim")
    narrow = paper.width < NARROW
    head = f"   {'when':<10}{'what':<15}"
    room = paper.width - len(head) - 7 - NUMBER - 8
    lines: list[Line] = []
    if not narrow:
        lines.append(((f"{head}{'':<{room}}{'calls':>7}{'sent':>{NUMBER}}{'time':>8}", "label"),))
    for one in explanation.collectives:
        lines += _collective(one, explanation.seconds([one]), room, narrow, paper)
    sent = explanation.projection.sent
    numbers = f"{paper.cell(sent):>{NUMBER}}{seconds(explanation.seconds(explanation.collectives)):>8}"
    lines.append((("   in all", "label"), (" " * max(1, paper.width - 9 - len(numbers)), ""), (numbers, "number bold")))
    return lines


def _collective(one: Collective, time: float, room: int, narrow: bool, paper: Paper) -> list[Line]:
    kind = f"{_KINDS.get(one.kind, one.kind)}"
    numbers = f"{paper.cell(one.sent):>{NUMBER}}{seconds(time):>8}"
    what = paper.plain(f"{one.what} ({one.group} ranks)" if one.group > 1 and one.kind != "p2p" else one.what)
    if narrow:
        calls = fit(f"     {one.calls:,} {paper.plain('×')} {kind}", paper.width - len(numbers))
        about = paper.hanging(
            " ", "dim", f"{one.phase}: {one.what}" + (f" ({one.group} ranks)" if one.group > 1 else "")
        )
        return [*about, ((calls, "dim"), (numbers, "number"))]
    spans: list[Span] = [(f"   {one.phase:<10}", "dim"), (f"{kind:<15}", "text")]
    rows = paper.fold(what, room - 1)
    first_line = (*spans, (fit(rows[0], room), "text"), (f"{one.calls:>7,}", "dim"), (numbers, "number"))
    return [first_line, *(((" " * 28 + row, "text"),) for row in rows[1:])]


def knob_lines(explanation: Explanation, paper: Paper) -> list[Line]:
    """Return the knobs with what each changes at the peak, in what is sent, in host memory and on NVMe."""
    knobs = explanation.knobs
    if not knobs:
        return []
    host, nvme = any(knob.host for knob in knobs), any(knob.nvme for knob in knobs)
    columns = ["known" if knobs[0].partial else "peak", "sent"] + ["host"] * host + ["NVMe"] * nvme
    names = [f"{knob.name} {knob.before} → {knob.after}" for knob in knobs]
    longest = max(len(paper.plain(name)) for name in names)
    numbers = NUMBER * len(columns)
    wide = paper.width >= WIDE
    name_room = max(0, min(longest + 1, max(NAMES, paper.width - 3 - numbers - REMARK), paper.width - 3 - numbers))
    rest = paper.width - 3 - name_room - numbers - 2
    heads = "".join(f"{name:>{NUMBER}}" for name in columns)
    how = "  by" if wide else ""
    lines: list[Line] = [((f"   {'':<{name_room}}{heads}{how}", "label"),)]
    for knob, name in zip(knobs, names, strict=True):
        label = paper.plain(name)
        first: list[Span] = [("   ", ""), (fit(label, name_room), "text")]
        if len(label) > name_room:
            lines += paper.hanging(" ", "dim", label)
            first = [(" " * (3 + name_room), "")]
        spans = [*first, _delta(knob.peak, paper, good=True), _delta(knob.sent, paper)]
        spans += [_delta(knob.host, paper)] * host + [_delta(knob.nvme, paper)] * nvme
        note = paper.plain(_remark(knob, explanation, wide))
        if note and rest >= 10:
            spans.append((f"  {fit(note, rest, ellipsis=paper.glyphs.ellipsis).rstrip()}", "dim"))
        lines.append(tuple(spans))
    return lines


def _remark(knob: Knob, explanation: Explanation, wide: bool) -> str:
    total = explanation.projection.rank.total if explanation.projection.rank is not None else None
    capacity = explanation.run.device_memory
    told = [knob.how] if wide else []
    if total is not None and capacity is not None and total > capacity >= total + knob.peak:
        told.append("fits")
    return "; ".join([*told, *([knob.note] if knob.note else [])])


def _delta(value: int, paper: Paper, good: bool = False) -> Span:
    """Return a difference; ``good``: less of it is good, more is not."""
    if value == 0:
        return (f"{'0':>{NUMBER}}", "dim")
    text = f"{'+' if value > 0 else '-'}{paper.cell(abs(value))}"
    style = "dim" if abs(value) < 1 << 20 else "number" if not good else "good" if value < 0 else "warn"
    return (f"{text:>{NUMBER}}", style)
