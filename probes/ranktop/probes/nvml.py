"""One NVIDIA device through NVML, read on a thread of its own so that a driver that hangs holds up nobody."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranktop.probes.nvml_codes import GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND, RESET_REQUIRED, words
from ranktop.probes.nvml_getters import GETTERS, Getter, code_of, explain
from ranktop.probes.reading import DeviceDetail, DeviceIdentity, DeviceReading

FIELDS: Final = tuple(name for getter in GETTERS for name in getter.fields)
"""Fields of DeviceReading that NVML fills."""

_LAST_RETRY: Final = 30.0
"""Seconds; what the pause before reaching for a device that can't be reached doubles up to."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which device to read, and what the framework already knows of it."""

    uuids: tuple[str, ...] = ()
    """Names to try, e.g. ``GPU-...`` and ``MIG-...`` of the same bytes."""
    index: int | None = None
    """NVML's index, only where a person chose the device by it."""
    name: str = ""
    total: int | None = None
    """Bytes."""
    torch_index: int | None = None


@dataclass(slots=True)
class _Answers:
    """What the getters have said, field by field."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _Answers:
        return _Answers(dict(self.values), dict(self.reasons))


class NvmlDevice:
    """Reads one device by its UUID (or MIG UUID).

    ``read`` asks the thread for a new round of calls and returns what there is. While a call does not
    return, the values stay as they were, their age grows and, past the deadline, the state is ``no
    answer``; no further call is made until it returns. A round makes at most 12 calls and rounds start at
    least ``gap`` seconds apart. ``reasons["device"]`` says why the state is not ``ok``.
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
    ) -> None:
        """``locate``, called on the thread, returns the device, or in words why it is not known yet.

        ``deadline``: seconds of one call after which the state is ``no answer``. ``settle``: seconds that
        ``read`` waits. ``retry``: first pause before reaching for the device again, doubled up to 30 s.
        """
        self._locate = locate
        self._deadline, self._gap, self._settle, self._clock = deadline, gap, settle, clock
        self._lock = threading.Lock()
        self._wake, self._finished = threading.Event(), threading.Event()
        self._closing = False
        self._created = self._started = clock()
        self._answered: float | None = None
        self._busy = True
        self._calling: tuple[str, float] | None = None
        self._published, self._fresh = _Answers(), _Answers()
        self._state, self._why = "unavailable", "the driver has not answered yet"
        self._identity = DeviceIdentity(kind="cuda")
        self._nvml: Any = None
        self._initialized = False
        self._handle: Any = None
        self._rounds = 0
        self._first_retry, self._retry, self._next_try = retry, retry, 0.0
        self._pids = own_pids()
        self._wake.set()
        threading.Thread(target=self._run, name="ranktop-nvml", daemon=True).start()

    def identity(self) -> DeviceIdentity:
        """Return what is known of the device so far: name and total come with the first answer."""
        return self._identity

    def read(self) -> DeviceReading:
        """Return the newest values, waiting at most ``settle`` seconds for a new round."""
        if not self._busy and not self._closing and self._clock() - self._started >= self._gap:
            self._finished.clear()
            self._wake.set()
            self._finished.wait(self._settle)
        with self._lock:
            return self._reading(self._clock())

    def detail(self) -> DeviceDetail | None:
        """Return what is asked seldom; nothing is yet."""
        return None

    def close(self) -> None:
        """Stop asking, without waiting.

        NVML stays initialised: shutting it down while the process ends is a race that drivers have lost.
        """
        self._closing = True
        self._wake.set()

    def _reading(self, now: float) -> DeviceReading:
        answers, state, why = self._published.copy(), self._state, self._why
        calling = self._calling
        if calling is not None and now - calling[1] > self._deadline:
            # What this round had given before the call that hangs is newer than the last whole round.
            answers.values.update(self._fresh.values)
            answers.reasons.update(self._fresh.reasons)
            state = "no answer"
            why = f"no answer from the driver for {now - calling[1]:.0f} s ({calling[0]})"
        reasons = {name: reason for name, reason in answers.reasons.items() if answers.values.get(name) is None}
        if state != "ok":
            reasons["device"] = why
        for name in FIELDS:
            if answers.values.get(name) is None:
                reasons.setdefault(name, why or "not asked yet")
        since = self._created if self._answered is None else self._answered
        return DeviceReading(**answers.values, reasons=reasons, age=max(0.0, now - since), state=state)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._closing:
                return
            self._busy = True
            self._started = self._clock()
            try:
                self._round()
            except Exception as error:
                self._fail("unavailable", f"{type(error).__name__}: {error}")
            self._busy = False
            self._finished.set()

    def _round(self) -> None:
        if self._handle is None:
            if self._clock() < self._next_try:
                return
            problem = self._connect()
            if problem is not None:
                self._fail(*problem)
                return
        with self._lock:
            self._fresh = _Answers()
        codes: list[int | None] = []
        for getter in GETTERS:
            if self._closing:
                return
            if self._rounds % getter.every == 0:
                codes.append(self._ask(getter))
        self._rounds += 1
        if 0 in codes:
            self._publish()
        else:
            self._give_up(codes)

    def _ask(self, getter: Getter) -> int | None:
        """Ask one getter; returns NVML's code, 0 when it answered, None for another failure."""
        try:
            values = self._call(getter.name, lambda: getter.ask(self._nvml, self._handle, self._pids))
        except Exception as error:
            reason = explain(error)
            with self._lock:
                self._fresh.values.update(dict.fromkeys(getter.fields))
                self._fresh.reasons.update(dict.fromkeys(getter.fields, reason))
            code = code_of(error)
            # A getter that answered with what is no value did answer.
            return 0 if code is None else code
        with self._lock:
            self._fresh.values.update(values)
        return 0

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        self._calling = (name, self._clock())
        try:
            return call()
        finally:
            self._calling = None

    def _publish(self) -> None:
        with self._lock:
            for name, value in self._fresh.values.items():
                self._published.values[name] = value
                if name in self._fresh.reasons:
                    self._published.reasons[name] = self._fresh.reasons[name]
                else:
                    self._published.reasons.pop(name, None)
            self._answered = self._clock()
            self._state, self._why = "ok", ""
            total = self._published.values.get("total")
        self._retry = self._first_retry
        if total is not None and total != self._identity.total:
            self._identity = replace(self._identity, total=total)

    def _give_up(self, codes: list[int | None]) -> None:
        """No getter answered: the device is gone, or NVML is; begin anew with the next attempt."""
        code = next((code for code in codes if code in (GPU_IS_LOST, RESET_REQUIRED)), codes[0])
        state = "lost" if code in (GPU_IS_LOST, RESET_REQUIRED) else "unavailable"
        self._disconnect()
        self._fail(state, words(code) if code is not None else "no answer that can be read")

    def _fail(self, state: str, why: str) -> None:
        with self._lock:
            self._published = _Answers(reasons=dict.fromkeys(FIELDS, why))
            self._state, self._why = state, why
        self._rounds = 0
        self._next_try = self._clock() + self._retry
        self._retry = min(_LAST_RETRY, self._retry * 2)

    def _connect(self) -> tuple[str, str] | None:
        """Find the device; returns (state, reason) when it can't be reached."""
        target = self._call("asking CUDA for the device's UUID", self._locate)
        if isinstance(target, str):
            self._retry = self._first_retry  # Not a failure: the job is on its way there.
            return "unavailable", target
        self._identity = replace(
            self._identity,
            name=self._identity.name or target.name,
            total=self._identity.total or target.total,
            torch_index=target.torch_index,
        )
        try:
            self._nvml = self._nvml or _import_pynvml()
            if not self._initialized:
                self._call("nvmlInit", self._nvml.nvmlInit)
                self._initialized = True
            self._handle = self._find(target)
        except Exception as error:
            self._disconnect()
            code = code_of(error)
            return "lost" if code in (GPU_IS_LOST, RESET_REQUIRED) else "unavailable", explain(error)
        self._describe()
        return None

    def _find(self, target: Target) -> Any:
        nvml = self._nvml
        if target.index is not None:
            ask = partial(nvml.nvmlDeviceGetHandleByIndex, target.index)
            handle = self._call("nvmlDeviceGetHandleByIndex", ask)
            uuid = self._call("nvmlDeviceGetUUID", lambda: nvml.nvmlDeviceGetUUID(handle))
            self._identity = replace(self._identity, uuid=str(uuid))
            return handle
        for position, uuid in enumerate(target.uuids):
            try:
                ask = partial(nvml.nvmlDeviceGetHandleByUUID, uuid)
                handle = self._call("nvmlDeviceGetHandleByUUID", ask)
            except nvml.NVMLError as error:
                if error.value not in (NOT_FOUND, INVALID_ARGUMENT) or position == len(target.uuids) - 1:
                    raise
                continue
            self._identity = replace(self._identity, uuid=uuid)
            return handle
        raise LookupError("the device has no UUID")

    def _describe(self) -> None:
        """Read the name and the index; both may fail without harm."""
        nvml, handle = self._nvml, self._handle
        name = self._optional("nvmlDeviceGetName", lambda: _device_name(nvml, handle))
        owner = handle
        if (self._identity.uuid or "").startswith("MIG-"):
            owner = self._optional(
                "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
                lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle),
            )
        index = None
        if owner is not None:
            index = self._optional("nvmlDeviceGetIndex", lambda: int(nvml.nvmlDeviceGetIndex(owner)))
        self._identity = replace(self._identity, name=name or self._identity.name, nvml_index=index)

    def _optional(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return self._call(name, call)
        except Exception:
            return None

    def _disconnect(self) -> None:
        """Let go of the handle and of NVML, so that the next attempt starts anew."""
        self._handle = None
        if self._initialized:
            self._initialized = False
            self._optional("nvmlShutdown", self._nvml.nvmlShutdown)


def own_pids() -> tuple[int, ...]:
    """Return this process's ids in the PID namespaces that it can see (proc(5), ``NSpid``)."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return tuple(int(word) for word in line.split()[1:])
    except (OSError, ValueError):
        pass
    return (os.getpid(),)


def _import_pynvml() -> Any:
    import pynvml

    return pynvml


def _device_name(nvml: Any, handle: Any) -> str:
    # pynvml decodes strictly, and some boards' names are not UTF-8: its undecorated function returns the
    # bytes.
    raw = getattr(nvml.nvmlDeviceGetName, "__wrapped__", nvml.nvmlDeviceGetName)(handle)
    return raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else str(raw)
