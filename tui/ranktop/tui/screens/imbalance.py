"""All ranks at a glance: who is far from its peers, and in what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import BindingType

from ranktop.tui.keys import IMBALANCE_KEYS, Key
from ranktop.tui.screens.above import AboveScreen
from ranktop.tui.screens.live import LiveScreen, bindings
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.findings import about
from ranktop.tui.view.grid import has_mesh
from ranktop.tui.view.imbalance import Grid, imbalance_lines
from ranktop.tui.view.metrics import METRICS
from ranktop.tui.view.text import Line


class ImbalanceScreen(AboveScreen):
    """A cell for each rank; the selected one stays selected below."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(IMBALANCE_KEYS)
    KEYS: ClassVar[tuple[Key, ...]] = IMBALANCE_KEYS

    def __init__(self, below: LiveScreen) -> None:
        """``below`` is the screen that it was called from."""
        super().__init__(below)
        self.grid = Grid()

    def framed(self, draw: Callable[[Snapshot, tuple[int, int]], Sequence[Line]]) -> list[Line]:
        """Return the screen's lines; the strip tells of findings that are not the selected rank's."""
        told = about(self.options.selected, self.snapshot().findings) if self.options.selected is not None else ()
        self.reads = told[0].key if told else None
        return super().framed(draw)

    def draw_lines(self, snapshot: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        """Return the screen's lines."""
        return imbalance_lines(snapshot, self.app.link(), self.grid, self.options, size, self.news())

    def action_metric(self, by: int) -> None:
        """Go to another metric."""
        self.grid.metric = (self.grid.metric + by) % len(METRICS)
        self.hurry()

    def action_axes(self) -> None:
        """Switch between nodes and the mesh's axes."""
        if not has_mesh(self.snapshot()):
            self.say("the job has neither stages nor tensor-parallel ranks: nodes are its only axes")
            return
        self.grid.mesh = not self.grid.mesh
        self.grid.top = 0
        self.say("by the axes of the mesh" if self.grid.mesh else "by node and local rank")

    def action_move(self, down: int, right: int) -> None:
        """Move the selection over the grid; beyond the edge of a block into the one beside it."""
        grid = self.grid
        axes, folded = grid.axes, grid.folded
        if axes is None or not axes.rows:
            return
        if grid.zoomed:
            row = axes.rows[axes.at(self.options.selected)[0]].ranks
            at = row.index(self.options.selected) if self.options.selected in row else 0
            self.options.selected = row[max(0, min(len(row) - 1, at + down + right))]
        elif folded is not None:
            rows = folded.rows
            line = next((n for n, one in enumerate(rows) if self.options.selected in one.ranks), 0)
            at = rows[line].ranks.index(self.options.selected) if self.options.selected in rows[line].ranks else 0
            at += right
            if at < 0 or at >= len(rows[line].ranks):
                beside = line + (folded.height if at >= 0 else -folded.height)
                if 0 <= beside < len(rows):
                    line, at = beside, (0 if at >= 0 else len(rows[beside].ranks) - 1)
            line = max(0, min(len(rows) - 1, line + down))
            self.options.selected = rows[line].ranks[max(0, min(len(rows[line].ranks) - 1, at))]
        self.hurry()

    def action_edge(self, by: int) -> None:
        """Go to the first or the last rank of the grid, or of the row that is zoomed into."""
        axes = self.grid.axes
        if axes is not None and axes.rows:
            row = axes.rows[axes.at(self.options.selected)[0]] if self.grid.zoomed else axes.rows[0 if by < 0 else -1]
            self.options.selected = row.ranks[0 if by < 0 else -1]
        self.hurry()

    def action_ringed(self, by: int) -> None:
        """Go to the next rank that has a finding."""
        found = sorted({rank for one in self.snapshot().findings if one.severity != "info" for rank in one.ranks})
        if not found:
            self.say("no rank has a finding")
            return
        here = -1 if self.options.selected is None else self.options.selected
        onward = [rank for rank in found if rank > here] if by > 0 else [rank for rank in found[::-1] if rank < here]
        self.options.selected = onward[0] if onward else found[0 if by > 0 else -1]
        self.hurry()

    def action_zoom(self) -> None:
        """Show the ranks of the selected one's row with their values; from there go to the rank."""
        if self.grid.zoomed:
            self.action_ranks()
            return
        self.grid.zoomed, self.grid.top = True, 0
        self.hurry()

    def action_back(self) -> None:
        """Go back to the grid, from there to where it was called."""
        if self.grid.zoomed:
            self.grid.zoomed, self.grid.top = False, 0
            self.hurry()
        else:
            self.dismiss()
