"""The last half hour of each rank in compact form: one point a second, fourteen numbers each."""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from math import ceil
from typing import Final

from ranktop.wire.points import HISTORY_SECONDS, LARGEST, point_spacing
from ranktop.wire.schema import Point

_WIDTH: Final = len(Point.__struct_fields__)
_UNKNOWN: Final = math.nan


class PointRing:
    """A bounded series of points, kept as plain doubles: 112 bytes a point."""

    def __init__(self, ranks: int) -> None:
        self._spacing = point_spacing(ranks)
        self._capacity = ceil(HISTORY_SECONDS / self._spacing)
        self._values = array("d")
        self._oldest = 0
        self._last_t = -math.inf

    def __len__(self) -> int:
        return len(self._values) // _WIDTH

    def due(self, t: float) -> bool:
        """Tell whether a point at ``t`` would be kept."""
        return t - self._last_t >= self._spacing

    def add(self, point: Point) -> None:
        """Append a point, unless the last one is less than a spacing old."""
        self._added(point)

    def _added(self, point: Point) -> bool:
        if not self.due(point.t):
            return False
        self._last_t = point.t
        row = _row(point)
        if len(self) < self._capacity:
            self._values.extend(row)
            return True
        start = self._oldest * _WIDTH
        self._values[start : start + _WIDTH] = row
        self._oldest = (self._oldest + 1) % self._capacity
        return True

    def merge(self, points: Sequence[Point]) -> list[Point]:
        """Put points, oldest first, between those that are there; returns the ones that were missing.

        A point that is less than a spacing from one that is there tells of the same second, and is left out.
        """
        if not points:
            return []
        if points[0].t - self._last_t >= self._spacing:
            return [point for point in points if self._added(point)]
        known = self._rows()
        times = [row[0] for row in known]
        missing: list[Point] = []
        last = -math.inf
        for point in points:
            place = bisect_left(times, point.t)
            near = [abs(point.t - t) for t in (*times[max(0, place - 1) : place + 1], last)]
            if min(near) >= self._spacing:
                missing.append(point)
                last = point.t
        if missing:
            rows = heapq.merge(known, map(_row, missing), key=lambda row: row[0])
            self._values = array("d", chain.from_iterable([*rows][-self._capacity :]))
            self._oldest = 0
            self._last_t = self._values[-_WIDTH]
        return missing

    def _rows(self) -> list[array[float]]:
        """Return the points as rows, oldest first."""
        count = len(self)
        rows = (((self._oldest + i) % count) * _WIDTH for i in range(count))
        return [self._values[row : row + _WIDTH] for row in rows]

    def points(self, until: float) -> tuple[Point, ...]:
        """Return the points of the half hour before ``until``, oldest first."""
        return tuple(_point(row) for row in self._rows() if until - HISTORY_SECONDS <= row[0] <= until)


def _row(point: Point) -> array[float]:
    return array("d", (_UNKNOWN if value is None else value for value in _fields(point)))


def _fields(point: Point) -> tuple[float | None, ...]:
    return (
        point.t,
        point.step,
        point.step_s,
        point.used,
        point.states,
        point.activations,
        point.reserved,
        point.utilization,
        point.power,
        point.temperature,
        point.after,
        point.loss,
        point.learning_rate,
        point.loss_step,
    )


def _point(row: array[float]) -> Point:
    t, step, step_s, used, states, activations, reserved, utilization, power, temperature, after, *told = row
    loss, learning_rate, loss_step = told
    return Point(
        t,
        _whole(step) or 0,
        _known(step_s),
        _whole(used),
        _whole(states),
        _whole(activations),
        _whole(reserved),
        _whole(utilization),
        _known(power),
        _whole(temperature),
        _whole(after),
        _known(loss),
        _known(learning_rate),
        _whole(loss_step),
    )


def _known(value: float) -> float | None:
    return None if value != value else value


def _whole(value: float) -> int | None:
    return None if value != value else max(-LARGEST, min(int(value), LARGEST))
