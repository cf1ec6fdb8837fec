"""The columns of the rank list and which of them a width has room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len

from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.scale import Scale
from ranktop.tui.view.text import plain
from ranktop.wire.schema import Card

MIN_BAR: Final = 20
"""Cells that the bar always keeps."""

BAR_SHARE: Final = 0.42
"""Share of the width that the bar keeps before a column is added."""

RANK_WIDTH: Final = 7
"""Marker and rank number with their spaces."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its key, title, cells, worth (the lowest goes first) and the order that sorts by it."""

    key: str
    title: str
    width: int
    worth: int
    align: str = ">"
    sort: str = ""


STATE: Final = Column("state", "state", 16, 99, "<")
RIGHT: Final = (
    Column("used", "GiB", 6, 90, sort="used"),
    Column("total", "total", 6, 20),
    Column("expected", "expected", 10, 30),
    Column("delta", "exp", 8, 80, sort="difference"),
    Column("utilization", "util", 5, 70, sort="utilization"),
    Column("power", "W", 5, 60, sort="power"),
    Column("temperature", "°C", 4, 55, sort="temperature"),
    Column("step_s", "step s", 7, 50, sort="step time"),
    Column("step", "step", 8, 45),
    STATE,
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The chosen columns; the bar stands between them."""

    left: tuple[Column, ...]
    right: tuple[Column, ...]

    @property
    def right_width(self) -> int:
        """Cells of the right half."""
        return sum(column.width + 1 for column in self.right)


def device_name(view: RankView) -> str:
    """Return the device as torch calls it, ``cuda:3`` or ``host``; of a MIG instance with its number."""
    return device_of(view.card) if view.card is not None else ""


def _device_key(card: Card) -> tuple[object, ...]:
    device = card.device
    return device.kind, device.torch_index, device.mig


def device_of(card: Card) -> str:
    """Return the device of a card as torch calls it."""
    device = card.device
    if device.kind != "cuda":
        return plain(device.kind)
    name = "cuda" if device.torch_index is None else f"cuda:{device.torch_index}"
    if device.mig is None:
        return name
    return f"{name} MIG" if device.mig.index is None else f"{name} MIG {device.mig.index}"


def choose(snapshot: Snapshot, scale: Scale, width: int) -> Columns:
    """Return the columns that fit into ``width`` cells: by worth, the state always, the bar at least 20 cells."""
    cards = [view.card for view in snapshot.ranks if view.card is not None]
    nodes = {card.node for card in cards}
    totals = {card.device.total for card in cards}
    node = Column("node", "node", min(16, max(4, *(cell_len(plain(name)) for name in (*nodes, "")))), 40, "<")
    if len(nodes) > 1:
        node = Column("node", "node", node.width, 75, "<")
    # Of a thousand ranks only the first of each kind is asked for its name.
    kinds = {_device_key(card): card for card in cards}
    names = [device_of(card) for card in kinds.values()]
    device = Column("device", "device", min(13, max(7, *(cell_len(name) for name in (*names, "")))), 35, "<")
    candidates = [node, device, *RIGHT]
    if len(totals) <= 1 and scale.zoom == "device":
        # The heading says it once for all.
        candidates = [column for column in candidates if column.key != "total"]
    devices = [view.sample.device for view in snapshot.ranks if view.sample is not None]
    for key in ("utilization", "power", "temperature"):
        # A host has none of them: no column of dashes.
        if devices and all(getattr(device, key) is None for device in devices):
            candidates = [column for column in candidates if column.key != key]
    keep = max(MIN_BAR, int(BAR_SHARE * width))
    left_over = width - RANK_WIDTH - keep - 2 - (STATE.width + 1)
    chosen = {STATE.key}
    for column in sorted(candidates, key=lambda column: -column.worth):
        if column is STATE:
            continue
        if column.width + 1 > left_over + (_spare(width, keep) if column.worth >= 70 else 0):
            break
        left_over -= column.width + 1
        chosen.add(column.key)
    state = STATE if left_over < 12 else Column("state", "state", STATE.width + min(14, left_over // 2), 99, "<")
    right = [column for column in RIGHT if column.key in chosen and column is not STATE]
    return Columns(
        left=tuple(column for column in (node, device) if column.key in chosen),
        right=(*right, state),
    )


def _spare(width: int, keep: int) -> int:
    """Return the cells that the bar may give up for the worthiest columns, down to its minimum."""
    return max(0, keep - MIN_BAR)
