"""An explanation as lines, for the command and for the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.explain.explanation import Explanation
from ranktop.budget.planning.sizes import Unit, unit_for
from ranktop.budget.words import strategy_words
from ranktop.tui.view.explain_formulas import formula_lines
from ranktop.tui.view.explain_pictures import peak_lines, share_lines, step_lines
from ranktop.tui.view.explain_tables import collective_lines, knob_lines
from ranktop.tui.view.explain_text import WHEN, Paper, ranks_words
from ranktop.tui.view.text import Glyphs, Line, in_ascii, pad

LEAST: Final = 20
"""Cells below which nothing can be laid out; narrower screens crop."""


def explain_lines(
    explanation: Explanation, width: int, glyphs: Glyphs, letters: bool = False, assumed: tuple[str, ...] = ()
) -> list[Line]:
    """Return the whole explanation as lines of exactly ``width`` cells.

    ``letters``: bars are drawn with the categories' letters, as there is no colour to tell them apart. ``assumed``:
    what else was taken for granted, beside what the projection says.
    """
    paper = Paper(max(LEAST, width), glyphs, letters or glyphs.ascii, _unit(explanation))
    lines = [*_title(explanation, paper)]
    if explanation.projection.refused:
        lines += paper.told(f"not possible: {explanation.projection.refused}", "bad")
    else:
        for heading, remark, block in _sections(explanation, paper, assumed):
            if block:
                lines += [(), *paper.heading(heading, remark), *block]
    found = [pad(line, width) for line in lines]
    return [in_ascii(line) for line in found] if glyphs.ascii else found


def _unit(explanation: Explanation) -> Unit:
    sizes = [size or 0 for moment in explanation.moments for name, size in moment.held.items() if name != "runtime"]
    return unit_for(sizes)


def _sections(
    explanation: Explanation, paper: Paper, assumed: tuple[str, ...]
) -> Iterator[tuple[str, str, list[Line]]]:
    unit = paper.unit.name
    yield "Who holds what", "", share_lines(explanation, paper)
    yield "At its peak", unit, peak_lines(explanation, paper)
    yield f"One step, {_worst_ranks(explanation)}", unit, step_lines(explanation, paper)
    yield "By which formula", "", formula_lines(explanation, paper)
    told = f"{unit}; time at least, at {_speed(explanation)}"
    yield "What the busiest GPU sends per step", told, collective_lines(explanation, paper)
    yield "What changes it", unit, knob_lines(explanation, paper)
    yield "Often got wrong", "", _mistakes(explanation, paper)
    granted = (*explanation.projection.assumptions, *assumed)
    yield "Taken for granted", "", [line for text in granted for line in paper.told(text)]


def _speed(explanation: Explanation) -> str:
    """Return in words how fast GPUs are taken to send."""
    at, taken = explanation.at, " taken; --link" if explanation.link_assumed else ""
    if not explanation.several_nodes:
        return f"{at.node_link / 1e9:g} GB/s{taken}"
    return f"{at.node_link / 1e9:g} GB/s within a node, {at.link / 1e9:g} GB/s per GPU between nodes{taken}"


def _title(explanation: Explanation, paper: Paper) -> Iterator[Line]:
    rank = explanation.projection.rank
    name = explanation.strategy
    words = strategy_words(rank.plan).removeprefix(f"{name} · ") if rank is not None else ""
    shown, *rest = paper.fold(words, paper.width - len(name) - 3)
    yield pad([(f" {name}", "head bold"), (f"  {shown}", "head")], paper.width, "head")
    for row in rest:
        yield pad([(" " * (len(name) + 3) + row, "head")], paper.width, "head")
    yield from paper.told(explanation.summary, "text")
    if explanation.projection.refused or rank is None:
        return
    yield from paper.told(*_verdict(explanation, paper))


def _verdict(explanation: Explanation, paper: Paper) -> tuple[str, str]:
    """Return what the worst rank needs, and whether that fits, with the style of the sentence."""
    found, rank = explanation.projection, explanation.projection.rank
    if rank is None or rank.total is None:
        return "How much a GPU needs in all is not known; the formulas below say why.", "warn"
    text = f"{paper.size(rank.total)} at the peak, {WHEN.get(rank.budget.peak() or '', '')}"
    if len(explanation.kinds) > 1:
        text += f", on {_worst_ranks(explanation)}"
    if found.headroom is None:
        return f"{text}.", "number"
    capacity = paper.size(explanation.run.device_memory)
    if found.headroom < 0:
        return f"{text}: {paper.size(-found.headroom)} more than the {capacity} of a GPU.", "bad"
    most = found.max_micro_batch
    batch = f"; micro-batch {most} is the most that fits" if most else ""
    return f"{text}: {paper.size(found.headroom)} of {capacity} stay free{batch}.", "good"


def _worst_ranks(explanation: Explanation) -> str:
    """Return in words which ranks need the most."""
    rank = explanation.projection.rank
    if rank is None:
        return ""
    alike = next((kind for kind in explanation.kinds if rank.ranks[0] in kind.ranks), rank)
    return ranks_words(alike.ranks)


def _mistakes(explanation: Explanation, paper: Paper) -> list[Line]:
    lines: list[Line] = []
    for mistake in explanation.mistakes:
        sizes = {name: paper.size(value) for name, value in mistake.sizes.items()}
        mark = "x" if paper.glyphs.ascii else "✗"
        lines += paper.hanging(mark, "bad", f"“{mistake.claim.format(**sizes)}”", "text bold")
        lines += paper.told(mistake.truth.format(**sizes), "text", indent=3)
        if mistake.source:
            lines += paper.told(mistake.source, "dim", indent=3)
    return lines
