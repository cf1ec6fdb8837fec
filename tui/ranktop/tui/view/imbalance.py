"""The grid of all ranks as lines: one cell a rank, shaded by how far it is from its peers, outliers ringed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ranktop.tui.keys import IMBALANCE_KEYS
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.nodes import NODE_LOST
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.columns import device_name
from ranktop.tui.view.findings import about, mark, style_of
from ranktop.tui.view.grid import GAP, Axes, Folded, by_mesh, by_node, fold, has_mesh
from ranktop.tui.view.header import title_line
from ranktop.tui.view.hints import at_replay, hint_line, place
from ranktop.tui.view.imbalance_words import Words, metric_tabs, scale_lines
from ranktop.tui.view.imbalance_zoom import zoom_lines
from ranktop.tui.view.layout import scrolled
from ranktop.tui.view.metrics import METRICS, Field, field_of
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Glyphs, Line, Span, first_that_fits, fit, length, merge, pad, plain

HINTS: Final = (
    ("m", "metric"), ("↑↓←→", "rank"), ("n", "next !"), ("enter", "zoom"), ("esc", "back"), ("?", "help"),
    ("q", "quit"), ("c", "diff"), ("f", "findings"), ("space", "freeze"), ("d", "device"),
)  # fmt: skip
HELP: Final = (
    "A cell is one rank. Its digit and its shade say how far it is from the median of its peers: 4 and 5 are at it, 0 "
    "is far below, 9 far above. The scale under the grid says how much that is; it always spans a little, so that "
    "noise stays pale. Where there is room a cell shows the value itself.",
    "A ringed cell, [9], has a finding. A dot is a rank whose value is not known. Enter shows the ranks of a row with "
    "their values, Enter again goes to the rank.",
)
"""Text of the help, above the keys."""

CELLS: Final = (3, 2, 1)
"""Widths of a cell that shows a digit, the best first."""

FRESH: Final = 1.0
"""Seconds for which values are kept; in proportion longer with more than ``MANY`` ranks."""
MANY: Final = 256


@dataclass(slots=True)
class Grid:
    """What the person sees of it."""

    metric: int = 0
    mesh: bool = False
    """By the axes of the job's mesh, not by nodes."""
    zoomed: bool = False
    top: int = 0
    axes: Axes | None = None
    """As it was drawn last."""
    folded: Folded | None = None
    kept: tuple[object, Field] | None = None
    """When and of what the values on the screen were read, and they."""

    def field(self, snapshot: Snapshot) -> Field:
        """Return the metric's values; the same ones for a second."""
        every = FRESH * max(1.0, len(snapshot.ranks) / MANY)
        key = (self.metric, int(snapshot.now / every), len(snapshot.ranks))
        if self.kept is None or self.kept[0] != key:
            self.kept = (key, field_of(METRICS[self.metric], snapshot))
        return self.kept[1]


def imbalance_lines(
    snapshot: Snapshot, link: Link, grid: Grid, options: Options, size: tuple[int, int], notice: str
) -> list[Line]:
    """Draw the grid into (width, height) cells; moves the selection to where there is a rank."""
    width, height = max(1, size[0]), max(1, size[1])
    if snapshot.rank(options.selected) is None and snapshot.ranks:
        options.selected = snapshot.ranks[0].rank
    if grid.mesh and not has_mesh(snapshot):
        grid.mesh = False
    grid.axes = by_mesh(snapshot) if grid.mesh else by_node(snapshot)
    found = grid.field(snapshot)
    grave = _grave(snapshot)
    words = Words.of(found)
    title = f"imbalance by {grid.axes.down} and {grid.axes.across}" if width >= 110 else "imbalance"
    head = [title_line(title, snapshot, link, options, width)] if height > 2 else []
    if height > 6:
        head.append(metric_tabs(grid.metric, options, width))
    below = _below(snapshot, found, words, grave, grid, options, width, height)
    room = max(1, height - len(head) - len(below) - (1 if height > 1 else 0))
    row = grid.axes.rows[grid.axes.at(options.selected)[0]].ranks if grid.axes.rows else ()
    if grid.zoomed:
        body, whole, grid.top = zoom_lines(snapshot, row, found, words, grave, grid.top, options, (width, room))
    else:
        body, whole = _grid_lines(snapshot, found, words, grave, grid, options, (width, room))
        if row and len(row) + 2 <= room - len(body):
            # There is room for what a zoom would show.
            more, _, _ = zoom_lines(snapshot, row, found, words, grave, 0, options, (width, len(row) + 1))
            body += [pad((), width), *more]
    body += [pad((), width)] * (room - len(body))
    right = place(grid.top, room, whole, options.glyphs)
    lines = [*head, *body[:room], *below]
    foot = hint_line(at_replay(HINTS, options), notice, right, options.glyphs, width, IMBALANCE_KEYS)
    return [*lines, foot][:height] if height > 1 else lines[:1]


def _grave(snapshot: Snapshot) -> dict[int, Finding]:
    """Return rank -> the gravest finding about it that is more than a note."""
    out: dict[int, Finding] = {}
    for finding in snapshot.findings:
        if finding.severity != "info":
            for rank in finding.ranks:
                out.setdefault(rank, finding)
    return out


def _grid_lines(
    snapshot: Snapshot, found: Field, words: Words, grave: Mapping[int, Finding], grid: Grid, options: Options,
    size: tuple[int, int],
) -> tuple[list[Line], int]:  # fmt: skip
    width, room = size
    axes = grid.axes
    if axes is None or not axes.rows:
        return [pad([(" waiting for the first rank", "dim")], width)], 1
    valued = max(6, words.width + 3)
    titled = room > 2
    folded = grid.folded = fold(axes, width, room - titled, (valued, *CELLS))
    lines = [_heading(axes, folded, width)] if titled else []
    shown = max(1, room - len(lines))
    at = next((n for n, row in enumerate(folded.rows) if options.selected in row.ranks), 0)
    grid.top = scrolled(grid.top, at % folded.height, shown, folded.height)
    views = {view.rank: view for view in snapshot.ranks}
    for line in range(grid.top, min(folded.height, grid.top + shown)):
        spans: list[Span] = [(" ", "")]
        for block in range(folded.blocks):
            row = folded.row(line, block)
            if row is None:
                break
            if folded.label:
                spans.append((fit(row.label, folded.label, ">") + " ", "label"))
            for rank in row.ranks:
                _cell(spans, views[rank], found, words, grave.get(rank), folded.cell, options)
            missing = folded.columns - len(row.ranks)
            spans.append((" " * (missing * folded.cell + (GAP if folded.label else 0)), ""))
        lines.append(pad(spans, width))
    return lines, folded.height + titled


def _heading(axes: Axes, folded: Folded, width: int) -> Line:
    """Name the rows, and number the columns of each block where a number fits into a cell."""
    if not folded.label:
        text = f" {axes.across}s side by side, {axes.down}s down and then to the right"
        return pad([(fit(text, width), "axis")], width)
    spans: list[Span] = [(" ", "")]
    first = next((row.first for row in folded.rows if row.ranks), 0)
    for block in range(folded.blocks):
        if folded.label:
            spans.append((fit(axes.down if len(axes.down) <= folded.label else "", folded.label, ">") + " ", "label"))
        if folded.cell > 1 and folded.columns < 10 ** (folded.cell - 1):
            numbers = "".join(fit(f"{first + at} ", folded.cell, ">") for at in range(folded.columns))
        else:
            numbers = fit(f"{axes.across}s" if block == 0 else "", folded.columns * folded.cell)
        spans.append((numbers + " " * (GAP if folded.label else 0), "axis"))
    return pad(merge(spans), width)


def shape(view: RankView, glyphs: Glyphs) -> str:
    """Return what stands for a rank without a value: how it is, or a dot where only the value is not known."""
    state = view.state
    if state in ("failed", "killed", "vanished"):
        return glyphs.failed
    if state in ("silent", NODE_LOST):
        return glyphs.silent
    marks = {"ended": glyphs.ended, "missing": glyphs.waiting, "starting": glyphs.starting}
    return marks.get(state, glyphs.missing)


def _cell(
    spans: list[Span], view: RankView, found: Field, words: Words, finding: Finding | None, cells: int, options: Options
) -> None:
    """Draw one rank: brackets or a mark around what has a finding, the selected one in reverse."""
    chosen = view.rank == options.selected
    level = found.level(view.rank)
    value = found.values.get(view.rank)
    glyphs = options.glyphs
    if level is None and value is None:
        text, style = shape(view, glyphs), "dim"
    else:
        text = "5" if level is None else str(level)
        style = "text" if level is None else f"heat{level}"
        if cells >= 6:
            text = words.short(value)
    if cells == 1:
        text = mark(finding, glyphs) if finding is not None else text
        style = f"{style_of(finding)} bold" if finding is not None else style
        spans.append((text, f"{style} reverse" if chosen else style))
        return
    ring = f"{style_of(finding)} bold" if finding is not None else style
    if cells == 2:
        lead = mark(finding, glyphs) if finding is not None else ">" if chosen else " "
        more = " reverse" if chosen else ""
        spans += [(lead, f"{ring}{more}"), (text, f"{style}{' bold' if finding else ''}{more}")]
        return
    left, right = ("[", "]") if finding is not None else (">", "<") if chosen else (" ", " ")
    inner = cells - 2 if cells == 3 else cells - 3
    more = " reverse" if chosen else ""
    spans += [(left, f"{ring}{more}"), (fit(text, inner, ">"), f"{style}{' bold' if finding else ''}{more}"),
              (right, f"{ring}{more}")]  # fmt: skip
    if cells > 3:
        spans.append((" ", ""))


def _below(
    snapshot: Snapshot, found: Field, words: Words, grave: Mapping[int, Finding], grid: Grid, options: Options,
    width: int, height: int,
) -> list[Line]:  # fmt: skip
    """Say what the shades mean, who is at the ends, and what of the selected rank is known."""
    if height < 10:
        return []
    lines = scale_lines(snapshot, found, words, len(grave), options, width, shapes=_shapes(snapshot, found, options))
    view = snapshot.rank(options.selected)
    if view is None:
        return lines
    lines.append(_selected(view, found, words, options, width))
    told = about(view.rank, snapshot.findings)
    for finding in told[: 1 if height < 30 else 3]:
        text = f" {mark(finding, options.glyphs)} {plain(finding.sentence)}"
        lines.append(pad([(fit(text, width), style_of(finding))], width))
    most = 1 if height < 30 else 3
    return lines + [pad((), width)] * (most - min(most, len(told)))


def _shapes(snapshot: Snapshot, found: Field, options: Options) -> list[tuple[str, str]]:
    """Name the shapes that stand for ranks without a value, with how many there are."""
    names: dict[tuple[str, str], int] = {}
    for view in snapshot.ranks:
        if view.rank not in found.values:
            told = view.end is not None or view.state in ("silent", NODE_LOST, "starting")
            word = "not seen" if view.state == "missing" else view.state if told else "not known"
            key = (shape(view, options.glyphs), word)
            names[key] = names.get(key, 0) + 1
    return [(mark_, f"{number} {word}") for (mark_, word), number in names.items()]


def _selected(view: RankView, found: Field, words: Words, options: Options, width: int) -> Line:
    dot = f" {options.glyphs.dot} "
    who = [f"rank {view.rank}"]
    if view.card is not None:
        who += [plain(view.card.node), device_name(view)]
    left: list[Span] = [(f" {dot.join(part for part in who if part)}", "panel bold"), ("  ", "panel")]
    value = found.values.get(view.rank)
    if value is None:
        state = "" if view.state == "ok" else f" ({view.state})"
        left.append((f"{found.metric.title} not known{state}", "panel dim"))
    else:
        left.append((f"{found.metric.title} {words.full(value)}", "panel bold"))
        room = width - length(left) - 2
        left.append((f"  {first_that_fits(words.away(found, view.rank), room)}", "panel"))
    return pad(left, width, "panel")
