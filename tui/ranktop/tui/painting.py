"""Sends a terminal only the cells that were asked to be painted, in as few bytes as that takes.

Textual sends a dirty region from its widget's left edge on, every piece with all its colours and a reset. Numbers that
change within a line cost several times the bytes that way, which counts over SSH.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate

_RESET: Final = "\x1b[0m"


class SpansUpdate(ChopsUpdate):
    """A partial update of the screen that starts at the first dirty cell and repeats no colour that is still set."""

    @classmethod
    def of(cls, update: ChopsUpdate) -> SpansUpdate:
        """Take over what Textual's compositor has rendered."""
        return cls(update.chops, update.spans, update.chop_ends)

    def render_segments(self, console: Console) -> str:
        """Return the control sequences and text of the dirty cells."""
        system = console._color_system or ColorSystem.TRUECOLOR
        out: list[str] = []
        pen = Style.null()
        for y, first, stop in self.spans:
            at = -1
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is None or x >= stop or end <= first:
                    continue
                start = max(x, first)
                if start != at:
                    out.append(f"\x1b[{y + 1};{start + 1}H")
                for text, style, _ in strip.crop(start - x, min(end, stop) - x):
                    style = style or Style.null()
                    # The colour of what is not there need not be set.
                    if not (text.isspace() and same_ground(pen, style)):
                        out.append(turn(pen, style, system))
                        pen = style
                    out.append(text)
                at = min(end, stop)
        out.append(turn(pen, Style.null(), system))
        return "".join(out)


@lru_cache(maxsize=8192)
def turn(before: Style, after: Style, system: ColorSystem) -> str:
    """Return the sequence (SGR) that turns one style into another; empty when they look the same."""
    if before == after:
        return ""
    if _attributes(after) == (0,) * 9 and after.color is None and after.bgcolor is None:
        return _RESET
    codes: list[str] = []
    keeps = _attributes(before) == _attributes(after)
    if not keeps or (before.color and not after.color) or (before.bgcolor and not after.bgcolor):
        codes.append("0")
        codes += [str(number) for number, on in zip(range(1, 10), _attributes(after), strict=True) if on]
        before = Style.null()
    if after.color and after.color != before.color:
        codes += after.color.downgrade(system).get_ansi_codes()
    if after.bgcolor and after.bgcolor != before.bgcolor:
        codes += after.bgcolor.downgrade(system).get_ansi_codes(foreground=False)
    return f"\x1b[{';'.join(codes)}m" if codes else ""


@lru_cache(maxsize=8192)
def same_ground(one: Style, other: Style) -> bool:
    """Tell whether blanks look the same in two styles."""
    drawn = any(style.reverse or style.underline or style.strike for style in (one, other))
    return not drawn and one.bgcolor == other.bgcolor


def _attributes(style: Style) -> tuple[int, ...]:
    """Return which of SGR 1 to 9 a style asks for."""
    wanted = (
        style.bold, style.dim, style.italic, style.underline, style.blink, style.blink2, style.reverse, style.conceal,
        style.strike,
    )  # fmt: skip
    return tuple(map(int, map(bool, wanted)))
