"""Keys of the dashboard that a person has changed: ``[keys]`` of the file, by the ids of ``tui.keys``."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from ranktop.tui.config.kinds import nearest
from ranktop.tui.keymap import Keymap
from ranktop.tui.keys import BY_ID, PROGRAM, REPLAY_KEYS, SCREENS, Key

NAMED: Final = (
    "up", "down", "left", "right", "home", "end", "pageup", "pagedown", "enter", "escape", "tab", "space", "backspace",
    "delete", "insert", *(f"f{number}" for number in range(1, 25)),
)  # fmt: skip
_SAME: Final = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+[": "escape", "ctrl+h": "backspace", "ctrl+j": "enter"}
"""Keys that a terminal does not tell from others."""
_WITH: Final = re.compile(r"(?:ctrl\+[a-z]|(?:shift|ctrl)\+(?:up|down|left|right|home|end|tab|pageup|pagedown|f\d\d?))")
_OTHERWISE: Final = {
    "solidus": "slash", "reverse_solidus": "backslash", "commercial_at": "at", "hyphen_minus": "minus",
    "plus_sign": "plus", "low_line": "underscore", "space": "space",
}  # fmt: skip
"""Unicode's name of a character -> Textual's."""
FIXED: Final = ("quit-now",)
"""Ctrl+C ends the dashboard whatever else is set."""


def textual_name(key: str) -> str:
    """Return Textual's name of a key as a person writes it: ``?``, ``K``, ``ctrl+t``, ``F5``; ValueError."""
    if len(key) == 1 and key.isprintable():
        name = key if key.isalnum() else unicodedata.name(key, key).lower().replace("-", "_").replace(" ", "_")
        return _OTHERWISE.get(name, name)
    word = key.lower()
    if word in _SAME:
        raise ValueError(f"a terminal can't tell {key} from {_SAME[word]}: write {_SAME[word]}, or take another")
    if word in NAMED or _WITH.fullmatch(word) or any(key in one.names for one in BY_ID.values()):
        return word
    raise ValueError(f"{key!r} is no key{nearest(word, NAMED)}")


def read(value: object) -> tuple[str, ...]:
    """Read the value of one id: a key, or a list of them; ValueError says what is wrong."""
    given = value if isinstance(value, list) else [value]
    words = [one for one in given if isinstance(one, str)]
    if not words or len(words) < len(given):
        raise ValueError('must be a key in quotes, or a list of them: "ctrl+t", ["t", "F5"]')
    return tuple(dict.fromkeys(textual_name(word) for word in words))


def conflicts(keymap: Keymap) -> Iterator[tuple[str, str]]:
    """Yield (id that was changed, what is wrong) for keys that would call two things on one screen.

    Keys of a screen that hide one of the program's by design (Space freezes, and plays a recording) may go on so.
    """
    for screen, keys in SCREENS.items():
        everything: Sequence[Key] = (*keys, *(key for key in (*REPLAY_KEYS, *PROGRAM) if key not in keys))
        taken: dict[str, list[Key]] = {}
        for key in everything:
            for name in keymap.get(key.id, key.names):
                taken.setdefault(name, []).append(key)
        for name, both in taken.items():
            changed = [key for key in both if key.id in keymap]
            if len(both) > 1 and changed and any(name not in key.names for key in both):
                other = next(key for key in both if key is not changed[0])
                yield changed[0].id, f"{name} is also {other.id} ({other.words}) on the {screen} screen"
