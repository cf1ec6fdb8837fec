"""The keys in force: those of ``keys`` but for what a person has changed, and how help and hints write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ranktop.tui.keys import BY_ID, PROGRAM, REPLAY_KEYS, Key

Keymap = Mapping[str, tuple[str, ...]]
"""Id of a key -> the keys that call it instead, by Textual's names."""

_SHOWN: Final = {
    "up": "↑", "down": "↓", "left": "←", "right": "→", "pageup": "PgUp", "pagedown": "PgDn", "home": "Home",
    "end": "End", "enter": "Enter", "escape": "Esc", "tab": "Tab", "space": "Space", "backspace": "Backspace",
    "delete": "Del", "insert": "Ins", "slash": "/", "question_mark": "?", "exclamation_mark": "!", "comma": ",",
    "full_stop": ".", "left_parenthesis": "(", "right_parenthesis": ")", "less_than_sign": "<",
    "greater_than_sign": ">", "left_curly_bracket": "{", "right_curly_bracket": "}", "left_square_bracket": "[",
    "right_square_bracket": "]", "dollar_sign": "$", "minus": "-", "plus": "+", "underscore": "_", "at": "@",
    "backslash": "\\", "semicolon": ";", "colon": ":", "equals_sign": "=", "number_sign": "#", "percent_sign": "%",
    "ampersand": "&", "asterisk": "*", "apostrophe": "'", "quotation_mark": '"', "grave_accent": "`", "tilde": "~",
    "circumflex_accent": "^", "vertical_line": "|",
}  # fmt: skip
_NAMES: Final = {shown.lower(): name for name, shown in _SHOWN.items()}
_PARTNER: Final = re.compile(r"\((\S): ")
_LISTED: Final = 2
"""Keys of one action that the help names."""

_in_force: Keymap = {}


def use(keymap: Keymap) -> None:
    """Let dashboards that are opened from now on in this process have these keys."""
    global _in_force
    _in_force = keymap


def in_force() -> Keymap:
    """Return what was changed."""
    return _in_force


def keys_of(key: Key) -> tuple[str, ...]:
    """Return the keys that call an action, by Textual's names."""
    return _in_force.get(key.id) or key.names


def shown(name: str) -> str:
    """Write a key as people do."""
    if name in _SHOWN or len(name) == 1:
        return _SHOWN.get(name, name)
    return "+".join(part.capitalize() if part not in _SHOWN else _SHOWN[part] for part in name.split("+"))


def listed(keys: Sequence[Key]) -> list[tuple[Key, str, str]]:
    """Return (key, its keys, its words) as the help lists them, with the keys in force.

    The row of a key tells of the keys behind it in the table that are not listed themselves (``n N``, ``W: half``).
    """
    rows: list[tuple[Key, str, str]] = []
    for at, key in enumerate(keys):
        partners = _partners(keys, at)
        if not any(one.id in _in_force for one in (key, *partners)):
            rows.append((key, key.shown, key.words))
            continue
        own = " ".join(shown(name) for name in keys_of(key)[:_LISTED])
        others = [shown(keys_of(one)[0]) for one in partners]
        words = _PARTNER.sub(f"({others[0]}: ", key.words) if others else key.words
        told_in_words = words != key.words or (bool(others) and f"({others[0]}: " in words)
        if others and (not told_in_words or " " in key.shown):
            own = f"{own} {others[0]}" if len(others) == 1 else f"{own} - {others[-1]}"
        rows.append((key, own, words))
    return rows


def _partners(keys: Sequence[Key], at: int) -> list[Key]:
    found: list[Key] = []
    for key in keys[at + 1 :]:
        if key.group != "back":
            break
        found.append(key)
    return found if keys[at].group != "back" else []


def hinted(text: str, keys: Iterable[Key]) -> str:
    """Return the keys of a hint (``m``, ``esc``, ``↑↓``, ``{ }``) as they are in force on a screen with these keys."""
    if not _in_force:
        return text
    owners: dict[str, Key] = {}
    for key in (*keys, *REPLAY_KEYS, *PROGRAM):
        for name in key.names:
            owners.setdefault(name, key)
    tokens = [text] if text.lower() in _NAMES else re.findall(r"[↑↓←→]|[^\s↑↓←→]+|\s+", text)
    return "".join(_token(token, owners) for token in tokens)


def _token(token: str, owners: Mapping[str, Key]) -> str:
    owner = owners.get(_NAMES.get(token.lower(), token))
    return token if owner is None or owner.id not in _in_force else shown(keys_of(owner)[0])


def for_textual() -> dict[str, str]:
    """Return what was changed as Textual takes it; the help goes back by its own key, too."""
    changed = {id: ",".join(names) for id, names in _in_force.items()}
    if (help_keys := _in_force.get("help")) is not None:
        changed["help-back"] = ",".join(dict.fromkeys(("escape", *help_keys, "enter", "space")))
    if (quit_keys := _in_force.get("quit")) is not None:
        changed["help-quit"] = ",".join(quit_keys)
    return changed


def of(id: str) -> str:
    """Write the first key of an action: ``?`` for ``help``."""
    return shown(keys_of(BY_ID[id])[0])
