"""What a device has said, field by field, with the time of each; and the readings that are made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ranktop.probes.nvml.codes import Absent
from ranktop.probes.reading import DeviceDetail, DeviceReading

_BESIDE: Final = ("reasons", "age", "ages", "state", "of_parent")
READING: Final = tuple(item.name for item in fields(DeviceReading) if item.name not in _BESIDE)
DETAIL: Final = tuple(item.name for item in fields(DeviceDetail) if item.name not in _BESIDE)
_APART: Final = 0.5
"""Seconds by which a field must be older or younger than the reading to have an age of its own."""


@dataclass(slots=True)
class Answers:
    """The newest answers."""

    values: dict[str, Any] = field(default_factory=dict)
    when: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Of a field without a value: why."""

    asked: bool = False
    """Something of the detail has been asked, ever."""

    def put(self, values: dict[str, Any], now: float) -> None:
        """Take the answers of one getter; Absent in the place of a value is the reason why there is none."""
        for name, value in values.items():
            if isinstance(value, Absent):
                self.fail((name,), str(value))
                continue
            self.values[name] = value
            self.when[name] = now
            self.reasons.pop(name, None)

    def fail(self, names: Iterable[str], reason: str) -> None:
        """Take note that fields could not be had."""
        for name in names:
            self.values.pop(name, None)
            self.when.pop(name, None)
            self.reasons[name] = reason

    def clear(self) -> None:
        """Forget everything, except that it has been asked."""
        self.asked = self.asked or any(name in self.values or name in self.reasons for name in DETAIL)
        self.values.clear()
        self.when.clear()
        self.reasons.clear()

    def reading(self, now: float, answered: float, state: str, why: str) -> DeviceReading:
        """Return the reading; ``answered``: when the last whole round was."""
        reasons = self._reasons(READING, why)
        if state != "ok":
            reasons["device"] = why
        ages = {
            name: max(0.0, now - self.when[name])
            for name in READING
            if name in self.when and abs(answered - self.when[name]) > _APART
        }
        values = {name: self.values[name] for name in READING if name in self.values}
        return DeviceReading(**values, reasons=reasons, age=max(0.0, now - answered), state=state, ages=ages)

    def detail(self, now: float, why: str, of_parent: Iterable[str]) -> DeviceDetail | None:
        """Return the detail; None before anything of it has been asked."""
        self.asked = self.asked or any(name in self.values or name in self.reasons for name in DETAIL)
        if not self.asked:
            return None
        return DeviceDetail(
            **{name: self.values[name] for name in DETAIL if name in self.values},
            of_parent=tuple(name for name in of_parent if name in self.values),
            reasons=self._reasons(DETAIL, why),
            ages={name: max(0.0, now - self.when[name]) for name in DETAIL if name in self.when},
        )

    def _reasons(self, names: tuple[str, ...], why: str) -> dict[str, str]:
        told = {name: self.reasons[name] for name in names if name in self.reasons}
        for name in names:
            if name not in self.values:
                told.setdefault(name, why or "not asked yet")
        return told
