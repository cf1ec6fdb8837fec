"""Which agents of a job are alive, and when their ends are to be recorded."""

from __future__ import annotations

from typing import Final

from ranktop.agent.hub_kills import KernelKills
from ranktop.agent.hub_watch import Gone, ProcessWatch
from ranktop.wire.schema import Header

GRACE: Final = 0.06
"""Seconds between a process's end and its record: the rank's own account may still be on its way. Slurm kills what is
left of a step, this process too, 0.1 s after its last task."""

HASTE: Final = 0.02
"""The same of one that was killed, which says nothing any more, and of all once the hub itself was told to go."""

SILENCE: Final = 10.0
"""Seconds after which an agent counts as gone when its process cannot be watched."""

_LOOK_EVERY: Final = 0.5
_MAX_UNWATCHED: Final = 4096


class Presence:
    """The processes of the agents: watched where they can be seen, else judged by their silence."""

    def __init__(self) -> None:
        self._watch = ProcessWatch()
        self._kills = KernelKills()
        self._unwatched: dict[int, float] = {}
        self._ended: list[tuple[float, float, Gone]] = []
        """(when to record it, when it was seen, what)."""
        self._next_look = 0.0
        self.hasty = False
        """Record ends as soon as they are seen: this process may be killed at any time."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a process ends."""
        return self._watch.fileno()

    @property
    def alone(self) -> bool:
        """Whether no agent is left."""
        return not len(self._watch) and not self._unwatched

    @property
    def watched(self) -> bool:
        """Whether a process is alive that can be seen from here, or its end not recorded yet."""
        return bool(len(self._watch) or self._ended)

    def follow(self, header: Header, now: float) -> None:
        """Note that a message came from a process."""
        watched = self._watch.watch(header.pid)
        if watched and header.pid not in self._kills:
            self._kills.join(header.pid, now)
        if watched or header.kind == "end":
            self._unwatched.pop(header.pid, None)
        elif header.pid in self._unwatched or len(self._unwatched) < _MAX_UNWATCHED:
            self._unwatched[header.pid] = now

    def activity(self, pid: int) -> str:
        """Return what a process does in a word (``stopped``, ``sleeping``, ...); empty where it cannot be seen."""
        return self._watch.activity(pid)

    def collect(self, now: float, signalled: bool) -> list[tuple[float, Gone]]:
        """Return the ends that are due to be recorded, each with the time at which it was seen.

        ``signalled`` when ``fileno`` was readable. The time tells which of several ranks went first.
        """
        if signalled or (self._watch.must_look and now >= self._next_look):
            self._next_look = now + _LOOK_EVERY
            for gone in self._watch.gone():
                patience = HASTE if self.hasty or gone.how == "signal" else GRACE
                self._ended.append((now + patience, now, self._kills.explain(gone, now)))
        self._kills.look(now)
        for pid, last in list(self._unwatched.items()):
            if now - last > SILENCE:
                del self._unwatched[pid]
                detail = f"silent for {SILENCE:.0f} s; its process cannot be seen from here"
                self._ended.append((now, now, Gone(pid, "vanished", None, detail)))
        due = [(seen, gone) for when, seen, gone in self._ended if when <= now]
        self._ended = [entry for entry in self._ended if entry[0] > now]
        return due

    def deadline(self) -> float | None:
        """Return when ``collect`` should be called at the latest; None when only ``fileno`` matters."""
        due = [when for when, _, _ in self._ended]
        due += [last + SILENCE for last in self._unwatched.values()]
        if self._watch.must_look:
            due.append(self._next_look)
        return min(due, default=None)

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()
