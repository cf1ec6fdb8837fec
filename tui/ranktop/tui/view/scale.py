"""Which bytes a frame shows and what the full bar stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final

from ranktop.budget.terms import CATEGORIES, Amount, Memory
from ranktop.tui.session.expected import ALLOCATED, allocated, difference, steady
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.view.bar import DRAWN
from ranktop.tui.view.text import Unit, unit_for, whole

PROCESS: Final = tuple(name for name in DRAWN if name != "other")
_OF_THE_PROCESS: Final = attrgetter(*PROCESS)

SMALL: Final = 0.05
"""Below this share of the full bar everything would be a sliver: the scale zooms in by itself."""

SMALL_TENSORS: Final = 0.2
"""The same for tensors in a small process: libraries fill most of it, and nobody budgets them."""


@dataclass(frozen=True)
class Shown:
    """The two sides of one rank at the moment that the frame shows."""

    view: RankView
    moment: str | None
    """The moment's name; ``now`` when there is no table yet; None without any reading."""
    memory: Memory
    amounts: Mapping[str, Amount]
    """category -> expected, for those that the budget covers at this moment."""

    def delta(self, category: str) -> int | None:
        """Return measured - expected of one category, None when a side is missing."""
        return difference(getattr(self.memory, category, None), self.amounts.get(category))

    @cached_property
    def _deltas(self) -> dict[str, int]:
        return {name: delta for name in CATEGORIES if (delta := self.delta(name)) is not None}

    @property
    def comparable(self) -> tuple[str, ...]:
        """Categories that have both sides."""
        return tuple(self._deltas)

    @property
    def total_delta(self) -> int | None:
        """Sum of the differences over the categories that have both sides."""
        return sum(self._deltas.values()) if self._deltas else None

    @property
    def worst_delta(self) -> int | None:
        """The largest difference of one category, in either direction: in the sum two may hide each other."""
        return max((delta for delta in self._deltas.values() if delta), key=abs, default=None)

    @property
    def expected_sum(self) -> int | None:
        """Sum of what is expected, over the categories that have both sides."""
        known = [self.amounts[name].bytes or 0 for name in self.comparable]
        return sum(known) if known else None

    @property
    def process(self) -> int | None:
        """Bytes of the rank's own process, as far as they are known."""
        known = [size for size in _OF_THE_PROCESS(self.memory) if size is not None]
        return sum(known) if known else None

    def used(self, zoom: str) -> int | None:
        """Return what the number beside the bar says: what the bar of that scale is full of."""
        if zoom == "tensors":
            return allocated(self.memory)
        if zoom == "process":
            return self.process
        used = self.memory.used()
        return self.process if used is None else used


def shown(view: RankView, moment: str) -> Shown:
    """Pick the two sides of a rank for the chosen moment; ``peak`` is each rank's own."""
    name = view.peak if moment == "peak" else moment
    if view.sample is None:
        return Shown(view, None, Memory(), {})
    if view.sample.table is None or name is None:
        name = "now"
    amounts: Mapping[str, Amount] = {}
    if view.budget is not None:
        amounts = steady(view.budget) if name == "now" else view.budget.at(name)
        if view.sample.table is None and "parameters" in amounts:
            # Gradients and the optimizer's state appear at some time of the first step: nothing to compare yet.
            amounts = {"parameters": amounts["parameters"]}
    return Shown(view, name, view.memory(name) or Memory(), amounts)


@dataclass(frozen=True, slots=True)
class Scale:
    """What the full bar stands for."""

    zoom: str
    """``device``, ``process`` or ``tensors``."""
    bytes: int
    total: int | None
    """Bytes of the largest device."""
    unit: Unit
    auto: bool

    @property
    def drawn(self) -> tuple[str, ...]:
        """Categories that the bar stacks at this scale."""
        return {"process": PROCESS, "tensors": ALLOCATED}.get(self.zoom, DRAWN)

    def words(self) -> tuple[str, ...]:
        """Say what the full bar is, longest form first."""
        full = f"{whole(self.bytes, self.unit)} {self.unit.name}"
        if self.zoom == "device":
            return (f"full bar = {full}", f"of {full}", full)
        of = "" if self.total is None else f" of {_plain(self.total)}"
        what = "process" if self.zoom == "process" else "tensors"
        return (
            f"{what} only, full bar = {full}{of} (z: scale)",
            f"{what}: {full}{of}",
            f"zoom {full}",
        )


def _plain(value: int) -> str:
    unit = unit_for(value)
    return f"{whole(value, unit)} {unit.name}"


def scale_of(rows: Iterable[Shown], zoom: str, held: tuple[str, int] | None = None) -> Scale:
    """Choose the scale that all bars of a frame share.

    ``held`` is (zoom, bytes) of the frame before: a scale is kept as long as it serves, so that bars don't
    jump while a job's memory breathes.
    """
    rows = list(rows)
    total = max((row.memory.total for row in rows if row.memory.total), default=None)
    process = max((value for row in rows if (value := row.process) is not None), default=None)
    tensors = max((value for row in rows if (value := allocated(row.memory)) is not None), default=None)
    auto = zoom == "auto"
    if auto:
        zoom = _auto(total, process, tensors, held[0] if held else "device")
    largest = {"device": total, "process": process, "tensors": tensors}[zoom]
    if largest is None:
        zoom, largest = "device", total or process or 1
    if zoom != "device":
        largest = max(largest, _largest_budget(rows))
        kept = held is not None and held[0] == zoom and held[1] >= largest > held[1] / 3
        largest = held[1] if held is not None and kept else _round_up(largest)
    return Scale(zoom, largest, total, unit_for(largest), auto)


def _auto(total: int | None, process: int | None, tensors: int | None, before: str) -> str:
    """Zoom in on what would be a sliver; zoom out again only at twice that size."""
    if not total or process is None or process >= SMALL * total * (1 if before == "device" else 2):
        return "device"
    if tensors and tensors < SMALL_TENSORS * process * (2 if before == "tensors" else 1):
        return "tensors"
    return "process"


def _largest_budget(rows: list[Shown]) -> int:
    return max((sum(amount.bytes or 0 for amount in row.amounts.values()) for row in rows), default=0)


def _round_up(value: int) -> int:
    """Round up to a number that reads well in its unit: 1, 1.25, 1.5, 2, ... 8 times a power of ten."""
    unit = unit_for(value).bytes
    steps = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    power = 1
    while value > 10 * power * unit:
        power *= 10
    return next((int(step * power * unit) for step in steps if step * power * unit >= value), value)
