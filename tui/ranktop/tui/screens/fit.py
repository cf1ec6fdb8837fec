"""The plans that fit for the job's global batch, searched while the keys go on working."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ranktop.budget.fit import Fit, Search
from ranktop.budget.model import BadInput
from ranktop.budget.run import Run
from ranktop.tui.keys import FIT_KEYS, Key
from ranktop.tui.screens.live import SLICE, LiveScreen, bindings
from ranktop.tui.session.state import Snapshot
from ranktop.tui.session.whatif import on_nodes, speeds_of
from ranktop.tui.view.fit import Chosen, State, fit_lines
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line
from ranktop.tui.widgets.lines import Lines


class FitScreen(LiveScreen):
    """Searches for the run that was asked for when the screen was opened; rows appear as they are found."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(FIT_KEYS)
    AUTO_FOCUS = ""
    KEYS: ClassVar[tuple[Key, ...]] = FIT_KEYS

    def __init__(self, run: Run, present: str, options: Options, frozen: Snapshot | None = None) -> None:
        super().__init__()
        self.asked, self.present, self.options, self.frozen = run, present, options, frozen
        self.chosen = Chosen()
        self.reason = ""
        """Why the search could not begin, or broke off."""
        self._search: Search | None = None
        self._work: Iterator[None] = iter(())
        self._answer: Fit | None = None

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield Lines(id="text")

    def on_mount(self) -> None:
        """Begin to search."""
        self._begin()
        super().on_mount()
        self.soon(self._slice)

    def _begin(self) -> None:
        snapshot = self.snapshot()
        run = self.asked = on_nodes(self.asked, snapshot)
        try:
            at = speeds_of(run, snapshot)
            self._search = Search(run, present=self.present, at=at, free=True)
            self._work = iter(self._search)
        except BadInput as reason:
            self.reason = str(reason)

    def _slice(self) -> None:
        """Search for a moment, and come back after the keys that were pressed meanwhile."""
        if self._search is None or self._search.done or self.reason or not self.is_attached:
            return
        until = time.perf_counter() + SLICE
        try:
            while time.perf_counter() < until and next(self._work, self) is None:
                pass
        except BadInput as reason:
            self._stop(str(reason))
        except Exception as error:
            self.app.report(error)
            self._stop(f"{type(error).__name__}: {error}")
        self._answer = None
        if self._search.done:
            self.hurry()
        else:
            self.soon(self._slice)

    def _stop(self, reason: str) -> None:
        self.reason = reason
        self.hurry()

    def state(self) -> State:
        """Return what there is to show."""
        search = self._search
        if search is None or self.reason:
            return State(found=None, reason=self.reason)
        if self._answer is None:
            self._answer = search.answer()
        run = self.asked
        return State(
            found=self._answer,
            done=search.done,
            capacity=run.device_memory or 0,
            several_nodes=run.world_size > run.gpus_per_node,
            host=run.host,
        )

    def content(self) -> Mapping[str, Sequence[Line]]:
        """Return the screen's lines."""
        return {"text": self.framed(self._lines)}

    def _lines(self, _: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        return fit_lines(self.state(), self.chosen, self.options, size, self.news())

    def action_move(self, by: int) -> None:
        """Move the selection, or scroll the lines of the one that is open."""
        if self.chosen.open:
            self.chosen.scroll = max(0, self.chosen.scroll + by)
        else:
            self.chosen.at = max(0, self.chosen.at + by)
        self.hurry()

    def action_open(self) -> None:
        """Show the lines that ask for the selected plan, or go back to the plans."""
        found = self.state().found
        if found is not None and found.fitting:
            self.chosen.open = not self.chosen.open
            self.chosen.form = self.chosen.scroll = 0
        self.hurry()

    def action_form(self, by: int) -> None:
        """Show another of the forms in which the plan can be asked for."""
        self.chosen.form += by
        self.chosen.scroll = 0
        self.hurry()

    def action_back(self) -> None:
        """Go back to the plans, from them to the strategies."""
        if self.chosen.open:
            self.action_open()
        else:
            self.dismiss()
