"""What is out of line: the list of findings, and the evidence behind one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import BindingType

from ranktop.tui.keys import EVIDENCE_KEYS, FINDINGS_KEYS, Key
from ranktop.tui.screens.above import AboveScreen
from ranktop.tui.screens.live import LiveScreen, bindings
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.evidence import Reading, evidence_lines
from ranktop.tui.view.findings_list import Pick, findings_lines
from ranktop.tui.view.text import Line


class FindingsScreen(AboveScreen):
    """Lists the findings, the gravest first."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(FINDINGS_KEYS)
    KEYS: ClassVar[tuple[Key, ...]] = FINDINGS_KEYS
    STRIP = False

    def __init__(self, below: LiveScreen) -> None:
        """``below`` is the screen that it was called from."""
        super().__init__(below)
        self.pick = Pick()

    def draw_lines(self, snapshot: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        """Return the screen's lines."""
        return findings_lines(snapshot, self.app.link(), self.pick, self.options, size, self.news())

    def action_findings(self) -> None:
        """Go back: the key that leads here leads out."""
        self.dismiss()

    def action_move(self, by: int) -> None:
        """Move the selection."""
        self.pick.move(by, self.snapshot().findings)
        self.hurry()

    def action_open(self) -> None:
        """Open the evidence."""
        finding = self.selected()
        if finding is not None:
            self.app.push_screen(EvidenceScreen(self, finding))

    def action_rank(self, by: int = 0) -> None:
        """Go to the first rank of the selected finding."""
        finding = self.selected()
        if finding is None or not finding.ranks:
            self.say("it is about the job as a whole" if finding else "there is no finding")
        else:
            self.app.show_rank(finding.ranks[0])

    def selected(self) -> Finding | None:
        """Return the selected finding."""
        found = self.snapshot().findings
        return found[self.pick.index(found)] if found else None


class EvidenceScreen(AboveScreen):
    """Shows what one finding stands on; it stays when the finding is over, and says so."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(EVIDENCE_KEYS)
    KEYS: ClassVar[tuple[Key, ...]] = EVIDENCE_KEYS

    def __init__(self, below: FindingsScreen, finding: Finding) -> None:
        """``below`` is the list that it was called from."""
        super().__init__(below)
        self.list = below
        self.reading = Reading(finding)
        self._choose()

    def _choose(self) -> None:
        ranks = self.reading.finding.ranks
        if ranks:
            self.options.selected = ranks[self.reading.turn % len(ranks)]

    def framed(self, draw: Callable[[Snapshot, tuple[int, int]], Sequence[Line]]) -> list[Line]:
        """Return the screen's lines; the strip tells of the other findings."""
        self.reads = self.reading.finding.key
        return super().framed(draw)

    def draw_lines(self, snapshot: Snapshot, size: tuple[int, int]) -> Sequence[Line]:
        """Return the screen's lines."""
        self.reading.refresh(snapshot)
        return evidence_lines(snapshot, self.app.link(), self.reading, self.options, size, self.news())

    def action_scroll(self, by: int) -> None:
        """Scroll the lines."""
        self.reading.top = max(0, self.reading.top + by)
        self.hurry()

    def action_finding(self, by: int) -> None:
        """Go to another finding of the list."""
        found = self.snapshot().findings
        self.list.pick.move(by, found)
        chosen = self.list.selected()
        if chosen is not None:
            self.reading = Reading(chosen)
            self._choose()
        self.hurry()

    def action_turn(self, by: int) -> None:
        """Choose the next of the finding's ranks."""
        self.reading.turn += by
        self._choose()
        self.hurry()
