"""Pens: what a cell looks like, in as few control sequences as it takes to turn one into another."""

from __future__ import annotations

from typing import Final, NamedTuple

from rich.color import ColorSystem
from rich.style import Style

from ranktop.tui.terminal.kind import Kind

SEEN_ON_BLANKS: Final = frozenset((4, 7, 9))
"""Attributes that a blank shows: underlined, reverse, struck through."""

_OFF: Final = {1: 22, 2: 22, 3: 23, 4: 24, 5: 25, 6: 25, 7: 27, 8: 28, 9: 29}


class Pen(NamedTuple):
    """SGR codes of a look."""

    attributes: tuple[int, ...] = ()
    front: tuple[str, ...] = ()
    back: tuple[str, ...] = ()


PLAIN: Final = Pen()


class Pens:
    """Styles as pens in the colours and attributes that the terminal has. Equal pens are one object."""

    def __init__(self, kind: Kind, system: ColorSystem | None) -> None:
        self._kind = kind
        self._system = system if kind.colours else None
        self._of: dict[Style | None, Pen] = {None: PLAIN}
        self._blanks: dict[Pen, Pen] = {PLAIN: PLAIN}
        self._one: dict[Pen, Pen] = {PLAIN: PLAIN}
        self._full: dict[Pen, Pen | None] = {}
        self._turns: dict[tuple[Pen, Pen], str] = {}

    def of(self, style: Style | None) -> Pen:
        """Return the pen of a style."""
        pen = self._of.get(style)
        if pen is None:
            assert style is not None
            pen = self._of[style] = self._single(Pen(self._attributes(style), *self._colours(style)))
        return pen

    def blank(self, pen: Pen) -> Pen:
        """Return what can be seen of a pen on a blank: nobody sees in what colour or weight one was written."""
        found = self._blanks.get(pen)
        if found is None:
            seen = tuple(code for code in pen.attributes if code in SEEN_ON_BLANKS)
            found = self._blanks[pen] = self._single(Pen(seen, pen.front if seen else (), pen.back))
        return found

    def full(self, pen: Pen) -> Pen | None:
        """Return the pen in which a blank looks like a full block in this one; None where there is none.

        Bright colours (SGR 90 to 97) are not every terminal's as a background.
        """
        if pen not in self._full:
            code = pen.front[0] if pen.front else ""
            back = ("48", *pen.front[1:]) if code == "38" else (str(int(code) + 10),) if code[:1] == "3" else ()
            self._full[pen] = self._single(Pen((), (), back)) if back and not pen.attributes else None
        return self._full[pen]

    def over(self, pen: Pen, blank: Pen) -> Pen:
        """Return the pen nearest to ``pen`` in which a blank looks as it should."""
        if not blank.attributes and not SEEN_ON_BLANKS.intersection(pen.attributes):
            return pen if pen.back == blank.back else self._single(Pen(pen.attributes, pen.front, blank.back))
        return pen if self.blank(pen) is blank else blank

    def turn(self, before: Pen, after: Pen) -> str:
        """Return the sequence that turns one pen into another."""
        if before is after:
            return ""
        found = self._turns.get((before, after))
        if found is None:
            found = self._turns[before, after] = self._turn(before, after)
        return found

    def _single(self, pen: Pen) -> Pen:
        return self._one.setdefault(pen, pen)

    def _attributes(self, style: Style) -> tuple[int, ...]:
        wanted = (
            style.bold, style.dim, style.italic, style.underline, style.blink, style.blink2, style.reverse,
            style.conceal, style.strike,
        )  # fmt: skip
        return tuple(code for code, on in enumerate(wanted, 1) if on and code in self._kind.attributes)

    def _colours(self, style: Style) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self._system is None:
            return (), ()
        front, back = style.color, style.bgcolor
        return (
            front.downgrade(self._system).get_ansi_codes() if front and not front.is_default else (),
            back.downgrade(self._system).get_ansi_codes(foreground=False) if back and not back.is_default else (),
        )

    def _turn(self, before: Pen, after: Pen) -> str:
        anew = self._anew(after)
        if not self._kind.turns_off:
            return anew
        gone = [code for code in before.attributes if code not in after.attributes]
        codes = [str(off) for off in dict.fromkeys(_OFF[code] for code in gone)]
        # Bold and dim end together: the one that stays is set again.
        again = [code for code in after.attributes if code not in before.attributes or (
            code in (1, 2) and any(other in (1, 2) for other in gone))]  # fmt: skip
        codes += map(str, again)
        if before.front != after.front:
            codes += after.front or ("39",)
        if before.back != after.back:
            codes += after.back or ("49",)
        short = f"\x1b[{';'.join(codes)}m"
        return min(short, anew, key=len)

    def _anew(self, pen: Pen) -> str:
        codes = [*map(str, pen.attributes), *pen.front, *pen.back]
        return f"\x1b[{';'.join(['0', *codes])}m" if codes else "\x1b[m"
