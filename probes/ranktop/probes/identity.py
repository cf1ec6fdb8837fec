"""The one memory identity: what a device holds by category, from the allocator, the tensors and the device.

The parts are the gaps between levels that lie one within the other::

    states + buffers  <=  allocated  <=  reserved  <=  this process  <=  everybody  <=  total
                  activations      cache       runtime           other         free

With malloc (a CPU job) what it held before the script ran (the baseline) belongs to runtime, so it is taken off
``allocated`` and ``reserved``.

A level that could not be read merges the gaps on its two sides: their sum is shown in one of them, the
other is None, and the reasons of both begin with ``SHOWN_WITH``. The sum stands in the outer of the two
(``cache`` for activations + cache, ``runtime`` for cache + runtime, ``other`` for runtime + other): the
inner ones are compared with a budget, which a sum must not be. Never in ``free``, so that nothing counts
as free that may be in use. Sizes of states that are unknown stay within activations.

Levels are read one after the other and by different means, so one may come out below the one that it
holds. Then the levels are moved, never a part below zero and never the states, so that the sum stays the
total, and the reasons say which and by how much.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import sub
from typing import Final

from ranktop.budget.terms import STATES, Memory
from ranktop.probes.reading import AllocatorReading, DeviceReading, Resident

SHOWN_WITH: Final = "shown together with"
"""How the reasons of two categories begin that are shown as one."""

_HELD: Final = (*STATES, "buffers")
_GAPS: Final = ("activations", "cache", "runtime", "other", "free")
"""Category between a level and the next."""
_SOURCES: Final = ("states", "allocated", "reserved", "process_used", "free", "total")
"""What each level comes from, as the readings name it."""


@dataclass(slots=True)
class _Levels:
    """The levels in bytes, innermost first; None where unknown."""

    at: list[int | None]
    notes: dict[str, str]
    """category or source -> what is to be said of it."""
    host: bool
    """The allocator is malloc, which is given pages when they are touched."""
    total: int | None
    age: float = 0.0
    """Seconds by which the device's levels are older than the allocator's."""
    missing: list[str] = field(default_factory=list)
    """Categories of tensors whose size is unknown."""


def compose(allocator: AllocatorReading, resident: Resident, device: DeviceReading) -> tuple[Memory, dict[str, str]]:
    """Return the device's memory by category now, in bytes, and the reasons.

    Reasons say why a category is None; for one that has a value they say how it was come by when that was
    not the plain way.
    """
    levels = _read(allocator.allocated, allocator.reserved, resident, allocator, device)
    _settle(levels)
    return _gaps(levels, resident)


def at_moment(
    allocated: int | None,
    reserved: int | None,
    resident: Resident,
    allocator: AllocatorReading,
    device: DeviceReading,
) -> tuple[Memory, dict[str, str]]:
    """Return the memory at a moment of a past step, in bytes, and the reasons.

    ``allocated``, ``reserved`` and ``resident`` are the moment's. Runtime and other were not read then:
    they are those of now (``allocator``, ``device``, and the moment's states for want of newer ones); free
    is what remains of the total.
    """
    past = _read(allocated, reserved, resident, allocator, device)
    process, used = past.at[3:5]
    if allocator.reserved is None or past.at[2] is None:
        # Nothing says how much of the process lies outside the allocator.
        past.at[3] = None
        past.at[4] = used if past.at[2] is None else None
    elif past.host and process is not None and process < allocator.reserved - allocator.baseline:
        # How many of its pages were touched then is not known: what is resident now says nothing of it.
        past.at[3] = None
        untouched = allocator.reserved - allocator.baseline - process
        past.notes["process_used"] = f"{untouched} bytes of malloc's memory are untouched now"
    else:
        shift = past.at[2] - (allocator.reserved - allocator.baseline)
        past.at[3] = None if process is None else process + shift
        past.at[4] = None if used is None else used + shift
        _keep_within_total(past)
    _settle(past)
    memory, reasons = _gaps(past, resident)
    return memory, reasons


def _read(
    allocated: int | None,
    reserved: int | None,
    resident: Resident,
    allocator: AllocatorReading,
    device: DeviceReading,
) -> _Levels:
    sizes = (resident.parameters, resident.gradients, resident.optimizer, resident.buffers)
    states = sum([size for size in sizes if size is not None])
    baseline = allocator.baseline
    notes = {
        "allocated": allocator.reasons.get("allocated", ""),
        "reserved": allocator.reasons.get("reserved", ""),
        "process_used": device.reasons.get("process_used", ""),
        "free": device.reasons.get("free", ""),
        "total": device.reasons.get("total", ""),
    }
    if device.process_used is not None and notes["process_used"]:
        notes["runtime"] = notes["process_used"]
    used = None if device.total is None or device.free is None else device.total - device.free
    levels = _Levels(
        at=[
            states,
            None if allocated is None else allocated - baseline,
            None if reserved is None else reserved - baseline,
            device.process_used,
            used,
            device.total,
        ],
        notes=notes,
        host=allocator.backend == "malloc",
        total=device.total,
        age=device.ages.get("process_used", device.age),
        missing=[name for name, size in zip(_HELD, sizes, strict=True) if size is None],
    )
    return levels


def _keep_within_total(levels: _Levels) -> None:
    """Take from other what a past moment and today's runtime and other hold beyond the total."""
    used, total = levels.at[4], levels.at[5]
    if used is not None and total is not None and used > total:
        levels.notes["other"] = f"less {used - total} bytes: it was read later than the rest and did not fit"
        levels.at[4] = total


def _settle(levels: _Levels) -> None:
    """Move levels that came out below the ones that they hold."""
    _lift_allocator(levels)
    _fit_process(levels)
    _order(levels)


def _lift_allocator(levels: _Levels) -> None:
    """Make the allocator hold the states.

    Tensors can be outside it (a mapped file, shared memory), and of the baseline something may have been
    freed since: either way the bytes count within the process already, so they come out of runtime.
    """
    states, allocated = levels.at[0], levels.at[1]
    if states is None or allocated is None or states <= allocated:
        return
    short = states - allocated
    levels.at[1] = states
    if levels.at[2] is not None:
        levels.at[2] += short
    what = (
        "tensors lie outside malloc, or memory of before the script was freed"
        if levels.host
        else "tensors lie outside the allocator"
    )
    levels.notes["activations"] = f"{short} bytes of tensors are not in the allocator's count: {what}"
    levels.notes["runtime"] = f"less {short} bytes that are counted as tensors: {what}"


def _fit_process(levels: _Levels) -> None:
    """Make this process hold its allocator's memory.

    A host maps pages when they are first touched, so the resident set may be the smaller: the pages that
    were never touched are taken from cache, then from activations; what the states lack still is taken
    from free, for they will be touched. A CUDA allocator's memory is always backed: there it is the
    driver's number that is not believed.
    """
    states, reserved, process = levels.at[0] or 0, levels.at[2], levels.at[3]
    if reserved is None or process is None or process >= reserved:
        return
    if not levels.host:
        levels.at[3] = None
        levels.notes.pop("runtime", None)
        read = f" (read {levels.age:.0f} s ago)" if levels.age >= 2.0 else ""
        levels.notes["process_used"] = f"the driver counts less for this process{read} than its allocator holds"
        return
    untouched = reserved - process
    levels.at[2] = held = max(states, process)
    allocated = levels.at[1]
    if allocated is not None and allocated > held:
        levels.notes["activations"] = f"less {allocated - held} bytes that were never touched"
        levels.at[1] = held
    levels.notes["cache"] = levels.notes["runtime"] = (
        f"{untouched} bytes of malloc's memory were never touched and take no room"
    )
    if process < states:
        levels.at[3] = states
        if levels.at[4] is not None:
            levels.at[4] += states - process
        levels.notes["free"] = f"less {states - process} bytes that tensors hold but have not touched yet"


def _order(levels: _Levels) -> None:
    """Raise each level to the one within it and cut all at the total.

    Tensors larger than their device are not explained: then nothing but they is shown.
    """
    total = levels.at[5]
    if total is not None and (levels.at[0] or 0) > total:
        why = f"the tensors ({levels.at[0]} bytes) exceed the device's {total}"
        levels.at[1:5] = [None] * 4
        levels.at[5] = None  # Only as a level: the total itself is still shown.
        levels.notes.update(dict.fromkeys(_SOURCES[1:], why))
        return
    floor = 0
    for index, level in enumerate(levels.at):
        if level is None:
            continue
        if level < floor:
            _note_raised(levels, index, floor - level)
            levels.at[index] = level = floor
        if total is not None and level > total:
            levels.notes[_GAPS[index]] = levels.notes.get(_GAPS[index]) or "cut at the device's total"
            levels.at[index] = level = total
        floor = level


def _note_raised(levels: _Levels, index: int, by: int) -> None:
    outer = _GAPS[index] if index < len(_GAPS) else "total"
    if index == 4 and levels.host:
        words = f"less {by} bytes of this process that the system could take back and counts as available"
    else:
        words = f"less {by} bytes: what lies within was read at another time and is larger"
    levels.notes[outer] = words


def _gaps(levels: _Levels, resident: Resident) -> tuple[Memory, dict[str, str]]:
    values: dict[str, int | None] = dict.fromkeys(_GAPS)
    reasons = {name: note for name, note in levels.notes.items() if note and name in _GAPS and name != "free"}
    if levels.at[4] is not None and levels.notes.get("free"):
        reasons["free"] = levels.notes["free"]
    start = 0
    if None not in levels.at:
        # The usual case, in which every gap is known.
        start, values = len(_GAPS), dict(zip(_GAPS, map(sub, levels.at[1:], levels.at), strict=False))
    for end in range(start + 1, len(levels.at)):
        outer, inner = levels.at[end], levels.at[start]
        if outer is None or inner is None:
            continue
        _fill(values, reasons, levels, start, end, outer - inner)
        start = end
    for index in range(start, len(_GAPS)):
        values[_GAPS[index]] = None
        reasons[_GAPS[index]] = _why(levels, range(start + 1, len(levels.at)))
    _add_states(levels, resident, values, reasons)
    memory = Memory(
        parameters=resident.parameters,
        gradients=resident.gradients,
        optimizer=resident.optimizer,
        buffers=resident.buffers,
        total=levels.total,
        **values,
    )
    if memory.total is None:
        reasons["total"] = levels.notes.get("total") or "not read"
    return memory, reasons


def _fill(
    values: dict[str, int | None],
    reasons: dict[str, str],
    levels: _Levels,
    start: int,
    end: int,
    size: int,
) -> None:
    """Give the gap between two known levels to its category, to the outermost one where it spans several."""
    spanned = list(_GAPS[start:end])
    if len(spanned) == 1:
        values[spanned[0]] = size
        return
    holder = [name for name in spanned if name != "free"][-1]
    values[holder] = size
    why = _why(levels, range(start + 1, end))
    for name in spanned:
        others = " and ".join(other for other in spanned if other != name)
        if name == holder:
            reasons[name] = f"{SHOWN_WITH} {others}: {why}"
        else:
            values[name] = None
            reasons[name] = f"{SHOWN_WITH} {holder}: {why}"


def _why(levels: _Levels, unknown: range) -> str:
    """Say why levels are unknown: the first reason there is among them."""
    for index in unknown:
        if levels.at[index] is None and levels.notes.get(_SOURCES[index]):
            return levels.notes[_SOURCES[index]]
    names = [_SOURCES[index] for index in unknown if levels.at[index] is None]
    return f"{' and '.join(names)} not read" if names else "not read"


def _add_states(levels: _Levels, resident: Resident, values: dict[str, int | None], reasons: dict[str, str]) -> None:
    """Say where tensors of unknown size are: in the first gap that has a value."""
    if not levels.missing:
        return
    holder = next((name for name in _GAPS if values[name] is not None), None)
    listed = ", ".join(levels.missing)
    for name in levels.missing:
        why = resident.reasons.get(name, "not known")
        reasons[name] = why if holder is None else f"{SHOWN_WITH} {holder}: {why}"
    if holder is not None:
        old = reasons.get(holder)
        reasons[holder] = f"{SHOWN_WITH} {listed}: not told apart" + (f"; {old}" if old else "")
