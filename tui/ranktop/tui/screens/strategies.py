"""The strategies screen: this job under every strategy, and what changes if something else is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType

from ranktop.budget.model import BadInput
from ranktop.budget.run import Run
from ranktop.tui.keys import STRATEGY_KEYS, Key
from ranktop.tui.screens.live import SLICE, LiveScreen, bindings
from ranktop.tui.session.state import Snapshot
from ranktop.tui.session.whatif import WhatIf, speeds_of
from ranktop.tui.view.options import Options
from ranktop.tui.view.strategies import Choice, strategies
from ranktop.tui.view.text import Line
from ranktop.tui.widgets.lines import Lines

WORDS: Final = {
    "world_size": "ranks", "micro_batch": "micro-batch", "sequence_length": "tokens per sample",
    "precision": "precision", "checkpointing": "checkpointing", "optimizer": "optimizer", "offload": "FSDP offload",
}  # fmt: skip


class StrategiesScreen(LiveScreen):
    """Draws one row per strategy; the rows appear as they are computed."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(STRATEGY_KEYS)
    AUTO_FOCUS = ""
    KEYS: ClassVar[tuple[Key, ...]] = STRATEGY_KEYS

    def __init__(self, options: Options, frozen: Snapshot | None = None) -> None:
        """``frozen`` is the picture that stands still on the screen below."""
        super().__init__()
        self.options, self.frozen = options, frozen
        self.whatif = WhatIf()
        self.choice = Choice()
        self._computing = False

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield Lines(id="text")

    def content(self) -> Mapping[str, Sequence[Line]]:
        """Return the screen's lines; rows that are missing are computed behind the frame."""
        return {"text": self.framed(self._lines)}

    def _lines(self, snapshot: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        self.whatif.look(snapshot)
        self._compute()
        return strategies(snapshot, self.app.link(), self.whatif, self.choice, self.options, size, self.news())

    def _compute(self) -> None:
        # Nothing can be computed of a job that is not known yet: it would be tried again with every picture.
        if not self._computing and self.whatif.run is not None and not self.whatif.complete:
            self._computing = True
            self.call_later(self._slice)

    def _slice(self) -> None:
        try:
            missing = self.whatif.more(SLICE)
        except Exception as error:
            missing = False
            self.app.report(error)
        if missing:
            self.soon(self._slice)
            return
        self._computing = False
        self.hurry()

    def action_move(self, by: int) -> None:
        """Move the selection."""
        self.choice.at = max(0, min(len(self.whatif.order()) - 1, self.choice.at + by))
        self.hurry()

    def action_change(self, name: str, by: int) -> None:
        """Change what is asked, and answer at once."""
        value = self.whatif.change(name, by)
        self.say(f"{WORDS[name]}: {value}" if value else "the job is not known yet")

    def action_as_it_runs(self) -> None:
        """Drop all changes."""
        self.whatif.as_it_runs()
        self.say("the job as it runs")

    def action_explain(self) -> None:
        """Explain the selected strategy for what is asked now."""
        from ranktop.tui.screens.explain import ExplainScreen

        strategy = self.whatif.order()[self.choice.at]
        run = self._asked()
        if run is not None:
            self.app.push_screen(ExplainScreen(run, strategy, self.options, speeds_of(run, self.snapshot())))

    def action_fit(self) -> None:
        """Search the plans that fit, for the global batch that is asked now."""
        from ranktop.tui.screens.fit import FitScreen

        run = self._asked()
        if run is not None:
            self.app.push_screen(FitScreen(run, self.whatif.own, self.options, self.frozen))

    def _asked(self) -> Run | None:
        """Return what is asked now; says why when that is nothing that can be computed."""
        try:
            run = self.whatif.asked()
        except BadInput as reason:
            self.say(str(reason))
            return None
        if run is None:
            self.say(self.whatif.reason)
        return run

    def action_back(self) -> None:
        """Go back to the ranks."""
        self.dismiss()
