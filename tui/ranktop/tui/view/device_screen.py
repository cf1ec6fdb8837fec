"""The device screen as lines: which device a rank computes on, its memory, readings, processes, what is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Final

from ranktop.tui.keys import DEVICE_KEYS
from ranktop.tui.session.rank_view import GONE, SILENT_INTERVALS, RankView
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.device_allocator import allocator_lines
from ranktop.tui.view.device_groups import Group, Piece, groups
from ranktop.tui.view.device_identity import identity_lines
from ranktop.tui.view.device_memory import memory_bar, memory_lines, own_unit
from ranktop.tui.view.device_words import device_sentences, grouped
from ranktop.tui.view.findings import about, by_rank
from ranktop.tui.view.gauges import Gauges, in_a_word
from ranktop.tui.view.header import link_words
from ranktop.tui.view.hints import at_replay, hint_line, place, window
from ranktop.tui.view.label import label_cells
from ranktop.tui.view.options import Options
from ranktop.tui.view.processes import process_lines
from ranktop.tui.view.status import device_state, end_sentence, rank_state
from ranktop.tui.view.text import (
    Line,
    Span,
    beside,
    count,
    duration,
    in_ascii,
    length,
    merge,
    pad,
    plain,
)

HINTS: Final = (
    ("←→", "rank"), ("↑↓", "scroll"), ("esc", "ranks"), ("space", "freeze"), ("?", "help"), ("q", "quit"),
    ("t", "theme"),
)  # fmt: skip
HELP: Final = (
    "The first line says which device it is, by all its names. Memory adds up: what this rank, other processes and the "
    "driver hold, and what is free. A rank of this job whose own device is another one is red: set_device is missing, "
    "or torch.load without map_location.",
    "The bar under the name is the device's memory, this rank's by category. A square is one NVLink that is up. Values "
    "are dim and say their age once they are older than they should be; the last lines say why others are unknown.",
)
"""Text of the help, above the keys."""

_SETTING: Final = re.compile(r"RANKTOP_DEVICE=\S+")
"""A note that is only the setting by which a device was chosen."""
DEVICE_RULES: Final = ("strays", "throttle", "device")
"""Findings that are about the device."""
TITLE: Final = 10
WIDE: Final = 76
"""Cells from which on memory and readings stand side by side."""


@dataclass(slots=True)
class Look:
    """What the person sees of the screen's lines."""

    top: int = 0


def device_lines(
    snapshot: Snapshot, link: Link, look: Look, options: Options, size: tuple[int, int], notice: str
) -> list[Line]:
    """Draw the selected rank's device into (width, height) cells; keeps the scroll position where it can be."""
    width, height = max(1, size[0]), max(1, size[1])
    view = snapshot.rank(options.selected)
    if view is None:
        view = snapshot.ranks[0] if snapshot.ranks else None
    head: list[Line] = []
    body: list[Line] = [pad([(" waiting for the first rank", "dim")], width)]
    if view is not None:
        options.selected = view.rank
        names = identity_lines(view, options.glyphs, width - label_cells(snapshot, options))
        head = [*(pad(line, width, "head") for line in names), _status(view, snapshot, link, options, width)]
        body = _body(view, snapshot, options, width)
    if height <= len(head) + 2:
        head = head[:1] if height > 1 else []
    room = max(1, height - len(head) - (1 if height > 1 else 0))
    look.top, shown = window(body, look.top, room)
    shown += [pad((), width)] * (room - len(shown))
    hints = at_replay(HINTS, options)
    foot = hint_line(
        hints, notice, place(look.top, room, len(body), options.glyphs), options.glyphs, width, DEVICE_KEYS
    )
    lines = [*head, *shown, foot][:height]
    return [in_ascii(line) for line in lines] if options.glyphs.ascii else lines


def _status(view: RankView, snapshot: Snapshot, link: Link, options: Options, width: int) -> Line:
    """Say how rank and device are, and how fresh the picture is."""
    right: list[Span] = [(" FROZEN ", "frozen"), (" ", "panel")] if options.frozen_at is not None else []
    right += [(text, style.replace("head", "panel")) for text, style in link_words(link, snapshot, options.glyphs)]
    right.append((" ", "panel"))
    told = [finding for finding in about(view.rank, snapshot.findings) if finding.rule in DEVICE_RULES]
    text, style = rank_state(view, by_rank(told).get(view.rank), options.glyphs)
    gauges = Gauges.of(view)
    if gauges is not None and gauges.trouble and view.state not in GONE:
        text, style = device_state(gauges, options.glyphs)
    text = "device ok" if text.strip() == "ok" else text.strip()
    left: list[Span] = [(f" {text}", f"panel {style} bold")]
    if gauges is not None and view.sample is not None and view.sample.step:
        left.append((f"  step {count(view.sample.step)}", "panel"))
    if gauges is not None and not gauges.trouble and view.state not in GONE:
        left.append((f"  {_freshness(gauges)}", "panel dim"))
    if length(left) + length(right) > width:
        right = []
    return beside(left, right, width, "panel")


def _freshness(gauges: Gauges) -> str:
    """Say how old the readings are, in words that stand still while they are fresh."""
    if gauges.reading.state == "pending":
        return in_a_word(gauges.reason("device")) or "not asked yet"
    age = gauges.read_ago
    return "read just now" if age <= SILENT_INTERVALS * gauges.interval else f"read {duration(age)} ago"


def _body(view: RankView, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    gauges = Gauges.of(view)
    lines: list[Line] = []
    ended = end_sentence(view)
    told = [(ended, "dim" if view.state == "ended" else "bad bold")] if ended else []
    for text, style in [*told, *device_sentences(view, snapshot, options.glyphs)]:
        lines += [pad([(f" {part}", style)], width) for part in wrap(text, max(8, width - 2))]
    if gauges is None:
        return [*lines, pad([(" no sample of this rank yet", "dim")], width)]
    lines.append(pad([(" ", ""), *memory_bar(gauges, snapshot, options, max(0, width - 2))], width))
    lines += _columns(gauges, snapshot, options, width)
    return [*lines, *_unknown(gauges, width)]


def _columns(gauges: Gauges, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    unit = own_unit(gauges)
    if width < WIDE:
        left, right = width, width
    else:
        left = min(48, max(36, width * 2 // 5))
        right = width - left - 2
    memory = memory_lines(gauges, snapshot, options, left)
    found = [*_names(gauges, options, width), *groups(gauges, options.glyphs)]
    readings = group_lines(found, right, faded=bool(gauges.trouble)) if found else []
    others = process_lines(gauges, snapshot, unit, options, right)
    readings += [pad((), right)] * bool(readings and others) + others
    # A host has few readings: its allocator has room beside its memory.
    beside_it = memory if gauges.identity.kind == "cuda" or width < WIDE else readings
    beside_it += allocator_lines(gauges.view.allocator, unit, options, left if beside_it is memory else right)
    if width < WIDE:
        return [*readings, pad((), width), *memory]
    rule: Span = (f"{options.glyphs.rule} ", "rule")
    rows = max(len(memory), len(readings))
    memory += [pad((), left)] * (rows - len(memory))
    readings += [pad((), right)] * (rows - len(readings))
    return [merge([*one, rule, *other]) for one, other in zip(memory, readings, strict=True)]


def _names(gauges: Gauges, options: Options, width: int) -> list[Group]:
    """Return what of the device's names the first line has no room for."""
    device = gauges.identity
    shown = " ".join(text for line in identity_lines(gauges.view, options.glyphs, width) for text, _ in line)
    pieces: list[Piece] = []
    if device.uuid and plain(device.uuid) not in shown:
        pieces.append(Piece(plain(device.uuid)))
    mig = device.mig
    if mig is not None:
        numbers = (("instance", mig.index), ("GI", mig.gpu_instance), ("CI", mig.compute_instance))
        if " GI " not in shown:
            pieces.append(Piece(", ".join(f"{name} {number}" for name, number in numbers if number is not None)))
        if mig.parent_uuid:
            pieces.append(Piece(f"of {plain(mig.parent_uuid)}", "dim"))
    found = [Group("UUID" if mig is None else "MIG", tuple(pieces))] if pieces else []
    if not device.note:
        return found
    title = "chosen by" if _SETTING.fullmatch(device.note) else "note"
    return [*found, Group(title, (Piece(plain(device.note)),))]


def group_lines(found: Iterable[Group], width: int, *, faded: bool = False) -> list[Line]:
    """Write each group behind its title, going on in further lines where it is long."""
    lines: list[Line] = []
    room = max(8, width - TITLE - 1)
    for group in map(_aged, found):
        spans: list[Span] = []
        title = group.title
        for piece in group.pieces:
            new = _piece(piece, faded, room)
            if spans and length(spans) + 2 + length(new[0]) > room:
                lines.append(pad([(f" {title:<{TITLE}}", "label"), *spans], width))
                spans, title = [], ""
            for row in new[:-1]:
                lines.append(pad([(f" {title:<{TITLE}}", "label"), *spans, *row], width))
                spans, title = [], ""
            spans += [("  ", ""), *new[-1]] if spans else new[-1]
        lines.append(pad([(f" {title:<{TITLE}}", "label"), *spans], width))
    return lines


def _aged(group: Group) -> Group:
    """Say the age of a group's values once where all of them are old."""
    ages = [piece.age for piece in group.pieces if piece.age is not None]
    if len(ages) < max(2, len(group.pieces)):
        return group
    upto = "up to " if len(set(map(duration, ages))) > 1 else ""
    pieces = (replace(piece, age=None, style="dim", spans=()) for piece in group.pieces)
    return replace(group, pieces=(*pieces, Piece(f"({upto}{duration(max(ages))} old)", "dim")))


def _piece(piece: Piece, faded: bool, room: int) -> list[Line]:
    """Return a piece in one row, in several where it is longer than that."""
    old = piece.age is not None
    style = "dim" if faded or old else piece.style
    said = " (whole GPU)" if piece.parent and piece.main else ""
    said += f" ({duration(piece.age)} old)" if piece.age is not None else ""
    rows = wrap(piece.text, room) or [""]
    made: list[Line] = [((row, style),) for row in rows]
    if piece.spans and len(rows) == 1 and not faded and not old:
        made = [piece.spans]
    if said and len(rows[-1]) + len(said) <= room:
        made[-1] = (*made[-1], (said, "dim"))
    elif said:
        made.append(((said.strip(), "dim"),))
    return made


def _unknown(gauges: Gauges, width: int) -> list[Line]:
    told: Sequence[str] = grouped(gauges.unknown(detail=True)) if not gauges.trouble else ()
    if gauges.identity.kind == "cuda" and gauges.detail is None and not gauges.trouble:
        told = [*told, "links, errors, limits, modes: not said yet"]
    if not told:
        return []
    lines = [pad((), width), pad([(" not known", "label bold")], width)]
    for text in told:
        lines += [pad([(f"   {part}", "dim")], width) for part in wrap(text, max(8, width - 4))]
    return lines
