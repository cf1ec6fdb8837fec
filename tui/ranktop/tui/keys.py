"""Every key of the ranks screen, once: bindings, hints and the help screen are made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Key:
    """One action with the keys that call it."""

    id: str
    keys: str
    """Textual's key names, separated by commas."""
    shown: str
    action: str
    words: str
    group: str
    priority: bool = False


KEYS: Final = (
    Key("rank-up", "up,k", "↑ k", "move(-1)", "one rank up", "move"),
    Key("rank-down", "down,j", "↓ j", "move(1)", "one rank down", "move"),
    Key("page-up", "pageup", "PgUp", "page(-1)", "one screen up", "move"),
    Key("page-down", "pagedown", "PgDn", "page(1)", "one screen down", "move"),
    Key("first-rank", "home", "Home", "edge(-1)", "to the first rank", "move"),
    Key("last-rank", "end", "End", "edge(1)", "to the last rank", "move"),
    Key("sort", "s", "s", "sort", "sort by the next column", "order"),
    Key("reverse", "S", "S", "reverse", "reverse the order", "order"),
    Key("filter", "slash", "/", "filter", "show ranks by number, node, device or state; ! = out of line", "order"),
    Key("clear", "escape", "Esc", "clear", "drop the filter", "order"),
    Key("next-moment", "m,right_square_bracket", "m ]", "moment(1)", "next moment of the step, peak and now", "look"),
    Key("previous-moment", "left_square_bracket", "[", "moment(-1)", "previous moment", "look"),
    Key("scale", "z", "z", "zoom", "what the full bar is: auto, device, process, tensors", "look"),
    Key("detail", "enter", "Enter", "detail", "detail of the selected rank on or off", "look"),
    Key("detail-page", "tab", "Tab", "side(1)", "next side of the detail: steps, card, rules", "look"),
    Key("rules", "e", "e", "rules", "explain: the rule behind each expected number", "look"),
    Key("freeze", "space", "Space", "freeze", "freeze the picture; again to go on", "look"),
    Key("theme", "t", "t", "theme", "next theme: dark, light, the terminal's own colours", "program"),
    Key("help", "question_mark", "?", "help", "this help", "program"),
    Key("suspend", "ctrl+z", "Ctrl+Z", "suspend_process", "back to the shell; fg returns", "program"),
    Key("quit", "q", "q", "quit", "quit", "program"),
    Key("quit-now", "ctrl+c", "Ctrl+C", "quit", "quit, also while typing", "program", priority=True),
)  # fmt: skip

GROUPS: Final = {"move": "Move", "order": "Order and filter", "look": "Look", "program": "Program"}
