"""The processes on a device as a table: whose they are, with what, and which have no business there."""

from __future__ import annotations

from typing import Final

from ranktop.tui.session.processes import Occupant, occupants, strays
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.gauges import Gauges
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, Unit, duration, fit, pad, plain, size

MOST: Final = 24
"""Processes that are listed; the driver may tell of many on a shared machine."""
_WHOSE: Final = 14
"""Cells that say whose a process is."""


def process_lines(gauges: Gauges, snapshot: Snapshot, unit: Unit, options: Options, width: int) -> list[Line]:
    """List the processes with a context on the device; says so when the driver does not tell them."""
    view = gauges.view
    if gauges.identity.kind != "cuda":
        return []
    title = pad([(" processes", "label bold")], width)
    found = occupants(view, snapshot.owners)
    if gauges.reading.processes is None and not found:
        reason = "" if gauges.trouble else gauges.reason("processes")
        return [title, pad([(fit(f" {options.glyphs.dash} {reason or 'not told'}", width), "dim")], width)]
    if not found:
        return [title, pad([(" none: no process has a context on it", "dim")], width)]
    stray = strays(view, snapshot)
    name = "processes" if not gauges.of_parent("processes") else "of whole GPU"
    old = gauges.old("processes")
    age = "" if old is None else f"  {duration(old)} old"
    heading = f" {name:<{_WHOSE}}"
    lines = [pad([(heading, "label bold"), (f"{'pid':>8} {unit.name:>8}  kind", "label"), (age, "dim")], width)]
    for one in found[:MOST]:
        whose, style = _whose(one, view.rank, stray.ranks if stray is not None else ())
        amount = size(one.bytes, unit, 2, options.glyphs.dash)
        lines.append(
            pad([(f" {fit(whose, _WHOSE)}", style), (f"{one.pid:>8}", "number"),
                 (f" {amount:>8}", style if "bad" in style else "number"), (f"  {plain(one.kind)}", "dim")], width)
        )  # fmt: skip
    if len(found) > MOST:
        lines.append(pad([(f" and {len(found) - MOST} more", "dim")], width))
    return lines


def _whose(one: Occupant, rank: int, stray: tuple[int, ...]) -> tuple[str, str]:
    if one.rank == rank:
        return "this rank", "text bold"
    if one.rank is None:
        return "not this job's", "text"
    return (f"rank {one.rank}, stray", "bad") if one.rank in stray else (f"rank {one.rank}", "text")
