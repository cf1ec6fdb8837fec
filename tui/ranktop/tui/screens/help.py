"""The help screen: every key, and how to read a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from ranktop.tui.keys import Key
from ranktop.tui.view.help import help_lines
from ranktop.tui.view.label import labelled, simulated
from ranktop.tui.view.options import Options
from ranktop.tui.widgets.lines import Lines

if TYPE_CHECKING:
    from ranktop.tui.app import RanktopApp


class HelpScreen(ModalScreen[None]):
    """Lists the keys; any key that scrolls scrolls, the others go back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter,space", "back", "back", id="help-back", show=False),
        Binding("q", "app.quit", "quit", id="help-quit", show=False),
        Binding("up,k", "scroll(-1)", "up", id="help-up", show=False),
        Binding("down,j", "scroll(1)", "down", id="help-down", show=False),
        Binding("pageup", "scroll(-10)", "up", id="help-page-up", show=False),
        Binding("pagedown", "scroll(10)", "down", id="help-page-down", show=False),
    ]

    app: RanktopApp

    def __init__(self, options: Options, keys: tuple[Key, ...]) -> None:
        super().__init__()
        self._options, self._keys = options, keys
        self._top = 0

    def compose(self) -> ComposeResult:
        """Yield the one widget."""
        yield Lines(id="help")

    def on_mount(self) -> None:
        """Show the first lines."""
        self._show()

    def on_resize(self) -> None:
        """Wrap anew."""
        self._show()

    def _show(self) -> None:
        width, height = max(1, self.size.width), max(1, self.size.height)
        width = min(84, width)
        lines = help_lines(self._options, self._keys, width)
        if simulated(state.card for state in self.app.session.ranks.values()):
            lines = list(labelled({"help": lines})["help"])
        lines = list(self.app.replay.marked({"help": lines})["help"])
        self._top = max(0, min(self._top, len(lines) - height))
        widget = self.query_one("#help", Lines)
        widget.styles.height = min(height, len(lines))
        widget.show(lines[self._top : self._top + height], self.app.palette)

    def action_back(self) -> None:
        """Go back to where the help was called."""
        self.dismiss()

    def action_scroll(self, by: int) -> None:
        """Scroll the text."""
        self._top += by
        self._show()
