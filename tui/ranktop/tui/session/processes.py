"""Whose processes are on a rank's device: the job's own by rank, and ranks that have no business there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ranktop.probes.reading import DeviceProcess
from ranktop.tui.session.rank_view import RankView

if TYPE_CHECKING:
    from ranktop.tui.session.state import Snapshot

MOST: Final = 64
"""Entries of one list that are looked at: an agent sends no more."""

Owners = Mapping[tuple[str, int], int]
"""(node, process id) -> rank."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """One process with a context on a device."""

    pid: int
    """As the driver lists it."""
    bytes: int | None
    """On that device; None where the driver does not tell."""
    rank: int | None
    """The job's rank that it is; None: not of this job, or not to be told."""
    kind: str
    """``compute``, ``graphics`` or ``mps``: the driver's list that has it."""


@dataclass(frozen=True, slots=True)
class Stray:
    """Other ranks of the job that have a context on a device which is not theirs."""

    ranks: tuple[int, ...]
    bytes: int | None
    """Of all of them together; None where the driver does not tell of each."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the ranks of a job are. Stays valid until a card or a process's id in the driver's list changes."""

    owners: Owners
    neighbours: Mapping[str, tuple[int, ...]]
    """Node -> its ranks."""


def places(ranks: Iterable[RankView]) -> Places:
    """Return where ranks are; :attr:`Snapshot.places` has it kept."""
    views = tuple(ranks)
    nodes: dict[str, list[int]] = {}
    for view in views:
        if view.card is not None:
            nodes.setdefault(view.card.node, []).append(view.rank)
    return Places(owners(views), {node: tuple(found) for node, found in nodes.items()})


def owners(ranks: Iterable[RankView]) -> Owners:
    """Return which rank each process id of a node belongs to, by what the ranks say of themselves.

    What a rank has found to be its own in the driver's list goes before the ids of its PID namespaces: in a container
    without the host's PIDs only the former is true of the list. An id that two ranks claim is nobody's.
    """
    claimed: dict[tuple[str, int], set[int]] = {}
    found: dict[tuple[str, int], set[int]] = {}
    for view in ranks:
        card = view.card
        if card is None:
            continue
        for pid in card.pids or (card.pid,):
            claimed.setdefault((card.node, pid), set()).add(view.rank)
        if view.sample is not None and view.sample.device.process_pid is not None:
            found.setdefault((card.node, view.sample.device.process_pid), set()).add(view.rank)
    return {place: next(iter(who)) for place, who in {**claimed, **found}.items() if len(who) == 1}


def occupants(view: RankView, owned: Owners) -> tuple[Occupant, ...]:
    """Return the processes on a rank's device, the largest first; a process in several lists is told once.

    One with several lines in a list has the bytes of all of them. Empty also where the driver does not list them:
    ``view.sample.device.processes`` is None then.
    """
    if view.sample is None or view.card is None:
        return ()
    own, node = view.sample.device.process_pid, view.card.node
    detail = view.detail
    lists: tuple[tuple[str, tuple[DeviceProcess, ...] | None], ...] = (
        ("compute", view.sample.device.processes),
        ("mps", detail.mps_processes if detail else None),
        ("graphics", detail.graphics_processes if detail else None),
    )
    told: dict[int, Occupant] = {}
    for kind, listed in lists:
        for process in (listed or ())[:MOST]:
            before = told.get(process.pid)
            if before is None:
                rank = view.rank if process.pid == own else owned.get((node, process.pid))
                told[process.pid] = Occupant(process.pid, process.bytes, rank, kind)
            elif before.kind == kind:
                # A line for each of its contexts, or for each MIG instance of a whole GPU's list.
                told[process.pid] = replace(before, bytes=together((before.bytes, process.bytes)))
    return tuple(sorted(told.values(), key=lambda one: (-(one.bytes or 0), one.pid)))


def together(sizes: Iterable[int | None]) -> int | None:
    """Return the sum, None where one of the sizes is unknown."""
    known = 0
    for size in sizes:
        if size is None:
            return None
        known += size
    return known


def strays(view: RankView, snapshot: Snapshot) -> Stray | None:
    """Return the other ranks of the job that have a context on this rank's device though theirs is another one.

    Ranks that share the device are none, and neither is a rank whose own device is not known.
    """
    here = _device_of(view)
    if here is None or not _lists_its_own(view):
        return None
    found: list[Occupant] = []
    for occupant in occupants(view, snapshot.owners):
        other = snapshot.rank(occupant.rank)
        if other is not None and other.rank != view.rank and _device_of(other) not in (None, here):
            found.append(occupant)
    if not found:
        return None
    ranks = {one.rank for one in found if one.rank is not None}
    return Stray(tuple(sorted(ranks)), together(one.bytes for one in found))


def abroad(view: RankView, snapshot: Snapshot) -> tuple[tuple[int, int | None], ...]:
    """Return (rank, bytes) for each other rank on whose device this rank has a context, though its own is another.

    A device that several ranks share is told under the lowest of them.
    """
    here = _device_of(view)
    if here is None or view.card is None or snapshot.places is None:
        return ()
    found: dict[str, tuple[int, int | None]] = {}
    for number in snapshot.places.neighbours.get(view.card.node, ()):
        other = snapshot.rank(number)
        there = _device_of(other) if other is not None else None
        if other is None or there is None or there == here or there in found or not _lists_its_own(other):
            continue
        sizes = [one.bytes for one in occupants(other, snapshot.owners) if one.rank == view.rank]
        if sizes:
            found[there] = (number, together(sizes))
    return tuple(sorted(found.values(), key=lambda pair: pair[0]))


def _device_of(view: RankView) -> str | None:
    return view.card.device.uuid if view.card is not None and view.card.device.kind == "cuda" else None


def _lists_its_own(view: RankView) -> bool:
    """Tell whether the process list is the device's own: a MIG instance may give the whole GPU's."""
    return view.detail is None or "processes" not in view.detail.of_parent
