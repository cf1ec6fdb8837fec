"""Asks the driver about one device, round by round, and keeps what it says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from ranktop.probes.nvml.answers import Answers
from ranktop.probes.nvml.codes import (
    GONE,
    LOST_BY_CONTAINER,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    Absent,
    code_of,
    explain,
    words,
)
from ranktop.probes.nvml.connect import Target, connect
from ranktop.probes.nvml.describe import FACTS, Fact, describe
from ranktop.probes.nvml.fast import FAST, MEMORY
from ranktop.probes.nvml.getter import Getter, Subject
from ranktop.probes.nvml.gpm import GPM, OFF, free_samples, wanted
from ranktop.probes.nvml.library import Library
from ranktop.probes.nvml.memory import UNIFIED
from ranktop.probes.nvml.processes import COMPUTE, LISTED, Entry, of_this_process
from ranktop.probes.nvml.slow import POWER_LIMIT, SLOW
from ranktop.probes.reading import DeviceDetail, DeviceIdentity, DeviceReading

MOST_CALLS: Final = 12
"""Of one round."""
_LAST_RETRY: Final = 30.0
"""Seconds; what the pause before reaching for a device that can't be reached doubles up to."""
_FELL_OFF: Final = 3
"""Getters in a row, at the end of a round, that say that the device is gone though others had answered before."""
_HUNG: Final = "the driver does not answer"
"""Without the time and the call, which the reading has: a detail is news whenever it says something else."""
_NO_LIMIT: Final = 1 << 60
_OF_PARENT: Final = tuple(dict.fromkeys(name for getter in (*FAST, *SLOW) if getter.of_whole for name in getter.fields))


class Reader:
    """The driver's answers about one device. One thread calls ``round``; others may look at them meanwhile."""

    def __init__(self, clock: Callable[[], float], retry: float, pids: Collection[int], note: str) -> None:
        """``retry``: first pause before reaching for the device again, in seconds."""
        self._clock, self._first_retry, self._pids = clock, retry, pids
        self.library = Library(clock)
        self.identity = DeviceIdentity(kind="cuda", note=note)
        self.state, self.why = "pending", "the driver has not answered yet"
        self.entries: list[Entry] | None = None
        """The driver's newest list of processes."""
        self.closing = False
        self._lock = threading.Lock()
        self._answers = Answers()
        self._answered = clock()
        self._worked = False
        self._subject: Subject | None = None
        self._retry, self._next_try = retry, 0.0
        self._gpm = wanted()
        self._queue: tuple[Getter | Fact, ...] = (*SLOW, *FACTS, *((GPM,) if self._gpm else ()))
        self._turn = 0
        self._whole_turn = True

    def round(self, target: Target) -> None:
        """Ask the fast getters, then the slow ones whose turn it is."""
        if self._subject is None:
            if self._clock() < self._next_try:
                return
            try:
                self._connect(target)
            except Exception as error:
                self._unreachable(error)
                return
        subject = self._subject
        if subject is None:
            return
        subject.spare = _NO_LIMIT if self._whole_turn else self.library.count + MOST_CALLS
        codes = []
        for getter in FAST:
            if self.closing:
                return
            codes.append(self._ask(subject, getter))
        if self._whole_turn:
            self._ask(subject, POWER_LIMIT)
        if _is_gone(codes):
            self._give_up(codes)
            return
        self._answered_all()
        self._slow(subject)

    @property
    def answered(self) -> float:
        """When the driver last gave a whole answer, or when it was first to be asked."""
        return self._answered

    def reading(self, now: float, hung: str) -> DeviceReading:
        """Return the newest values; ``hung``: what to say of a call that does not return, if there is one."""
        with self._lock:
            state, why = ("no answer", hung) if hung else (self.state, self.why)
            return self._answers.reading(now, self._answered, state, why)

    def detail(self, now: float, hung: str) -> DeviceDetail | None:
        """Return what is asked in turn; ``hung`` as for ``reading``."""
        with self._lock:
            subject = self._subject
            of_parent = _OF_PARENT if subject is not None and subject.mig else ()
            return self._answers.detail(now, _HUNG if hung else self.why, of_parent)

    def fail(self, state: str, why: str, *, soon: bool = False) -> None:
        """Say why there are no values; the device is reached for again later, ``soon`` without growing pauses."""
        with self._lock:
            self._answers.clear()
            self.state, self.why = state, why
            self.entries = None
        self._retry = self._first_retry if soon else self._retry
        self._next_try = self._clock() + self._retry
        if not soon:
            self._retry = min(_LAST_RETRY, self._retry * 2)

    def heard(self, identity: DeviceIdentity, when: float) -> None:
        """Take what another process knows of the device: who it is, and when it last answered."""
        self.identity = identity
        with self._lock:
            self._answered, self._worked = max(self._answered, when), True

    def let_go(self) -> None:
        """Give back what the driver keeps for this reader, except NVML itself."""
        if self._subject is not None:
            free_samples(self._subject)
            self._subject = None

    def _connect(self, target: Target) -> None:
        self.library.start()
        subject = connect(self.library, target)
        known = self.identity
        identity = DeviceIdentity(
            kind="cuda",
            uuid=subject.uuid,
            name=target.name,
            total=known.total or target.total,
            torch_index=target.torch_index,
            unified=known.unified,
            note=known.note,
        )
        for fact in FACTS:
            identity = describe(fact, subject, identity)
        subject.pids = self._pids
        self.identity, self._subject = identity, subject
        self._whole_turn = True

    def _ask(self, subject: Subject, getter: Getter) -> int | None:
        """Ask one getter; returns NVML's code, 0 when it answered, None when the driver had no part in it."""
        before = self.library.count
        try:
            values = getter.ask(subject)
        except Exception as error:
            with self._lock:
                self._answers.fail(getter.fields, getter.problem(subject, error))
                if getter is COMPUTE:
                    self.entries = None
            code = code_of(error)
            if code is None and isinstance(error, Absent) and self.library.count > before:
                return 0
            return code
        code = 0
        if values.pop(UNIFIED, False):
            code = NOT_SUPPORTED
            self._unified(True)
        elif getter is MEMORY:
            self._unified(False)
        entries = values.pop(LISTED, None)
        if entries is not None:
            values = of_this_process(entries, self._pids)
        with self._lock:
            self._answers.put(values, self._clock())
            if entries is not None:
                self.entries = entries
        return code

    def _unified(self, unified: bool) -> None:
        if self.identity.unified != unified:
            self.identity = replace(self.identity, unified=unified)

    def _slow(self, subject: Subject) -> None:
        whole, self._whole_turn = self._whole_turn, False
        before = self.library.count
        for _ in range(len(self._queue)):
            item = self._queue[self._turn % len(self._queue)]
            # What needs more calls than there ever are has a round for itself, or it would hold up the others.
            if self.closing or (not whole and self._cost(item) > subject.left and self.library.count > before):
                return
            self._turn += 1
            if isinstance(item, Fact):
                identity = describe(item, subject, self.identity)
                if identity != self.identity:
                    self.identity = identity
            elif not (whole and item is POWER_LIMIT):
                self._ask(subject, item)

    def _cost(self, item: Getter | Fact) -> int:
        return 0 if isinstance(item, Fact) and item.known(self.identity) else item.calls

    def _answered_all(self) -> None:
        with self._lock:
            self._answered = self._clock()
            self.state, self.why = "ok", ""
            total = self._answers.values.get("total")
            if not self._gpm:
                self._answers.fail(GPM.fields, OFF)
        self._retry, self._worked = self._first_retry, True
        if total is not None and total != self.identity.total:
            self.identity = replace(self.identity, total=total)

    def _give_up(self, codes: list[int | None]) -> None:
        """The device is gone, or NVML is; begin anew with the next attempt."""
        with self._lock:
            told = next(iter(self._answers.reasons.values()), "no answer that can be read")
        self._disconnect()
        code = next((code for code in codes if code in GONE), None)
        if code is None:
            code = next((code for code in codes if code is not None), None)
        if code is None:
            self.fail("unavailable", told)
        elif code == UNKNOWN and self._worked:
            self.fail("unavailable", LOST_BY_CONTAINER)
        else:
            self.fail(GONE.get(code, "unavailable"), words(code))

    def _unreachable(self, error: Exception) -> None:
        code = code_of(error)
        self._disconnect()
        if code == UNKNOWN and self._worked:
            self.fail("unavailable", LOST_BY_CONTAINER)
        elif code == NOT_FOUND and self._worked:
            self.fail("lost", f"the driver does not list the GPU any more: {words(NOT_FOUND)}")
        else:
            self.fail(GONE.get(code, "unavailable") if code is not None else "unavailable", explain(error))

    def _disconnect(self) -> None:
        """Let go of the handle, which may be of no use any more, and of NVML, so that the next attempt starts anew."""
        self.let_go()
        self.library.stop()


def _is_gone(codes: list[int | None]) -> bool:
    """Whether nothing answered, or the device fell off in the middle of a round."""
    answers = [place for place, code in enumerate(codes) if code in (0, NOT_SUPPORTED)]
    if not answers:
        return True
    after = codes[answers[-1] + 1 :]
    return len(after) >= _FELL_OFF and any(code in GONE for code in after)
