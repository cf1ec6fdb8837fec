"""The counters of the allocator of a rank's process as a list."""

from __future__ import annotations

from textwrap import wrap

from ranktop.probes.reading import AllocatorReading
from ranktop.tui.view.device_words import grouped
from ranktop.tui.view.gauges import named
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, Unit, count, first_that_fits, fit, pad, plain, size


def allocator_lines(reading: AllocatorReading | None, unit: Unit, options: Options, width: int) -> list[Line]:
    """List the allocator's counters in bytes, then its counts; says why others are unknown."""
    if reading is None:
        return []
    dash = options.glyphs.dash
    kind = plain(reading.backend) or "before its first allocation"
    kind += ", expandable" if reading.expandable else ""
    room = max(0, width - 15)
    lines = [
        pad((), width),
        pad(
            [
                (fit(first_that_fits((f" allocator: {kind}", f" {kind}"), room), room), "label bold"),
                (f"{unit.name:>9}", "label"),
            ],
            width,
        ),
    ]
    sizes = (
        ("allocated", reading.allocated), ("active", reading.active), ("requested", reading.requested),
        ("reserved", reading.reserved), ("peak allocated", reading.peak_allocated),
        ("inactive split", reading.inactive_split), ("largest free", reading.largest_free),
    )  # fmt: skip
    known = [(name, value) for name, value in sizes if value is not None]
    for name, value in known:
        lines.append(_amount(name, size(value, unit, 2, dash), "number", width))
    for name, number in (("segments", reading.segments), ("retries", reading.retries), ("out of memory", reading.ooms)):
        if number is not None:
            loud = number and name != "segments"
            lines.append(_amount(name, count(number), "bad bold" if loud else "number", width))
    for device, held in sorted(reading.elsewhere.items()):
        lines.append(_amount(f"on cuda:{device}", size(held, unit, 2, dash), "warn", width))
    missing: dict[str, list[str]] = {}
    for field, reason in reading.reasons.items():
        if getattr(reading, field, None) is None:
            missing.setdefault(plain(reason), []).append(named(field))
    for text in grouped(missing):
        lines += [pad([(f"   {part}", "dim")], width) for part in wrap(text, max(8, width - 4))]
    return lines


def _amount(name: str, text: str, style: str, width: int) -> Line:
    room = max(0, width - 15 - 3)
    return pad([(f"   {fit(name, room)}", "text"), (f"{text:>9}", style)], width)
