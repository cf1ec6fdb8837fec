"""What the keys of the ranks screen do; each leaves something to see."""

from __future__ import annotations

from textual import events

from ranktop.tui.keymap import keys_of
from ranktop.tui.keys import BY_ID
from ranktop.tui.screens.ways import WaysScreen
from ranktop.tui.view.frame import Frame
from ranktop.tui.view.options import MOMENT_CHOICES, MOMENT_WORDS, PAGES, SORTS, ZOOMS
from ranktop.tui.view.text import plain


class RankActions(WaysScreen):
    """State that the keys change and the actions that change it; a subclass draws."""

    last: Frame | None = None
    """The frame on the screen."""

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

    def action_filter(self) -> None:
        """Begin to type a filter in the last line."""
        self.options.typing = True
        self.hurry()

    def on_key(self, event: events.Key) -> None:
        """Take the keys of a filter here, in the order in which they were typed.

        A binding or a focused input would only see what is typed after it: keys that follow ``/`` at once, or
        are pasted, would be lost.
        """
        options = self.options
        if not options.typing:
            if event.key not in keys_of(BY_ID["filter"]):
                return
            self.action_filter()
        elif event.key in ("enter", "escape"):
            options.typing = False
            if event.key == "escape":
                options.filter = ""
        elif event.key in ("backspace", "ctrl+h"):
            options.filter = options.filter[:-1]
        elif event.key == "ctrl+u":
            options.filter = ""
        elif event.is_printable and event.character:
            options.filter += event.character
        else:
            return
        event.stop()
        self.hurry()

    def on_paste(self, event: events.Paste) -> None:
        """Take pasted text into a filter that is being typed."""
        if self.options.typing:
            self.options.filter += plain(event.text)
            self.hurry()

    def action_clear(self) -> None:
        """Drop the filter."""
        had = self.options.filter
        self.options.filter = ""
        self.say("filter dropped" if had else "no filter to drop")

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

    def action_strategies(self) -> None:
        """Go to the strategies."""
        from ranktop.tui.screens.strategies import StrategiesScreen

        self.app.push_screen(StrategiesScreen(self.options, self.frozen))
