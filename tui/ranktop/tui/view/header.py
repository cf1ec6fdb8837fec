"""The lines around the list: what job this is, how it goes, how fresh it is; legend and key hints."""

from __future__ import annotations

from typing import Final

from ranktop.budget.terms import CATEGORIES
from ranktop.tui.keys import KEYS
from ranktop.tui.session.progress import JobProgress
from ranktop.tui.session.rank_view import GONE
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.bar import LETTERS
from ranktop.tui.view.hints import Hints, category_keys, hint_line
from ranktop.tui.view.label import BRAND, label_cells
from ranktop.tui.view.nodes import count_words
from ranktop.tui.view.options import MOMENT_WORDS, Options
from ranktop.tui.view.plan import strategy
from ranktop.tui.view.progress import short_loss
from ranktop.tui.view.rows import Table
from ranktop.tui.view.status import SHORT, end_sentence, job_state
from ranktop.tui.view.text import Glyphs, Line, Span, beside, count, duration, fit, length, merge, pad, plain, seconds

NOTICE_SECONDS: Final = 60.0
"""How long a mark is told in the line of hints."""

GAP: Final = 4
"""Cells at least between what stands left and right in a title."""

PLACE: Final = 24
"""Cells at most for the name of another machine."""

HINTS: Final = (
    ("?", "help"), ("q", "quit"), ("i", "imbalance"), ("s", "strategies"), ("!", "findings"), ("d", "device"),
    ("c", "diff"), ("m", "moment"), ("/", "filter"), ("space", "freeze"), ("z", "scale"), ("o", "order"),
    ("enter", "detail"), ("tab", "page"), ("t", "theme"),
)  # fmt: skip
"""Keys named in the last line, by worth."""

REPLAY_HINTS: Final[Hints] = (
    ("space", "play/pause"), (", .", "1 s"), ("( )", "1 min"), ("{ }", "finding"), ("< >", "speed"), ("R", "live"),
    ("?", "help"), ("q", "quit"), ("0-9 $", "jump"), ("i", "imbalance"), ("!", "findings"),
)  # fmt: skip
"""The same of a recording."""


def header(snapshot: Snapshot, link: Link, options: Options, width: int, told: JobProgress | None = None) -> Line:
    """Say which job, what strategy, how many ranks, which step and how alive the link is, in one line.

    ``told``: of which the loss is said here, for it has no line of its own.
    """
    glyphs = options.glyphs
    labels = label_cells(snapshot, options)
    whole, width = width, width - labels
    loss = [(" ", "head"), short_loss(told), ("  ", "head")] if told is not None else []
    right = merge([*loss, *progress(snapshot, options), *link_words(link, snapshot, glyphs), (" ", "head")])
    state = job_state(snapshot, glyphs)
    if loss and length(right) > width - 18:
        right = merge([*progress(snapshot, options), *link_words(link, snapshot, glyphs), (" ", "head")])
    if length(right) > width - 18 and state:
        right = merge([*state, ("   ", "head"), *link_words(link, snapshot, glyphs), (" ", "head")])
    if length(right) > width - 18:
        right = merge([*link_words(link, snapshot, glyphs), (" ", "head")])
    if length(right) > width - 8:
        right = ()
    room = width - length(right) - 1
    return beside(_identity(snapshot, options, room, branded=not labels), right, whole, "head")


def _identity(snapshot: Snapshot, options: Options, room: int, *, branded: bool) -> Line:
    job = snapshot.job
    name = plain(job.name) if job else "no job"
    dot = f" {options.glyphs.dot} "
    card = next((view.card for view in snapshot.ranks if view.card and view.card.plan), None)
    words = strategy(card.plan).split(" · ") if card and card.plan else []
    ranks = f"{snapshot.world_size} rank{'' if snapshot.world_size == 1 else 's'}"
    nodes = count_words(snapshot)
    where = f"{ranks} on {nodes}" if nodes else ranks
    more = f"ckpt {plain(card.plan.checkpointing)}" if card and card.plan and card.plan.checkpointing else ""
    brand: list[Span] = [(BRAND, "head accent")] if branded else []
    title: list[Span] = [(f" {name}", "head bold")]
    fewer = [words[:number] for number in range(len(words) - 1, 0, -1)]
    lines: list[list[Span]] = []
    for lead, facts in (
        (brand, [*words, more, where]), (brand, [*words, where]), (brand, words), *((brand, some) for some in fewer),
        (brand, [ranks]), ([], words[:1]), (brand, []), ([], []),
    ):  # fmt: skip
        text = dot.join(plain(fact) for fact in facts if fact)
        lines.append([*lead, *title, (f"  {text}" if text else "", "head")])
    fitting = (line for line in lines if length(line) <= room)
    return pad(next(fitting, lines[-1]), max(0, room), "head")


def title_line(words: str, snapshot: Snapshot, link: Link, options: Options, width: int) -> Line:
    """Say which screen this is, of which job, at which step and how fresh, in one line."""
    job = plain(snapshot.job.name) if snapshot.job else "no job"
    left: list[Span] = [(f" {words}", "head bold"), (f"  {job}", "head")]
    labels = label_cells(snapshot, options)
    left = left if labels else [(BRAND, "head accent"), *left]
    told = link_words(link, snapshot, options.glyphs)
    frozen = ((" FROZEN ", "frozen"), ("  ", "head")) if options.frozen_at is not None else ()
    state = merge([*frozen, *job_state(snapshot, options.glyphs), ("  ", "head")])
    tail = (" ", "head")
    gap = GAP + labels
    rights = [merge([*parts, *told, tail]) for parts in (progress(snapshot, options), state, ())]
    choices = [(left, right) for right in rights] + [([(f" {words}", "head bold")], rights[-1])]
    left, right = next(
        ((one, other) for one, other in choices if length(one) + gap + length(other) <= width),
        ([(f" {words}", "head bold")], ()),
    )
    return beside(left, right, width, "head")


def progress(snapshot: Snapshot, options: Options) -> Line:
    """Return the step, its time and what the job as a whole does."""
    spans: list[Span] = []
    if options.frozen_at is not None:
        spans += [(" FROZEN ", "frozen"), ("  ", "head")]
    if snapshot.step:
        spans.append((f"step {count(snapshot.step)}", "head bold"))
        spans.append((f"  {seconds(snapshot.step_seconds, options.glyphs.dash)} s", "head"))
        spans.append(("   ", "head"))
    state = job_state(snapshot, options.glyphs)
    if state:
        spans += [*state, ("   ", "head")]
    return merge(spans)


def link_words(link: Link, snapshot: Snapshot, glyphs: Glyphs) -> Line:
    """Say how alive the link to the job is, and to which machine where it is another one."""
    words = _link_state(link, snapshot, glyphs)
    return merge([(f"{fit(plain(link.place), PLACE).rstrip()} ", "head"), *words]) if link.place else words


def _link_state(link: Link, snapshot: Snapshot, glyphs: Glyphs) -> Line:
    if link.state == "replay":
        return ((plain(link.detail), "head bold"),)
    if link.state == "live":
        if snapshot.state == "ended":
            return ((f"{glyphs.waiting} link to ended job", "head"),)
        alive = [view for view in snapshot.ranks if view.age is not None and view.state not in GONE]
        if alive and all(view.stale for view in alive):
            newest = min(view.age or 0.0 for view in alive)
            return ((f"{glyphs.live} live, data {duration(newest)} old", "head warn"),)
        if snapshot.behind:
            return ((f"{glyphs.live} live, data {duration(snapshot.behind)} old", "head warn"),)
        unread = link.lost + link.bad
        if unread:
            return ((f"{glyphs.live} live, {count(unread)} messages lost", "head warn"),)
        return ((f"{glyphs.live} live", "head good"),)
    age = "" if link.age is None else f" {duration(link.age)}"
    if link.state == "lost":
        return ((f"{glyphs.alert} link lost{age}", "head bad bold"),)
    if link.state == "ended":
        return ((f"{glyphs.ended} hub ended{age}", "head bold"),)
    return ((f"{glyphs.waiting} connecting", "head"),)


def legend(frame: Table, options: Options, width: int) -> Line:
    """Name the colours (or letters) of the categories and what the bar leaves out."""
    names = [name for name in CATEGORIES if name in frame.scale.drawn]
    for texts in (names, [SHORT.get(name, name) for name in names], [LETTERS[name] for name in names]):
        if sum(len(text) + 4 for text in texts) <= width:
            break
    shown = len(frame.rows)
    left = category_keys(zip(names, texts, strict=True), options)
    counts = "" if shown == frame.total_ranks else f"{shown} of {frame.total_ranks} ranks "
    return beside(left, ((counts, "label bold"),), width) if counts else pad(left, width)


def position(top: int, height: int, rows: int, glyphs: Glyphs) -> str:
    """Say which rows of a longer list are on the screen; empty when all are."""
    if rows <= height or height <= 0:
        return ""
    return f"rows {top + 1}{glyphs.dash}{min(rows, top + height)} of {rows}"


def footer(options: Options, notice: str, place: str, width: int) -> Line:
    """Show what just happened or needs saying, else the keys that matter most."""
    right: list[Span] = [(f" {place} ", "label bold")] if place else []
    if options.typing:
        return _typing(options, right, width)
    if options.filter:
        right.append((f" filter: {plain(options.filter)} ", "frozen"))
    hints: Hints = HINTS
    if options.replaying:
        hints = tuple(hint for hint in REPLAY_HINTS if hint[0] != "R" or options.live_beside)
    return hint_line(hints, notice, right, options.glyphs, width, KEYS)


def _typing(options: Options, right: list[Span], width: int) -> Line:
    text = plain(options.filter)
    hint = "  Enter keeps, Esc drops it" if text else "  rank, node, device or state; ! = out of line"
    return beside([(" filter: ", "key"), (text, "bold"), (" ", "reverse"), (hint, "dim")], right, width)


def news(snapshot: Snapshot, link: Link, options: Options, now: float) -> str:
    """Return the one thing about the stream or the selected rank that a person should be told now."""
    if link.state not in ("live", "replay") and link.detail:
        return f"{options.glyphs.alert} {plain(link.detail)}"
    view = snapshot.rank(options.selected)
    if not options.detail and view is not None and view.end is not None and view.state != "ended":
        return f"{options.glyphs.alert} {end_sentence(view)}"
    if options.frozen_at is not None:
        return f"frozen: this is the picture of {duration(now - options.frozen_at)} ago (space: go on)"
    recent = [mark for mark in snapshot.marks if snapshot.now - mark.at < NOTICE_SECONDS]
    if not recent:
        return ""
    mark = recent[-1]
    what = plain(mark.what).replace("-", " ")
    detail = f": {plain(mark.detail)}" if mark.detail else ""
    return f"{options.glyphs.alert} {what} {duration(snapshot.now - mark.at)} ago{detail}"


def moment_title(options: Options, moment: str | None) -> str:
    """Name the moment that is on the screen; for a peak also which moment that is."""
    chosen = MOMENT_WORDS[options.moment]
    if options.moment == "peak" and moment in MOMENT_WORDS and moment != "now":
        return f"peak: {MOMENT_WORDS[moment]}"
    if moment == "now" and options.moment != "now":
        return "now (no step finished yet)"
    return chosen
