"""The side page of the detail panel about the rank's device: what to watch, problems first."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import Final

from rich.cells import cell_len

from ranktop.tui.session.processes import occupants, strays
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.device_groups import Group, Piece, groups
from ranktop.tui.view.gauges import Gauges, in_a_word
from ranktop.tui.view.status import device_state
from ranktop.tui.view.text import Glyphs, Line, Span, duration, fit, human, length, pad

TITLE: Final = 9
"""Cells of a row's title."""


def device_block(view: RankView, snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Line]:
    """Show load, power, temperature, clocks, links and errors of the rank's device in a row each."""
    gauges = Gauges.of(view)
    if gauges is None:
        return [pad([("no sample yet", "dim")], width)]
    made = [*groups(gauges, glyphs), *_memory(gauges, glyphs), *_company(view, snapshot)]
    watched = [(group, [piece for piece in group.pieces if piece.main]) for group in made]
    watched = [(group, pieces) for group, pieces in watched if pieces]
    watched.sort(key=lambda pair: -Group("", tuple(pair[1])).loud)
    faded = bool(gauges.trouble)
    lines = _state(gauges, width, glyphs)
    for group, pieces in watched:
        lines += row(group.title, pieces, width, faded)
    parent = [group.title for group, pieces in watched if any(piece.parent for piece in pieces)]
    if parent:
        text = f"of the whole GPU: {', '.join(parent)}"
        lines += [pad([(part, "dim")], width) for part in wrap(text, max(8, width))]
    if len(lines) == 0:
        lines = [pad([("nothing is read of it", "dim")], width)]
    return lines


def _state(gauges: Gauges, width: int, glyphs: Glyphs) -> list[Line]:
    if not gauges.trouble:
        if gauges.reading.state != "pending":
            return []
        why = gauges.reason("device") or "not asked yet"
        return [pad([(part, "dim")], width) for part in wrap(why, max(8, width))[:2]]
    text, style = device_state(gauges, glyphs)
    return [pad([(text, f"{style} bold")], width)]


def row(title: str, pieces: list[Piece], width: int, faded: bool) -> list[Line]:
    """Lay out a title and the pieces behind it in one row, in two where only the first piece has room."""
    spans: list[Span] = [(f"{title:<{TITLE}} ", "label")]
    lines: list[Line] = []
    for at, piece in enumerate(pieces):
        style = "dim" if faded or piece.age is not None else piece.style
        text = piece.text if cell_len(piece.text) < width - TITLE else fit(piece.text, width - TITLE - 1)
        new: list[Span] = [("  " if at else "", ""), (text, style)]
        if piece.age is not None and not faded:
            new.append((f" {duration(piece.age)} old", "dim"))
        if at and length(spans) + length(new) > width:
            if not piece.style.startswith(("bad", "warn")):
                continue
            lines.append(pad(spans, width))
            spans, new = [(" " * (TITLE + 1), "")], new[1:]
        spans += new
    return [*lines, pad(spans, width)]


def _memory(gauges: Gauges, glyphs: Glyphs) -> list[Group]:
    if gauges.identity.kind != "cuda":
        return _ram(gauges)
    reserved = gauges.get("reserved")
    if reserved is None:
        reason = "" if gauges.trouble or gauges.identity.unified else gauges.reason("reserved")
        text, style = f"{glyphs.dash} {in_a_word(reason)}", "dim"
        return [Group("reserved", (Piece(text, style, True),))] if reason else []
    return [Group("reserved", (Piece(f"{_short(reserved)} by driver", main=True, age=gauges.old("reserved")),))]


def _short(value: int) -> str:
    """Write bytes without decimals where there are three digits before the point."""
    return re.sub(r"(\d{3,})\.\d", r"\1", human(value))


def _ram(gauges: Gauges) -> list[Group]:
    reading = gauges.reading
    made: list[Group] = []
    if reading.free is not None and reading.total is not None:
        text = f"{human(reading.free)} of {human(reading.total)}"
        made.append(Group("free RAM", (Piece(text, main=True, age=gauges.old("free")),)))
    if reading.process_used is not None:
        made.append(Group("this rank", (Piece(human(reading.process_used), main=True),)))
        if reading.used is not None:
            made.append(Group("others", (Piece(human(reading.used - reading.process_used), main=True),)))
    return made


def _company(view: RankView, snapshot: Snapshot) -> list[Group]:
    if view.card is None or view.card.device.kind != "cuda":
        return []
    others = [one for one in occupants(view, snapshot.owners) if one.rank != view.rank]
    if not others:
        return []
    told = sum(one.bytes or 0 for one in others)
    style = "warn" if strays(view, snapshot) is not None else "number"
    one = len(others) == 1
    if told:
        text = f"{len(others)} hold{'s' if one else ''} {human(told)}"
    else:
        text = f"{len(others)} process{'' if one else 'es'}"
    return [Group("others", (Piece(text, style, True),))]
