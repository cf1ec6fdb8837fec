"""How all ranks are laid out: a line per node or per place in the mesh, folded into blocks that fill the screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.text import plain

GAP: Final = 2
"""Cells between two blocks."""

LABEL: Final = 14
"""Cells of a line's name at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the grid."""

    label: str
    ranks: tuple[int, ...]
    first: int = 0
    """Column of its first rank: a line that is too long for the screen goes on in the next row."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The grid before it is folded."""

    rows: tuple[Row, ...]
    down: str
    """What a row is: ``node``, ``replica``."""
    across: str
    """What a column is: ``local rank``, ``stage``, ``tensor rank``."""

    def at(self, rank: int | None) -> tuple[int, int]:
        """Return (row, column) of a rank; of one that is not there the first place."""
        for number, row in enumerate(self.rows):
            if rank in row.ranks:
                return number, row.ranks.index(rank)
        return 0, 0


@dataclass(frozen=True, slots=True)
class Folded:
    """The grid in blocks of rows side by side."""

    rows: tuple[Row, ...]
    cell: int
    """Cells of the screen that a rank takes."""
    columns: int
    """Ranks across one block."""
    label: int
    blocks: int
    height: int
    """Rows of a block."""

    def row(self, line: int, block: int) -> Row | None:
        """Return what stands in a line of a block."""
        at = block * self.height + line
        return self.rows[at] if line < self.height and at < len(self.rows) else None


def by_node(snapshot: Snapshot) -> Axes:
    """Lay the ranks out by node and local rank; those that were never seen where their numbers put them."""
    most = max(
        (max(view.card.local_rank + 1, view.card.local_size) for view in snapshot.ranks if view.card is not None),
        default=0,
    )
    each = most if 0 < most <= 1024 else max(1, min(8, len(snapshot.ranks)))
    named = {view.rank // each: view.card.node for view in snapshot.ranks if view.card is not None}
    found: dict[str, list[int]] = {}
    for view in snapshot.ranks:
        name = view.card.node if view.card is not None else named.get(view.rank // each, f"?{view.rank // each}")
        found.setdefault(name, []).append(view.rank)
    names = labels(found)
    ordered = sorted(found.items(), key=lambda item: item[1][0])
    return Axes(tuple(Row(names[name], tuple(ranks)) for name, ranks in ordered), "node", "local rank")


def has_mesh(snapshot: Snapshot) -> bool:
    """Tell whether the job has stages or tensor-parallel ranks."""
    return any(
        view.card is not None and view.card.plan is not None
        and (view.card.plan.layout.pipeline > 1 or view.card.plan.layout.tensor > 1)
        for view in snapshot.ranks
    )  # fmt: skip


def by_mesh(snapshot: Snapshot) -> Axes:
    """Lay the ranks out by the axes of the job's mesh: stages and tensor-parallel ranks across, replicas down."""
    places: dict[tuple[int, int], list[int]] = {}
    for view in snapshot.ranks:
        plan = view.card.plan if view.card is not None else None
        place = (-1, -1) if plan is None else (plan.layout.pipeline_rank, plan.layout.tensor_rank)
        places.setdefault(place, []).append(view.rank)
    unknown = places.pop((-1, -1), [])
    stages = sorted({stage for stage, _ in places})
    tensors = sorted({tensor for _, tensor in places})
    replicas = max((len(ranks) for ranks in places.values()), default=0)
    rows: list[Row] = []
    for replica in range(replicas):
        split = [stages] if len(tensors) == 1 else [[stage] for stage in stages]
        for some in split:
            row = [
                places[stage, tensor][replica]
                for stage in some for tensor in tensors
                if len(places.get((stage, tensor), ())) > replica
            ]  # fmt: skip
            where = f"d{replica}" if len(some) > 1 or len(stages) == 1 else f"d{replica} s{some[0]}"
            if row:
                rows.append(Row(where, tuple(row)))
    rows += [Row("?", tuple(unknown))] if unknown else []
    across = "stage" if len(tensors) == 1 else "tensor rank"
    return Axes(tuple(rows), "replica" if len(tensors) == 1 or len(stages) == 1 else "replica, stage", across)


def labels(names: Iterable[str]) -> dict[str, str]:
    """Return short names of nodes: without the domain, and without what all of them begin with but for a number."""
    short = {name: plain(name).split(".")[0] or "-" for name in names}
    texts = [text for text in short.values() if not text.startswith("?")]
    same = [len(set(letters)) == 1 for letters in zip(*texts, strict=False)] if len(set(texts)) > 1 else []
    common = texts[0][: same.index(False) if False in same else len(same)].rstrip("0123456789") if texts else ""
    if common and all(text[len(common) :].isdigit() for text in texts):
        short = {name: text.removeprefix(common) for name, text in short.items()}
    return {name: text if len(text) <= LABEL else "~" + text[-(LABEL - 1) :] for name, text in short.items()}


def fold(axes: Axes, width: int, room: int, cells: Sequence[int]) -> Folded:
    """Choose the widest of ``cells`` with which the whole grid fits into width x room; else the narrowest."""
    label = max((len(row.label) for row in axes.rows), default=0)
    if width < 30:
        label = 0
    found: Folded | None = None
    for cell in cells:
        found = _fold(axes, width, label, cell)
        if found.height <= room:
            return found
        if cell == cells[-1] and label:
            bare = _fold(axes, width, 0, cell)
            if bare.height <= room:
                return bare
    assert found is not None
    return found


def _fold(axes: Axes, width: int, label: int, cell: int) -> Folded:
    lead = label + 1 if label else 0
    most = max(1, (width - 1 - lead) // cell)
    rows: list[Row] = []
    for row in axes.rows:
        starts = range(0, max(1, len(row.ranks)), most)
        rows += [Row(row.label if start == 0 else "", row.ranks[start : start + most], start) for start in starts]
    columns = max((len(row.ranks) for row in rows), default=1)
    block = lead + columns * cell
    gap = GAP if label else 0
    blocks = max(1, (width - 1 + gap) // (block + gap))
    height = max(1, math.ceil(len(rows) / blocks))
    blocks = max(1, math.ceil(len(rows) / height))
    return Folded(tuple(rows), cell, columns, label, blocks, height)
