"""One whole frame of the ranks screen as lines, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from ranktop.tui.session.findings.keeper import TELL_AGES
from ranktop.tui.session.findings.scene import Key
from ranktop.tui.session.progress import of_job
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.detail import TABLE_WIDTH, detail
from ranktop.tui.view.findings import about, serious, strip, told_whole, with_notes
from ranktop.tui.view.gauges import Gauges
from ranktop.tui.view.header import footer, header, legend, news, position
from ranktop.tui.view.layout import Heights, heights, scrolled
from ranktop.tui.view.options import Options
from ranktop.tui.view.progress import line as progress_line
from ranktop.tui.view.rows import Table, heading, left_line, right_line, table
from ranktop.tui.view.scale import Shown
from ranktop.tui.view.text import Line, cut, in_ascii, pad


@dataclass(frozen=True, slots=True)
class Frame:
    """Lines of every part and the cells that the right half of the list takes."""

    table: Table
    heights: Heights
    right: int
    header: Line
    heading: Line
    bars: tuple[Line, ...]
    numbers: tuple[Line, ...]
    legend: Line
    findings: tuple[Line, ...]
    facts: tuple[Line, ...]
    """Left part of the detail panel: the memory table, which seldom changes."""
    side: tuple[Line, ...]
    """Right part of the detail panel, with the numbers of the last step."""
    footer: Line


def frame(snapshot: Snapshot, link: Link, options: Options, size: tuple[int, int], notice: str, now: float) -> Frame:
    """Draw a snapshot into (width, height) cells; moves selection and scroll position to where there are rows.

    ``now`` is the session's clock: a frozen snapshot is older.
    """
    width, height = size
    rows = table(snapshot, options, width)
    some = len(rows.rows) < rows.total_ranks
    grave = len(serious(snapshot.findings))
    job = of_job(snapshot)
    share = heights(height, len(rows.rows), options.detail, grave, keep_legend=some, progress=job is not None)
    at = _select(rows, options)
    options.top = scrolled(options.top, at, share.ranks, len(rows.rows))
    right = min(rows.columns.right_width, width)
    left = width - right
    left_title, right_title = heading(rows, options, left)
    visible = rows.rows[options.top : options.top + share.ranks]
    place = position(options.top, share.ranks, len(rows.rows), options.glyphs)
    told_lines = strip(snapshot, options.glyphs, width, share.findings - share.progress)
    if job is not None and share.progress:
        told_lines = [progress_line(job, options.glyphs, width, ended=snapshot.state == "ended"), *told_lines]
    told = told_whole(told_lines, snapshot.findings)
    foot = footer(options, notice or news(snapshot, link, options, now), place, width)
    ready = in_ascii if options.glyphs.ascii else _as_it_is
    panel = _panel(snapshot, rows, options, (width, share.detail), told)
    return Frame(
        table=rows,
        heights=share,
        right=right,
        header=ready(header(snapshot, link, options, width, None if share.progress else job)),
        heading=ready(pad((*pad(left_title, left), *right_title), width)),
        bars=tuple(ready(pad(left_line(row, rows, options, left), left)) for row in visible),
        numbers=tuple(ready(pad(right_line(row, rows, options), right)) for row in visible),
        legend=ready(legend(rows, options, width)),
        findings=tuple(ready(line) for line in told_lines),
        facts=tuple(left for left, _ in panel),
        side=tuple(right for _, right in panel),
        footer=ready(with_notes(foot, snapshot, options.glyphs, width)),
    )


def _panel(
    snapshot: Snapshot, rows: Table, options: Options, size: tuple[int, int], told: frozenset[Key]
) -> list[tuple[Line, Line]]:
    """Return the detail panel's lines, each in two parts; those of the last picture while only numbers can be new.

    Nobody reads forty numbers a second. They stand for ``options.hold`` seconds, and only while all of them are fresh:
    what is said to be old, and what happened, is drawn at once.
    """
    at = rows.index(options.selected)
    row = rows.rows[at] if at is not None else None
    key = _panel_key(snapshot, row, rows, options, size, told)
    kept = options.panel
    if kept is not None and key is not None and kept[0] == key and 0 <= snapshot.now - kept[1] < options.hold:
        return kept[2]
    ready = in_ascii if options.glyphs.ascii else _as_it_is
    left = min(size[0], TABLE_WIDTH)
    lines = [cut(ready(line), left) for line in detail(snapshot, rows, options, *size, told)]
    options.panel = (key, snapshot.now, lines)
    return lines


def _panel_key(
    snapshot: Snapshot, row: Shown | None, rows: Table, options: Options, size: tuple[int, int], told: frozenset[Key]
) -> object | None:
    """Return what the panel depends on besides numbers; None while some of it has an age to be told, or none at all."""
    view = row.view if row is not None else None
    sample = view.sample if view is not None else None
    gauges = Gauges.of(view) if view is not None else None
    if view is None or sample is None or gauges is None or view.stale or view.state != "ok":
        return None
    if snapshot.behind or not gauges.fresh:
        return None
    told_here = about(view.rank, snapshot.findings)
    if any(one.rule in TELL_AGES for one in told_here):
        return None
    found = [(one.key, one.severity) for one in told_here]
    odd = sample.progress.not_finite if sample.progress is not None else {}
    happened = sample.activity, view.validating, sample.ooms, sample.retries, odd, gauges.throttled()
    return (
        view.rank, view.restart, view.card, view.budget is None, view.marks, view.box is None, view.former is None,
        happened, snapshot.state, snapshot.step == 0, rows.scale, rows.budgeted, size, told, found, options.moment,
        options.page, options.frozen_at, options.letters, options.glyphs, row.moment if row is not None else None,
    )  # fmt: skip


def _as_it_is(line: Line) -> Line:
    return line


def _select(rows: Table, options: Options) -> int | None:
    """Keep the selection on its rank; when that is not shown, take the first row."""
    at = rows.index(options.selected)
    if at is None and rows.rows:
        at, options.selected = 0, rows.rows[0].view.rank
    return at
