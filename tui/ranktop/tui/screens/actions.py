"""What the keys of the ranks screen do; each leaves something to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen

from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.frame import Frame
from ranktop.tui.view.options import MOMENT_CHOICES, MOMENT_WORDS, PAGES, SORTS, ZOOMS, Options

if TYPE_CHECKING:
    from textual.widgets import Input

    from ranktop.tui.app import RanktopApp

NOTICE_SECONDS = 3.0


class RankActions(Screen[None]):
    """State that the keys change and the actions that change it; a subclass draws."""

    app: RanktopApp
    options: Options
    frozen: Snapshot | None = None
    """The picture that stands still, None while live."""
    last: Frame | None = None
    """The frame on the screen."""
    notice: str = ""
    notice_until: float = 0.0

    def hurry(self) -> None:
        """Ask for a frame at once."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Tell something in the last line for a few seconds."""
        self.notice = text
        self.notice_until = self.app.clock() + NOTICE_SECONDS
        self.hurry()

    def go_to(self, row: int) -> None:
        """Select the rank in a row of the list, or the nearest one."""
        rows = self.last.table.rows if self.last else ()
        if rows:
            self.options.selected = rows[max(0, min(len(rows) - 1, row))].view.rank
        self.hurry()

    def _row(self) -> int:
        at = self.last.table.index(self.options.selected) if self.last else None
        return at or 0

    def action_move(self, by: int) -> None:
        """Move the selection by rows."""
        self.go_to(self._row() + by)

    def action_page(self, by: int) -> None:
        """Move the selection by what the list shows at once."""
        rows = max(1, self.last.heights.ranks - 1) if self.last else 1
        self.go_to(self._row() + by * rows)

    def action_edge(self, by: int) -> None:
        """Move the selection to the first or the last row."""
        self.go_to(0 if by < 0 else len(self.last.table.rows) if self.last else 0)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.options.reverse = False
        self.say(f"sorted by {self.options.cycle('sort', SORTS)}")

    def action_reverse(self) -> None:
        """Turn the order round."""
        self.options.reverse = not self.options.reverse
        largest = self.options.reverse == (self.options.sort == "rank")
        self.say(f"sorted by {self.options.sort}, {'largest' if largest else 'smallest'} first")

    async def action_filter(self) -> None:
        """Open a line in which a filter is typed."""
        # Imported when it is first needed: it would cost a tenth of the start.
        from textual.widgets import Input

        if not self.query("#filter"):
            line = Input(self.options.filter, placeholder="rank, node, device or state; ! = out of line", id="filter")
            await self.mount(line)
            line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self.options.filter = event.value
        self.hurry()

    def on_input_submitted(self) -> None:
        """Keep the filter and give the keys back."""
        self._close_filter()
        self.hurry()

    def action_clear(self) -> None:
        """Drop the filter."""
        had = self.options.filter
        self._close_filter()
        self.options.filter = ""
        self.say("filter dropped" if had else "no filter to drop")

    def _close_filter(self) -> None:
        self.set_focus(None)
        self.query("#filter").remove()

    def action_moment(self, by: int) -> None:
        """Step through the moments."""
        self.say(f"showing: {MOMENT_WORDS[self.options.cycle('moment', MOMENT_CHOICES, by)]}")

    def action_zoom(self) -> None:
        """Change what the full bar stands for."""
        self.say(f"scale of the bars: {self.options.cycle('zoom', ZOOMS)}")

    def action_detail(self) -> None:
        """Open or close the detail panel."""
        self.options.detail = not self.options.detail
        self.hurry()

    def action_side(self, by: int) -> None:
        """Show the next side page of the detail panel."""
        self.options.detail = True
        self.options.page += by
        self.say(f"detail: {PAGES[self.options.page % len(PAGES)]}")

    def action_rules(self) -> None:
        """Show the rules behind the expected numbers, or go back to the steps."""
        at = PAGES.index("rules")
        self.options.detail = True
        self.options.page = 0 if self.options.page % len(PAGES) == at else at
        self.say(f"detail: {PAGES[self.options.page]}")

    def action_freeze(self) -> None:
        """Freeze the picture, or go on."""
        if self.frozen is None:
            self.frozen = self.app.session.snapshot(copy_history=True)
            self.options.frozen_at = self.frozen.now
            self.hurry()
        else:
            self.frozen = self.options.frozen_at = None
            self.say("live again")
