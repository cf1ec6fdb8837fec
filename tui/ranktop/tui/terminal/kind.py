"""What a kind of terminal knows, by its name (TERM): it is sent nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

_BARE: Final = frozenset(
    ("", "dumb", "unknown", "emacs", "network", "dialup", "lpr", "printer", "teletype", "switch", "vt52")
)
"""Names of terminals that cannot place text."""

_ALL: Final = frozenset(range(1, 10))


@dataclass(frozen=True, slots=True)
class Kind:
    """What may be sent to a terminal."""

    name: str
    plain: bool = False
    """It cannot place text: there is no dashboard."""
    alternate: bool = True
    """It has a second screen that leaves the first as it was (DECSET 1049)."""
    hides_cursor: bool = True
    pastes: bool = True
    """It may tell a paste from typing (DECSET 2004)."""
    modern: bool = True
    """It reads past a question that it does not know (DECRQM)."""
    erases_in_colour: bool = False
    """Erased cells take the background that is set (bce)."""
    turns_off: bool = True
    """It knows how to end one attribute or colour alone (SGR 22 to 49)."""
    attributes: frozenset[int] = _ALL
    """SGR 1 to 9 that it knows."""
    colours: bool = True
    relays: bool = False
    """It is a program (tmux, screen) that answers itself, whatever lies between it and the eyes."""


_PLAIN: Final = Kind("plain", plain=True)
_XTERM: Final = Kind("xterm", erases_in_colour=True)
_UNSURE: Final = Kind("unsure")
_SCREEN: Final = Kind("screen", modern=False, attributes=frozenset((1, 2, 3, 4, 5, 7)))
_LINUX: Final = Kind(
    "linux", alternate=False, modern=False, pastes=False, erases_in_colour=True, attributes=frozenset((1, 2, 4, 5, 7))
)
_VT100: Final = Kind(
    "vt100", alternate=False, hides_cursor=False, pastes=False, modern=False, turns_off=False,
    attributes=frozenset((1, 4, 5, 7)), colours=False,
)  # fmt: skip
_VT220: Final = replace(_VT100, name="vt220", hides_cursor=True)

_FAMILIES: Final = (
    ("xterm-kitty", _UNSURE), ("xterm-mono", replace(_XTERM, colours=False)), ("xterm", _XTERM), ("tmux", _XTERM),
    ("screen", _SCREEN), ("linux", _LINUX), ("vt100", _VT100), ("vt102", _VT100), ("vt", _VT220), ("ansi", _VT100),
    ("cons25", _VT100), ("pcansi", _VT100), ("rxvt", _XTERM), ("alacritty", _XTERM), ("foot", _XTERM),
    ("konsole", _XTERM), ("putty", replace(_XTERM, modern=False)), ("st-", _XTERM), ("vte", _XTERM),
    ("gnome", _XTERM), ("wezterm", _XTERM), ("contour", _XTERM), ("mintty", _XTERM),
)  # fmt: skip
"""Beginning of TERM -> kind; the first that fits counts."""


def kind_of(environment: Mapping[str, str] | None = None) -> Kind:
    """Return what the terminal named in the environment knows."""
    environment = os.environ if environment is None else environment
    term = environment.get("TERM", "")
    if term in _BARE:
        return _PLAIN
    kind = next((kind for name, kind in _FAMILIES if term.startswith(name)), _UNSURE)
    if environment.get("TMUX"):
        # tmux calls itself screen where it is not told otherwise, and reads all that xterm does.
        return replace(_XTERM if kind is _SCREEN else kind, relays=True)
    if environment.get("STY"):
        # GNU screen, maybe under another's name: it erases in the terminal's own background.
        return replace(kind, erases_in_colour=False, modern=False, relays=True)
    if environment.get("TERM_PROGRAM") == "Apple_Terminal":
        return replace(kind, modern=False)
    return kind


def link_limit(environment: Mapping[str, str] | None = None) -> int | None:
    """Return the bytes a second that RANKTOP_LINK allows, None where it says nothing that makes sense."""
    text = (os.environ if environment is None else environment).get("RANKTOP_LINK", "")
    return max(1000, int(text)) if text.isascii() and text.isdigit() and int(text) else None


def can_draw() -> bool:
    """Tell whether input and output are a terminal that can place text, as the dashboard needs."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not kind_of().plain
