"""One NVIDIA device through NVML, read on a thread of its own so that a driver that hangs holds up nobody."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from ranktop.probes.nvml.codes import explain
from ranktop.probes.nvml.connect import Target
from ranktop.probes.nvml.followed import Followed
from ranktop.probes.nvml.processes import own_pids
from ranktop.probes.nvml.reader import Reader
from ranktop.probes.nvml.sharing import Shared, Sharing
from ranktop.probes.reading import DeviceDetail, DeviceIdentity, DeviceReading

_EARLY: Final = 0.95
"""Part of an interval after which a round may begin: readers are never quite on time."""
_PATIENCE: Final = 3
"""Rounds without news, after the deadline of a call, until a process reads for itself what another should."""


class NvmlDevice:
    """Reads one device by its UUID (or MIG UUID).

    ``read`` asks the thread for a new round of calls and returns what there is. While a call does not return, the
    values stay as they were, their age grows and, past the deadline, the state is ``no answer``; no further call is
    made until it returns. A round makes at most 12 calls (the first, all that there are) and rounds start at least
    ``gap`` seconds apart, on average a twentieth more. ``reasons["device"]`` says why the state is not ``ok``.
    """

    def __init__(
        self,
        locate: Callable[[], Target | str],
        *,
        deadline: float = 2.0,
        gap: float = 0.95,
        settle: float = 0.005,
        retry: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        share: Path | str | None = None,
        note: str = "",
    ) -> None:
        """``locate``, called on the thread, returns the device, or in words why it is not known yet (``pending``);
        it raises LookupError with why it never will be.

        ``deadline``: seconds of one call after which the state is ``no answer``. ``settle``: seconds that ``read``
        waits. ``retry``: first pause before reaching for the device again, doubled up to 30 s. ``share``: folder in
        which the processes of this host share one reading of the device; None: each reads for itself.
        """
        self._locate = locate
        self._deadline, self._gap, self._settle, self._clock = deadline, gap, settle, clock
        self._share = None if share is None else Path(share)
        self._sharing: Sharing | None = None
        self._followed: Followed | None = None
        self._pids = own_pids()
        self._reader = Reader(clock, retry, self._pids, note)
        self._target: Target | None = None
        self._pace = threading.Lock()
        self._wake, self._finished = threading.Event(), threading.Event()
        self._due = clock() + gap / _EARLY
        self._busy = True
        self._wake.set()
        threading.Thread(target=self._run, name="ranktop-nvml", daemon=True).start()

    def identity(self) -> DeviceIdentity:
        """Return what is known of the device so far: most of it comes with the first answer."""
        return self._reader.identity

    def read(self) -> DeviceReading:
        """Return the newest values, waiting at most ``settle`` seconds for a new round."""
        with self._pace:
            due = not self._busy and not self._reader.closing and self._is_due(self._clock())
            if due:
                self._busy = True
                self._finished.clear()
                self._wake.set()
        if due:
            self._finished.wait(self._settle)
        now = self._clock()
        hung, followed = self._hung(now), self._followed
        if followed is not None:
            return followed.reading(now, hung)
        reading = self._reader.reading(now, hung)
        if hung and self._sharing is not None and not self._sharing.told_since(self._gap):
            # The thread that tells the others is in the call that hangs.
            self._tell(self._sharing, now, reading, hung)
        return reading

    def detail(self) -> DeviceDetail | None:
        """Return what is asked in turn; None before the first of it."""
        now, followed = self._clock(), self._followed
        return self._reader.detail(now, self._hung(now)) if followed is None else followed.detail(now)

    def close(self) -> None:
        """Stop asking, without waiting.

        NVML stays initialised: shutting it down while the process ends is a race that drivers have lost.
        """
        self._reader.closing = True
        self._wake.set()
        if self._sharing is not None:
            self._sharing.close()

    def _is_due(self, now: float) -> bool:
        """Whether it is time for a round; rounds may be a little early, but not one after the other."""
        interval = self._gap / _EARLY
        if now < self._due - (interval - self._gap):
            return False
        self._due = max(self._due, now) + interval
        return True

    def _hung(self, now: float) -> str:
        calling = self._reader.library.calling
        if calling is None:
            return ""
        if now - calling[1] > self._deadline:
            return f"no answer from the driver for {now - calling[1]:.0f} s ({calling[0]})"
        whole = now - self._reader.answered
        if whole > self._deadline + _PATIENCE * self._gap:
            return f"the driver is slow: its calls return, but no whole answer for {whole:.0f} s (now {calling[0]})"
        return ""

    def _run(self) -> None:
        reader = self._reader
        while True:
            self._wake.wait()
            self._wake.clear()
            if reader.closing:
                reader.let_go()
                if self._sharing is not None:
                    # It may have come about while the probe was being closed.
                    self._sharing.close()
                return
            try:
                self._round()
            except Exception as error:
                reader.fail("unavailable", explain(error))
            with self._pace:
                self._busy = False
                self._finished.set()

    def _round(self) -> None:
        target = self._target or self._found()
        if target is None:
            return
        sharing = self._sharing
        if sharing is not None and self._follow(sharing):
            return
        self._reader.round(target)
        self._followed = None
        if self._share is not None and sharing is None:
            self._start_sharing(self._reader.identity.uuid or "")
        if sharing is not None:
            now = self._clock()
            self._tell(sharing, now, self._reader.reading(now, ""), "")

    def _found(self) -> Target | None:
        """Return the device to read, or None while that is not known."""
        reader = self._reader
        try:
            target: Target | str = reader.library.run("asking CUDA for the device's UUID", self._locate)
        except LookupError as error:
            reader.fail("unavailable", explain(error), soon=True)
            return None
        except Exception as error:
            first = (str(error).strip() or repr(error)).splitlines()[0]
            reader.fail("unavailable", f"torch can't tell the device: {first}", soon=True)
            return None
        if isinstance(target, str):
            reader.fail("pending", target, soon=True)
            return None
        self._target = target
        own = reader.identity
        reader.identity = replace(
            own,
            name=own.name or target.name,
            total=own.total or target.total,
            torch_index=target.torch_index,
        )
        if self._share is not None and target.key:
            self._start_sharing(target.key)
        return target

    def _start_sharing(self, uuid: str) -> None:
        key = Target(uuids=(uuid,)).key
        if key and self._share is not None and not self._reader.closing:
            self._sharing = Sharing(self._share, key, self._deadline + _PATIENCE * self._gap, self._clock)

    def _follow(self, sharing: Sharing) -> bool:
        """Take what another process has read; returns False when this one has to read."""
        if sharing.reads():
            return False
        told = sharing.news()
        if told is not None:
            self._followed = Followed(told, self._pids)
            self._reader.heard(self._followed.identity(self._reader.identity), told.stamp - told.reading.age)
        return told is not None or not sharing.silent()

    def _tell(self, sharing: Sharing, now: float, reading: DeviceReading, hung: str) -> None:
        if not sharing.wanted():
            return
        reader = self._reader
        told = Shared(
            version=1,
            pid=os.getpid(),
            stamp=now,
            identity=reader.identity,
            reading=reading,
            detail=reader.detail(now, hung),
            entries=reader.entries,
        )
        sharing.tell(told)
