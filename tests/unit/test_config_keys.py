"""Keys that a person has changed: names, conflicts, and what help and hints show."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from textual.keys import _character_to_key

from ranktop.tui import keymap
from ranktop.tui.config.force import read
from ranktop.tui.config.own_keys import NAMED, conflicts, textual_name
from ranktop.tui.keys import BY_ID, DEVICE_KEYS, IMBALANCE_KEYS, KEYS, REPLAY_KEYS, SCREENS, shown_keys
from ranktop.tui.view.help import help_lines
from ranktop.tui.view.hints import hint_line
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import UNICODE


def asked(tmp_path: Path, lines: str) -> tuple[keymap.Keymap, list[str]]:
    path = tmp_path / "ranktop.toml"
    path.write_text(f"[keys]\n{lines}\n")
    found = read({"RANKTOP_CONFIG": str(path)})
    return found.keymap, [error.removeprefix(f"{path}:") for error in found.errors]


def helped(keys: tuple[object, ...]) -> dict[str, str]:
    """Return words -> keys of the help of a screen."""
    lines = ["".join(text for text, _ in line) for line in help_lines(Options(), keys, 100)]  # type: ignore[arg-type]
    return {line[12:].strip(): line[:12].strip() for line in lines if line.startswith("  ")}


def hints(*pairs: tuple[str, str], keys: tuple[object, ...] = KEYS) -> str:
    line = hint_line(pairs, "", (), UNICODE, 100, keys)  # type: ignore[arg-type]
    return "".join(text for text, _ in line).strip()


def test_every_id_is_there_once() -> None:
    assert len(BY_ID) == sum(len(keys) for keys in (*SCREENS.values(), REPLAY_KEYS))
    assert not list(conflicts({}))


@pytest.mark.parametrize("letter", [*string.punctuation, *string.ascii_letters, *string.digits, "ä", "→"])
def test_a_character_is_named_as_textual_names_it(letter: str) -> None:
    assert textual_name(letter) == _character_to_key(letter)


def test_keys_are_named_as_people_write_them() -> None:
    written = ("F5", "Enter", "Space", "PageUp", "ctrl+T", "shift+Tab", "ctrl+up", "question_mark", *NAMED)
    assert [textual_name(key) for key in written] == [key.lower() for key in written]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('imbalence = "I"', "no key is named 'imbalence'; did you mean imbalance?"),
        ('imbalance = "Spce"', "imbalance: 'Spce' is no key; did you mean space?"),
        ('imbalance = "F99"', "imbalance: 'F99' is no key; did you mean f9?"),
        ('imbalance = ""', "imbalance: '' is no key"),
        ("imbalance = 7", 'imbalance: must be a key in quotes, or a list of them: "ctrl+t", ["t", "F5"]'),
        ("imbalance = []", 'imbalance: must be a key in quotes, or a list of them: "ctrl+t", ["t", "F5"]'),
        ('imbalance = "ctrl+i"',
         "imbalance: a terminal can't tell ctrl+i from tab: write tab, or take another"),
        ('quit-now = "x"', "quit-now can't be changed: Ctrl+C always ends it"),
        ('device = "s"', "device: s is also strategies (this job under every strategy) on the ranks screen"),
        ('device = "ctrl+c"', "device: ctrl+c is also quit-now (quit, also while typing) on the ranks screen"),
        ('device = "R"', "device: R is also replay (look back: this job's recording; again: live) on the ranks screen"),
        ('replay-on = "h"', "replay-on: h is also grid-left (one rank left) on the imbalance screen"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_line_and_what_is_right(line: str, told: str, tmp_path: Path) -> None:
    assert asked(tmp_path, f"\n{line}")[1] == [f"3: {told}"]


def test_keys_may_change_places(tmp_path: Path) -> None:
    found, errors = asked(tmp_path, 'device = "i"\nimbalance = ["d", "F2"]')
    assert not errors
    assert found == {"device": ("i",), "imbalance": ("d", "f2")}


def test_help_shows_the_keys_in_force() -> None:
    before = helped(IMBALANCE_KEYS)
    keymap.use({"grid-previous": ("b",), "help": ("f1",), "grid-metric": ("ctrl+g", "M"), "replay-on": ("semicolon",)})
    now = helped(IMBALANCE_KEYS)
    changed = {words: now[words] for words in now if now[words] != before.get(words)}
    assert changed == {
        "to the next rank with a finding (b: previous)": "n b",
        "next metric": "Ctrl+G M",
        "this help": "F1",
        "pause, a second back; on": ", ;",
    }
    assert len(now) == len(before)
    assert "Esc or F1 goes back" in "".join(text for line in help_lines(Options(), KEYS, 80) for text, _ in line)


def test_help_is_as_it_was_where_nothing_is_changed() -> None:
    for keys in SCREENS.values():
        rows = keymap.listed(shown_keys(keys))
        assert rows == [(key, key.shown, key.words) for key in shown_keys(keys)]


def test_hints_show_the_keys_in_force() -> None:
    pairs = (("?", "help"), ("esc", "back"), ("↑↓", "scroll"), ("←→", "rank"), ("{ }", "finding"), ("0-9 $", "jump"))
    assert hints(*pairs, keys=DEVICE_KEYS) == "? help  esc back  ↑↓ scroll  ←→ rank  { } finding  0-9 $ jump"
    keymap.use({
        "help": ("f1",), "device-back": ("backspace",), "device-up": ("w",), "replay-finding": ("plus",),
        "replay-end": ("ctrl+e",),
    })  # fmt: skip
    told = hints(*pairs, keys=DEVICE_KEYS)
    assert told == "F1 help  Backspace back  w↓ scroll  ←→ rank  { + finding  0-9 Ctrl+E jump"
    assert hints(("esc", "drop"), keys=KEYS) == "esc drop"


def test_textual_is_told_and_the_help_goes_back_by_its_own_key() -> None:
    keymap.use({"help": ("f1",), "imbalance": ("I", "f2")})
    assert keymap.for_textual() == {"help": "f1", "imbalance": "I,f2", "help-back": "escape,f1,enter,space"}
