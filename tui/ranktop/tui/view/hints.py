"""The last line of a screen: what just happened, else the keys that matter most; and the key to the colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ranktop.tui.keymap import hinted
from ranktop.tui.keys import Key
from ranktop.tui.view.bar import LETTERS
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Glyphs, Line, Span, beside, fit, length, merge

Hints = Sequence[tuple[str, str]]
"""(key, word) by worth: those that do not fit are left out from the end."""


def hint_line(
    hints: Hints, notice: str, right: Sequence[Span], glyphs: Glyphs, width: int, keys: Iterable[Key] = ()
) -> Line:
    """Show a notice, or as many hints as fit, with ``right`` at the other edge.

    ``keys``: the screen's own, so that those are shown that are in force.
    """
    if notice:
        said = fit(f" {notice}", max(0, width - length(right)), ellipsis=glyphs.ellipsis)
        return beside([(said.rstrip(), "notice")], right, width)
    spans: list[Span] = [(" ", "")]
    room = width - length(right)
    for key, word in hints:
        shown = hinted(key, keys)
        shown = in_letters(shown) if glyphs.ascii else shown
        hint: list[Span] = [(shown, "key"), (f" {word}  ", "dim")]
        if length(spans) + length(hint) > room:
            break
        spans += hint
    return beside(merge(spans), right, width)


def at_replay(hints: Hints, options: Options) -> Hints:
    """Say what the keys do to a recording: it is paused, not frozen. Unchanged while live."""
    if not options.replaying:
        return hints
    return [(key, "play/pause" if word == "freeze" else word) for key, word in hints]


def in_letters(keys: str) -> str:
    """Write the arrow keys by name."""
    for arrow, name in (("↑", "Up"), ("↓", "Down"), ("←", "Left"), ("→", "Right")):
        keys = keys.replace(arrow, f"{name} ")
    return " ".join(keys.split())


def place(top: int, shown: int, whole: int, glyphs: Glyphs) -> Sequence[Span]:
    """Say which lines of a longer text are on the screen; nothing when all are."""
    return () if shown >= whole else ((f" {top + 1}{glyphs.dash}{min(whole, top + shown)} of {whole} ", "label bold"),)


def window(lines: Sequence[Line], top: int, room: int) -> tuple[int, list[Line]]:
    """Return the lines of a longer text that ``room`` rows show, and which is the first: ``top`` where it can be."""
    top = max(0, min(top, len(lines) - room))
    return top, list(lines[top : top + room])


def category_keys(words: Iterable[tuple[str, str]], options: Options) -> Line:
    """Name categories, given as (category, word), by their colour or letter."""
    spans: list[Span] = [(" ", "")]
    for name, word in words:
        key = LETTERS[name]
        spans += [(f"{key if options.letters else options.glyphs.swatch} ", f"key:{key}"), (f"{word}  ", "dim")]
    return merge(spans)
