"""What is known of a rank's end, as lines: what it asked for, what it held, its last minutes, where it was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from ranktop.budget.terms import CATEGORIES, Memory
from ranktop.tui.keys import POSTMORTEM_KEYS
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.words import end_words, what_went_wrong
from ranktop.tui.session.rank_view import GONE, RankView
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.bar import DRAWN, LETTERS, cells, half_blocks, letters
from ranktop.tui.view.chart import area, buckets, frame_chart, stacked
from ranktop.tui.view.columns import device_name
from ranktop.tui.view.findings import about, mark, style_of
from ranktop.tui.view.header import title_line
from ranktop.tui.view.hints import hint_line, place, window
from ranktop.tui.view.options import Options
from ranktop.tui.view.stack import call_lines
from ranktop.tui.view.text import (
    Line,
    Span,
    count,
    duration,
    fit,
    human,
    length,
    merge,
    pad,
    plain,
    size,
    unit_for,
)
from ranktop.wire.schema import Box

HINTS: Final = (
    ("esc", "back"), ("←→", "next death"), ("↑↓", "scroll"), ("?", "help"), ("q", "quit"), ("f", "findings"),
    ("r", "ranks"), ("c", "diff"),
)  # fmt: skip
HELP: Final = (
    "What a rank left behind that ran out of memory, or what was last heard of one that died: the allocation that "
    "failed beside what was free, what its memory was full of then, its last two minutes, the inputs of that step, how "
    "far its collectives had come, the calls that led there, and which changes would have fitted.",
)
"""Text of the help, above the keys."""

SPAN: Final = 120.0
"""Seconds of history before the end."""
ROWS: Final = 9
WIDE: Final = 100
TITLE: Final = 13
TOLD: Final = ("oom", "death", "forecast", "growth")
"""Rules whose findings belong to the story of an end."""
DIED: Final = ("failed", "killed", "vanished")


def has_account(view: RankView) -> bool:
    """Tell whether there is something to be told after a rank's death, in this life or the one before."""
    return view.box is not None or view.former_box is not None or view.state in DIED


def dead(snapshot: Snapshot) -> list[int]:
    """Return the ranks that have an account, by number."""
    return [view.rank for view in snapshot.ranks if has_account(view)]


@dataclass(slots=True)
class Account:
    """How far it is scrolled."""

    top: int = 0


def postmortem_lines(
    snapshot: Snapshot, link: Link, account: Account, options: Options, size_: tuple[int, int], notice: str
) -> list[Line]:
    """Draw the selected rank's end into (width, height) cells; keeps the scroll position where it can be."""
    width, height = max(1, size_[0]), max(1, size_[1])
    view = snapshot.rank(options.selected)
    head = [title_line("post-mortem", snapshot, link, options, width)] if height > 2 else []
    if view is None or not has_account(view):
        who = "no rank is selected" if view is None else f"rank {view.rank} neither ran out of memory nor died"
        body = [pad([(f" {who}", "dim")], width)]
    else:
        body = _body(view, snapshot, options, width)
    room = max(1, height - len(head) - (1 if height > 1 else 0))
    account.top, shown = window(body, account.top, room)
    shown += [pad((), width)] * (room - len(shown))
    foot = hint_line(
        HINTS, notice, place(account.top, room, len(body), options.glyphs), options.glyphs, width, POSTMORTEM_KEYS
    )
    return [*head, *shown, foot][:height]


def _body(view: RankView, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    box = view.box or view.former_box
    lines = [_identity(view, snapshot, options, width)]
    lines += _story(view, box, snapshot, options, width)
    memory = box.memory if box is not None else view.sample.now if view.sample is not None else None
    if memory is not None:
        lines += [pad((), width), *_held(memory, view, box, options, width)]
    lines += _last_minutes(view, box, options, width)
    if box is not None:
        lines += _where(box, width)
    return lines


def _identity(view: RankView, snapshot: Snapshot, options: Options, width: int) -> Line:
    facts = [f"rank {view.rank}"]
    if view.card is not None:
        facts += [plain(view.card.node), device_name(view), plain(view.card.device.name), f"pid {view.card.pid}"]
    at = view.boxed or view.ended or view.former_boxed
    right = "" if at is None else f"{duration(snapshot.now - at)} ago "
    left = f" {options.glyphs.failed} " + f" {options.glyphs.dot} ".join(fact for fact in facts if fact)
    room = max(0, width - len(right))
    return merge([(fit(left, room), "panel bad bold"), (fit(right, width - room), "panel")])


def _told(title: str, text: str, style: str, width: int) -> list[Line]:
    indent = TITLE if width >= 44 else 1
    lines: list[Line] = []
    for at, part in enumerate(wrap(text, max(8, width - indent - 1))):
        lead = f" {title}".ljust(indent)[:indent] if at == 0 and indent > 1 else " " * indent
        lines.append(pad([(lead, "label"), (part, style)], width))
    return lines


def _story(view: RankView, box: Box | None, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    """Tell what happened: error, sizes, end of the process, the life it was, and what would have fitted."""
    lines: list[Line] = []
    if box is not None:
        lines += _told("error", what_went_wrong(box.error), "bad bold", width)
        phase = f" in {plain(box.phase)}" if box.phase else ""
        lines += _told(
            "when", f"step {count(box.step + 1)}{phase}, {count(box.step)} steps finished before", "text", width
        )
        lines += _sizes(box, width)
    ended = "" if view.end is None else end_words(view.end)
    if ended:
        said = _without(ended, what_went_wrong(box.error)) if box is not None else ended
        lines += _told("end", said, "text" if box is not None else "bad bold", width)
    first = snapshot.culprit()
    if first is not None and first is not view and first.end is not None and view.end is not None:
        lines += _told("first", f"rank {first.rank} {end_words(first.end)}", "warn", width)
    if view.box is None and view.former_box is not None:
        how = f": it {end_words(view.former)}" if view.former is not None else ""
        now = "it has ended too" if view.state in GONE else f"the rank is {view.state} again"
        life = f"this was the life before restart {view.restart}{how}; {now}"
        lines += _told("life", life, "warn", width)
    elif view.restart:
        lines += _told(
            "life", f"after {count(view.restart)} elastic restart{'' if view.restart == 1 else 's'}", "dim", width
        )
    for finding in _findings(view, snapshot):
        text = plain(finding.sentence)
        if text != f"rank {view.rank} {ended}":
            lines += _told("finding", f"{mark(finding, options.glyphs)} {text}", style_of(finding), width)
        if finding.advice:
            lines += _told("do", plain(finding.advice), "text", width)
    return lines


def _without(ended: str, error: str) -> str:
    """Leave out of a process's end the error that stands above it."""
    how, _, detail = ended.partition(": ")
    return how if detail and detail.rpartition(": ")[2] in error else ended


def _findings(view: RankView, snapshot: Snapshot) -> list[Finding]:
    return [one for one in about(view.rank, snapshot.findings) if one.rule in TOLD][:3]


def _sizes(box: Box, width: int) -> list[Line]:
    facts = (
        ("asked for", box.asked, "asked"), ("free", box.free, "free"), ("of", box.limit, "limit"),
        ("largest free block", box.allocator.largest_free, "largest_free"),
    )  # fmt: skip
    spans = [f"{name} {human(value)}" for name, value, _ in facts if value is not None]
    lines = _told("memory", ", ".join(spans), "bold", width) if spans else []
    unknown = [plain(box.reasons[field]) for _, value, field in facts if value is None and box.reasons.get(field)]
    return lines + [line for reason in unknown for line in _told("not known", reason, "dim", width)]


def _held(memory: Memory, view: RankView, box: Box | None, options: Options, width: int) -> list[Line]:
    """Draw what the memory was full of, and what did not fit, on the scale of the limit."""
    amounts = memory.by_category()
    known = {name: value for name, value in amounts.items() if value}
    used = sum(value for name, value in known.items() if name in DRAWN)
    limit = (box.limit if box is not None else None) or memory.total or used or 1
    asked = box.asked if box is not None and box.asked else 0
    scale = max(limit, used + asked)
    unit = unit_for(scale)
    room = max(0, width - 2)
    drawn = cells(known, scale, room)
    bar = letters(drawn, drawn, False, options.glyphs) if options.letters else half_blocks(drawn, drawn, False)
    what = "Memory when it happened" if box is not None else "Memory in its last sample"
    lines = [pad([(f" {what}, full bar = {human(scale)}", "label bold")], width)]
    lines.append(pad([(" ", ""), *bar], width))
    spans: list[Span] = [(" ", "")]
    for name in CATEGORIES:
        value = amounts.get(name)
        if value is None or (not value and name not in ("free", "activations")):
            continue
        key = LETTERS.get(name, ".")
        swatch = key if options.letters else options.glyphs.swatch
        piece: list[Span] = [(f"{swatch} ", f"key:{key}"), (f"{name} ", "dim"), (f"{size(value, unit, 2)}  ", "number")]
        if length(spans) + length(piece) > width:
            lines.append(pad(spans, width))
            spans = [(" ", "")]
        spans += piece
    lines.append(pad([*spans, (f"{unit.name}", "dim")], width))
    if asked and used + asked > limit:
        text = f" {human(asked)} more did not fit: {human(used + asked - limit)} over"
        lines.append(pad([(fit(text, width), "bad")], width))
    unknown = [name for name in CATEGORIES if amounts.get(name) is None]
    if unknown:
        lines += _told("not known", ", ".join(unknown), "dim", width)
    return lines


def _last_minutes(view: RankView, box: Box | None, options: Options, width: int) -> list[Line]:
    ring = view.history
    end = view.boxed or view.ended or view.former_boxed
    if ring is None or len(ring) < 2 or width < 30:
        return []
    end = end if end is not None else ring.column("t")[-1]
    cells_ = min(width - 2, 100)
    columns = {name: buckets(ring, name, cells_, end, SPAN) for name in ("used", "states", "activations", "reserved")}
    known = [value for values in columns.values() for value in values if not math.isnan(value)]
    if not known:
        return []
    top = float((box.limit if box is not None else None) or max(known))
    top = max(top, max(known))
    if options.letters:
        name = "used" if any(not math.isnan(value) for value in columns["used"]) else "reserved"
        body, title = area(columns[name], top, ROWS - 2, options.glyphs, "chart"), name
    else:
        stacks = [_stack(*values) for values in zip(*columns.values(), strict=True)]
        body, title = stacked(stacks, top, ROWS - 2), "states, activations, cache, rest of the device"
    lines = frame_chart(f"Last two minutes: {title}", human(int(top)), body, SPAN, cells_)
    axis = pad([(fit(f"{duration(SPAN)} before", cells_ - 3) + "end", "axis")], cells_)
    return [pad((), width), *(pad([(" ", ""), *line], width) for line in [*lines[:-1], axis])]


def _stack(used: float, states: float, activations: float, reserved: float) -> dict[str, float]:
    tensors = sum(0.0 if math.isnan(value) else value for value in (states, activations))
    held = 0.0 if math.isnan(reserved) else reserved
    whole = 0.0 if math.isnan(used) else used
    return {"o": states, "a": activations, "c": max(0.0, held - tensors), "r": max(0.0, whole - max(held, tensors))}


def _where(box: Box, width: int) -> list[Line]:
    """Say what went into the step, how far the collectives had come, and which calls led there."""
    lines: list[Line] = [pad((), width)]
    if box.inputs:
        lines += _told("inputs", ", ".join(map(plain, box.inputs)), "text", width)
    elif box.reasons.get("inputs"):
        lines += _told("inputs", f"not known: {plain(box.reasons['inputs'])}", "dim", width)
    for group in box.collectives.groups:
        name = plain(group.description or group.name)
        done = "unknown" if group.completed is None else count(group.completed)
        ahead = "" if group.enqueued is None else f", {count(group.enqueued)} enqueued"
        of = "" if group.size is None else f" ({count(group.size)} ranks)"
        lines += _told("collectives", f"{name}{of}: {done} done{ahead}", "text", width)
    allocator = box.allocator
    counters = [f"{human(allocator.inactive_split)} inactive in split blocks"] if allocator.inactive_split else []
    counters += [f"{count(allocator.retries)} retries"] if allocator.retries else []
    counters += (
        [f"out of memory {count(allocator.ooms)} time{'' if allocator.ooms == 1 else 's'}"] if allocator.ooms else []
    )
    if counters:
        lines += _told("allocator", ", ".join(counters), "text", width)
    if box.calls:
        lines += [pad((), width), pad([(" Traceback, the last call at the end", "label bold")], width)]
        lines += call_lines(box.calls, width)
    return lines
