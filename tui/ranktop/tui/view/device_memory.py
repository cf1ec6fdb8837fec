"""The memory of a device: who holds it, as a list that adds up, and a bar of the same."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from ranktop.budget.terms import CATEGORIES, Memory
from ranktop.tui.session.processes import Occupant, Stray, occupants, strays, together
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.bar import LETTERS
from ranktop.tui.view.device_words import ranks_words
from ranktop.tui.view.gauges import Gauges, in_a_word
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import (
    Line,
    Span,
    Unit,
    cut,
    duration,
    first_that_fits,
    fit,
    human,
    merge,
    pad,
    plain,
    size,
    unit_for,
)

OWN: Final = tuple(name for name in CATEGORIES if name not in ("other", "free"))
"""Categories of the rank's own process."""
_NUMBER: Final = 9
_SHARE: Final = 6


@dataclass(frozen=True, slots=True)
class Holder:
    """A part of the device's memory."""

    name: str
    bytes: int | None
    key: str
    """Letter that the bar draws it with."""
    style: str = "text"


@dataclass(frozen=True, slots=True)
class Division:
    """The device's memory by holders; they add up to the total as far as that is known."""

    total: int | None
    holders: tuple[Holder, ...]
    note: str = ""
    """Why they do not, or what is shown as one."""


def division(gauges: Gauges, snapshot: Snapshot) -> Division:
    """Divide total = free + reserved by the driver + processes; what is left is a holder of its own."""
    reading, view = gauges.reading, gauges.view
    found = occupants(view, snapshot.owners)
    if gauges.of_parent("processes"):
        found = tuple(one for one in found if one.rank == view.rank)  # the others may be on other MIG instances
    own = [one for one in found if one.rank == view.rank]
    mine = reading.process_used
    if mine is None and own:
        mine = _sum(own)
    holders = [Holder("this rank", mine, "own", "text bold")]
    holders += _others(view, found, strays(view, snapshot))
    if gauges.identity.kind == "cuda" and reading.reserved is not None:
        holders.append(Holder("reserved by driver", reading.reserved, "d", "dim"))
    note = ""
    if reading.used is not None:
        rest = reading.used - sum(holder.bytes or 0 for holder in holders)
        if rest > 0:
            name, note = _rest(gauges, holders)
            holders.append(Holder(name, rest, "x"))
        elif rest < 0:
            note = f"processes are said to hold {human(-rest)} more than is used: read at different times"
    holders.append(Holder("free", reading.free, ".", "dim"))
    return Division(size_of(gauges), tuple(holders), note)


def size_of(gauges: Gauges) -> int | None:
    """Return the device's bytes, by its last word or by what the rank's card says."""
    return gauges.reading.total if gauges.reading.total is not None else gauges.identity.total


def _others(view: RankView, found: tuple[Occupant, ...], stray: Stray | None) -> list[Holder]:
    lost = stray.ranks if stray is not None else ()
    ranks = [one for one in found if one.rank in lost]
    sharing = [one for one in found if one.rank not in (None, view.rank, *lost)]
    rest = [one for one in found if one.rank is None]
    holders: list[Holder] = []
    if ranks:
        holders.append(Holder(ranks_words({one.rank or 0 for one in ranks}), _sum(ranks), "s", "bad"))
    if sharing:
        holders.append(Holder(ranks_words({one.rank or 0 for one in sharing}), _sum(sharing), "x"))
    if len(rest) == 1:
        holders.append(Holder(f"another process, pid {rest[0].pid}", rest[0].bytes, "x"))
    elif rest:
        holders.append(Holder(f"{len(rest)} other processes", _sum(rest), "x"))
    return holders


def _sum(found: list[Occupant]) -> int | None:
    return together(one.bytes for one in found)


def _rest(gauges: Gauges, holders: list[Holder]) -> tuple[str, str]:
    """Name what no holder accounts for, and say why it is not told apart."""
    reading = gauges.reading
    if gauges.identity.kind != "cuda":
        return "others on the host", ""
    if gauges.identity.unified:
        return "others on the host", "the device has no memory of its own: total, used and free are the host's"
    unknown = [holder for holder in holders if holder.bytes is None]
    if unknown or reading.processes is None:
        field = "processes" if reading.processes is None else "process_used"
        names = " and ".join(holder.name for holder in unknown if holder.key != "own") or "others"
        name = f"{names}, not told apart" if reading.process_used is not None else "all processes together"
        return name, gauges.reason(field)
    if reading.reserved is None:
        return "driver and others", gauges.reason("reserved")
    return "not in the list", "in no listed process: the driver's, graphics', or of processes that ended"


def memory_lines(gauges: Gauges, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    """List the holders of the device's memory, then what the rank's own process holds by category."""
    found = division(gauges, snapshot)
    unit = unit_for(found.total)
    old = gauges.old("total", "used", "free", "process_used")
    shared = ("memory, shared with the host", "memory (the host's)")
    title = first_that_fits(shared, width - _NUMBER - _SHARE - 1) if gauges.identity.unified else "memory"
    lines = [_heading(title, unit, width, "" if old is None else f"{duration(old)} old")]
    lines += [_holder(holder, found.total, unit, options, width) for holder in found.holders]
    lines.append(_row("total", found.total, None, unit, options, width, "text bold", ""))
    if found.note:
        lines += _said(found.note, width)
    own, unit = _own(gauges.view), own_unit(gauges)
    lines += [pad((), width), _heading("this rank holds", unit, width, "")]
    reasons = gauges.view.sample.reasons if gauges.view.sample is not None else {}
    told: dict[str, list[str]] = {}
    for name in OWN:
        value: int | None = getattr(own, name)
        lines.append(_row(name, value, found.total, unit, options, width, "text", LETTERS[name]))
        if value is None and name in reasons and not (gauges.trouble and reasons[name] == gauges.reason("device")):
            told.setdefault(plain(reasons[name]), []).append(name)
    for reason, names in told.items():
        lines += _said(f"{', '.join(names)}: {reason}", width)
    return lines


def own_unit(gauges: Gauges) -> Unit:
    """Return the unit in which what the rank's own process holds reads well."""
    own = _own(gauges.view)
    return unit_for(sum(abs(getattr(own, name) or 0) for name in OWN) or size_of(gauges))


def _own(view: RankView) -> Memory:
    return view.sample.now if view.sample is not None else Memory()


def _heading(title: str, unit: Unit, width: int, age: str) -> Line:
    room = max(0, width - _NUMBER - _SHARE)
    return pad(
        [(fit(f" {title}", room), "label bold"), (f"{unit.name:>{_NUMBER}}", "label"), (f"  {age}", "dim")], width
    )


def _holder(holder: Holder, total: int | None, unit: Unit, options: Options, width: int) -> Line:
    key = {"own": "", "s": "s", "d": "d", "x": "x", ".": "."}[holder.key]
    return _row(holder.name, holder.bytes, total, unit, options, width, holder.style, key)


def _row(
    name: str, value: int | None, total: int | None, unit: Unit, options: Options, width: int, style: str, key: str
) -> Line:
    """Write one line: mark, name, size, share of the device."""
    mark = " " if not key or key == "." else key if options.letters else options.glyphs.swatch
    room = max(0, width - _NUMBER - _SHARE - 3)
    share = f"{value / total:.0%}" if value is not None and total else ""
    amount = size(value, unit, 2, options.glyphs.dash)
    number = "dim" if value is None or style == "dim" else style if style != "text" else "number"
    return pad(
        [(f" {mark} ", _style(key)), (fit(name, room, ellipsis=options.glyphs.ellipsis), style),
         (f"{amount:>{_NUMBER}}", number), (f"{share:>{_SHARE - 1}} ", "dim")], width
    )  # fmt: skip


def _style(key: str) -> str:
    return {"s": "bad", "d": "dim", "?": "axis", "": ""}.get(key, f"key:{key}")


def _said(text: str, width: int) -> list[Line]:
    return [pad([(f"   {part}", "dim")], width) for part in wrap(text, max(8, width - 4))]


def memory_bar(gauges: Gauges, snapshot: Snapshot, options: Options, width: int) -> Line:
    """Draw the device's memory in one line: the rank's own by category, then the other holders, then what is free."""
    found = division(gauges, snapshot)
    total = found.total
    if not total or total < 0 or width <= 0 or gauges.reading.used is None:
        why = "" if gauges.trouble else gauges.reason("used") or gauges.reason("total")
        return pad([(f"{options.glyphs.dash} {in_a_word(why) or 'its use is not known'}", "dim")], width)
    spans: list[Span] = []
    filled, amount = 0, 0
    for key, value in _stack(gauges, found):
        amount += value
        edge = max(filled, min(width, round(amount / total * width)))
        glyph = key if options.letters else "█"
        spans.append((glyph * (edge - filled), _style(key)))
        filled = edge
    free = ("." if options.glyphs.ascii else "·") if options.letters else " "
    spans.append((free * (width - filled), "track" if options.letters else "bar:.."))
    return merge([*cut(merge(spans), width)[0], (options.glyphs.end, "track")])


def _stack(gauges: Gauges, found: Division) -> list[tuple[str, int]]:
    stack: list[tuple[str, int]] = []
    for holder in found.holders:
        if holder.key == ".":
            continue
        if holder.key != "own":
            stack.append((holder.key, holder.bytes or 0))
            continue
        own = [(LETTERS[name], getattr(_own(gauges.view), name) or 0) for name in OWN]
        stack += own
        stack.append(("?", (holder.bytes or 0) - sum(value for _, value in own)))
    return [(key, value) for key, value in stack if value > 0]
