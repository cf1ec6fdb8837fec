"""How far each process group of this rank has come, read without a collective and from any thread.

Two sources, both private to torch and both guarded. A group's own sequence number says what was enqueued.
The flight recorder's ``pg_status`` says what was enqueued and completed, keyed by a number that counts the
backends of one kind in the order in which this process made them; ``ProcessGroupNCCL`` tells that number
(``uid``), ``ProcessGroupGloo`` does not, so a gloo group is matched by order and by its sequence number
(torch/csrc/distributed/c10d/FlightRecorderDetail.hpp).

``enqueued`` is exact: compare ranks by it. ``completed`` is what the backend has noted: NCCL's watchdog looks a few
times a second, and gloo's two threads note in no particular order, so that after a burst an older number may stay.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ranktop.probes.reading import Collectives, GroupPosition

_DEVICE_OF: Final = {"nccl": "cuda", "gloo": "cpu"}
_DUMPS: Final = {"nccl": ("_dump_nccl_trace_json", "_dump_fr_trace_json"), "gloo": ("_dump_fr_trace_json",)}
"""Backend -> functions that may hold its recorder, best first: NCCL keeps one beside the generic one."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the flight recorder says of one backend."""

    enqueued: int | None
    completed: int | None


@dataclass(slots=True)
class _Group:
    """One backend of one live process group."""

    backend: str
    name: str
    description: str
    size: int | None
    uid: int | None
    sequence: Callable[[], int]
    index: int
    """Which of the live groups."""
    before: int | None = None
    after: int | None = None


class CollectiveProbe:
    """Reads the positions of all process groups of this process. Belongs to one thread."""

    def __init__(self) -> None:
        self._groups: tuple[weakref.ref[Any], ...] = ()
        """The groups whose names these are. Not held: the last one to let go of a group ends its threads."""
        self._names: tuple[str, ...] = ()
        self._looked_at: tuple[tuple[int, Any] | None, ...] = ()
        """Of each name: which group, and the device that picks its backend; None when it is not looked at."""

    def read(self) -> Collectives:
        """Return the positions; never raises, never waits for a collective. About 10 microseconds."""
        distributed = sys.modules.get("torch.distributed.distributed_c10d")
        if distributed is None:
            return Collectives(reason="torch.distributed is not loaded")
        try:
            groups = _live_groups(distributed)
            if not groups:
                return Collectives(reason="no process group")
            return _positions(groups, sys.modules.get("torch._C._distributed_c10d"))
        except Exception as error:
            return Collectives(reason=f"not readable with this torch: {type(error).__name__}: {error}")

    def to_look_at(self, most: int) -> tuple[str, ...]:
        """Return the names of all groups, as ``read`` orders them; empty when none has more than one rank.

        The first ``most`` of more than one rank are what ``enqueued`` looks at. Never raises; about 2 microseconds.
        """
        try:
            distributed = sys.modules.get("torch.distributed.distributed_c10d")
            if distributed is None or not distributed.is_initialized():
                return ()
            groups = list(distributed._world.pg_map)
            if len(groups) != len(self._groups) or any(
                known() is not group for known, group in zip(self._groups, groups, strict=True)
            ):
                self._choose(_live_groups(distributed), groups, most)
            return self._names if any(self._looked_at) else ()
        except Exception:
            return ()

    def _choose(self, found: list[_Group], groups: list[Any], most: int) -> None:
        torch = sys.modules.get("torch")
        looked_at: list[tuple[int, Any] | None] = []
        left = most
        for each in found:
            chosen = (each.size or 0) > 1 and left > 0
            left -= chosen
            device = _DEVICE_OF.get(each.backend)
            looked_at.append((each.index, torch.device(device) if torch and device else None) if chosen else None)
        self._names = tuple(each.name for each in found)
        self._looked_at = tuple(looked_at)
        self._groups = tuple(weakref.ref(group) for group in groups)

    def enqueued(self) -> tuple[int | None, ...]:
        """Return how many collectives each group named by ``to_look_at`` has enqueued; None where it is not known.

        Never raises; about a microsecond a group.
        """
        return tuple(None if one is None else self._enqueued(*one) for one in self._looked_at)

    def _enqueued(self, index: int, device: Any) -> int | None:
        try:
            group = self._groups[index]()
            if group is None:
                return None
            source = _or_none(lambda: group._get_backend(device)) if device is not None else None
            return int((group if source is None else source)._get_sequence_number_for_group())
        except Exception:
            return None


def _live_groups(distributed: Any) -> list[_Group]:
    """Return the backends of the groups that this rank belongs to, in the order in which they were made."""
    if not distributed.is_initialized():
        return []
    found: list[_Group] = []
    # The training thread may make a group meanwhile: copy first, in one step.
    for place, (group, (backend, _store)) in enumerate(list(distributed._world.pg_map.items())):
        names = _backend_names(str(backend))
        for index, name in enumerate(names):
            found.append(_describe(group, name, place, first=index == 0, alone=len(names) == 1))
    return found


def _backend_names(config: str) -> list[str]:
    """Split torch's backend configuration, the device with the accelerator first.

    >>> _backend_names("cpu:gloo,cuda:nccl")
    ['nccl', 'gloo']
    """
    names = [part.rpartition(":")[2] for part in config.lower().split(",") if part]
    return sorted(dict.fromkeys(names), key=lambda name: (name != "nccl", name))


def _describe(group: Any, backend: str, index: int, *, first: bool, alone: bool) -> _Group:
    # A backend of somebody's own may have neither, and torch then raises.
    label = str(_or_none(lambda: group.group_name) or "")
    description = str(_or_none(lambda: group.group_desc) or "")
    implementation = None if alone and backend not in _DEVICE_OF else _implementation(group, backend)
    uid = getattr(implementation, "uid", None)
    source = implementation if implementation is not None else group
    return _Group(
        backend=backend,
        name=label if first else f"{label} ({backend})",
        description="" if description == "undefined" else description,
        size=_or_none(group.size),
        uid=uid if isinstance(uid, int) else None,
        sequence=source._get_sequence_number_for_group,
        index=index,
    )


def _implementation(group: Any, backend: str) -> Any:
    torch = sys.modules.get("torch")
    device = _DEVICE_OF.get(backend)
    if torch is None or device is None:
        return None
    return _or_none(lambda: group._get_backend(torch.device(device)))


def _positions(groups: list[_Group], c10d: Any) -> Collectives:
    for group in groups:
        group.before = _or_none(group.sequence)
    recorded = {backend: _recorded(c10d, backend) for backend in {group.backend for group in groups}}
    for group in groups:
        group.after = _or_none(group.sequence)
    positions: list[GroupPosition] = []
    reasons: list[str] = []
    matched: dict[int, Status] = {}
    for backend, statuses in recorded.items():
        if isinstance(statuses, str):
            reasons.append(statuses)
            continue
        mine = [group for group in groups if group.backend == backend]
        matched.update({id(g): s for g, s in match(mine, statuses)})
        if not statuses and any(group.after for group in mine):
            reasons.append(f"{backend}: the flight recorder is off (TORCH_FR_BUFFER_SIZE=0): completed is unknown")
        elif any(group.after and id(group) not in matched for group in mine):
            reasons.append(f"{backend}: the flight recorder's entry of a group is not known: its completed is unknown")
    for group in groups:
        status = matched.get(id(group))
        positions.append(_position(group, status))
    return Collectives(groups=tuple(positions), reason="; ".join(sorted(reasons)) or None)


def _position(group: _Group, status: Status | None) -> GroupPosition:
    enqueued, completed = group.after, None
    if status is not None:
        enqueued, completed = status.enqueued, status.completed
    elif group.after == 0:
        completed = 0  # Nothing was enqueued, so the recorder has no entry yet.
    return GroupPosition(
        name=group.name,
        description=group.description,
        size=group.size,
        enqueued=enqueued,
        completed=completed,
    )


def match(groups: Iterable[_Group], statuses: Mapping[int, Status]) -> list[tuple[_Group, Status]]:
    """Pair groups, in the order in which they were made, with the recorder's entries.

    By ``uid`` where the backend tells it. Else from the newest backwards: an entry fits when what it says
    was enqueued lies between the group's sequence numbers read before and after the recorder. Entries of
    groups that are gone stay in the recorder and are passed over.
    """
    pairs: list[tuple[_Group, Status]] = []
    limit = max(statuses, default=-1) + 1
    for group in reversed(list(groups)):
        if group.uid is not None:
            if group.uid in statuses:
                pairs.append((group, statuses[group.uid]))
            continue
        if not group.after or group.before is None:
            continue
        for key in sorted((k for k in statuses if k < limit), reverse=True):
            enqueued = statuses[key].enqueued
            if enqueued is not None and group.before <= enqueued <= group.after:
                pairs.append((group, statuses[key]))
                limit = key
                break
    return pairs


def _recorded(c10d: Any, backend: str) -> dict[int, Status] | str:
    """Return the recorder's entries of one backend by their number, or why there are none, in words."""
    functions = _DUMPS.get(backend)
    if functions is None:
        return f"{backend}: this backend keeps no flight recorder: completed is unknown"
    for name in functions:
        dump = getattr(c10d, name, None)
        if dump is None:
            continue
        try:
            # Without the entries: formatting them asks CUDA for events, which may hang with the job.
            found = parse_status(dump(includeCollectives=False))
        except (TypeError, ValueError, RuntimeError) as error:
            return f"{backend}: its flight recorder is not readable ({error}): completed is unknown"
        if found:
            return found
    if not any(hasattr(c10d, name) for name in functions):
        return f"{backend}: this torch keeps no flight recorder for it: completed is unknown"
    return {}


def parse_status(dump: bytes | str) -> dict[int, Status]:
    """Return ``pg_status`` of a flight recorder's JSON by number (-1: nothing happened yet)."""
    status = json.loads(dump).get("pg_status") or {}
    return {
        int(key): Status(
            enqueued=_position_number(value.get("last_enqueued_collective")),
            completed=_position_number(value.get("last_completed_collective")),
        )
        for key, value in status.items()
    }


def _position_number(text: Any) -> int | None:
    return None if text is None else max(0, int(text))


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception:
        return None
