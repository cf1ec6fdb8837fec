"""The terminal's cells: what they should show, what they show by all that was sent, and the way from one to the other.

Textual's frames are not written but taken into the wanted cells. What is sent is always the way to the newest picture,
in pieces as large as the link takes: frames that nobody could see are never sent, and neither is a cell that is right.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.strip import Strip

from ranktop.tui.terminal.encode import NOWHERE, Item, encode, in_order
from ranktop.tui.terminal.kind import Kind
from ranktop.tui.terminal.pens import PLAIN, Pen, Pens

Cell = tuple[str, Pen]
"""What stands in a cell, with combining characters; empty in the right half of a wide one."""

Span = tuple[int, int]
"""First cell, and the one behind the last."""

GAP: Final = 5
"""Cells of the same pen that are cheaper to send again than to jump over."""

MOVE: Final = 4
"""Bytes that it takes about to come to another place and colour."""

ERASE: Final = 9
"""Blanks that are cheaper to erase and jump over than to send."""

SURE: Final = 16
"""Pieces after which nothing is taken for granted of the terminal's colours: another program may have changed them."""


class Canvas:
    """Wanted and shown cells. Sizes in cells, pieces in bytes of UTF-8 (or ASCII, where nothing else may be sent)."""

    def __init__(self, kind: Kind, pens: Pens, *, ascii: bool = False) -> None:
        self._kind, self._pens, self._ascii = kind, pens, ascii
        self.width = self.height = 0
        self._wanted: list[list[Cell]] = []
        self._shown: list[list[Cell]] = []
        self._dirty: list[Span | None] = []
        """Of each row the cells that may differ."""
        self._odd: set[int] = set()
        """Rows that may have characters which are not one cell wide."""
        self._unknown = True
        self._pen, self._pieces = PLAIN, 0
        """What the terminal writes in now, and the pieces since that was made sure of."""
        self.cursor = NOWHERE
        """Row and column of the cursor after the last piece, as far as they are known."""
        self._plan: deque[Item] = deque()
        """What is left of the way to the wanted picture; empty when it has to be found anew."""

    @property
    def behind(self) -> bool:
        """True while the terminal does not show what is wanted."""
        return self._unknown or any(span is not None for span in self._dirty)

    def forget(self) -> None:
        """Take for lost what the terminal shows: it changed its size, or somebody else wrote to it."""
        self._unknown = True
        self._plan.clear()

    def take(self, update: LayoutUpdate | ChopsUpdate) -> bool:
        """Take a frame of Textual's; False for a partial one of another size than the picture, which needs a whole."""
        if isinstance(update, LayoutUpdate):
            width, height = update.region.right, update.region.bottom
            if (width, height) != (self.width, self.height):
                self._resize(width, height)
            for y, strips in enumerate(update.strips, update.region.y):
                self._put(y, update.region.x, Strip.join(list(strips)), width)
            return True
        if len(update.chops) != self.height:
            return False
        for y, first, stop in update.spans:
            for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if strip is not None and x < stop and end > first:
                    start = max(x, first)
                    self._put(y, start, strip.crop(start - x, min(end, stop) - x), min(end, stop))
        return True

    def text(self) -> list[str]:
        """Return the wanted rows as text."""
        return ["".join(text for text, _ in row) for row in self._wanted]

    def piece(self, limit: int) -> str:
        """Return what brings the terminal nearer to the wanted picture, about ``limit`` bytes of it.

        Afterwards these cells count as shown. The last pen stays set: the next piece begins with what it can draw in
        it.
        """
        start = self._clear() if self._unknown else ""
        if not self._plan:
            found = [item for y, span in enumerate(self._dirty) if span is not None for item in self._row(y, span)]
            if found and not start:
                start = self._make_sure()
            self._plan.extend(in_order(found, self._pens, self.width, self._pen))
        items: list[Item] = []
        size = len(start)
        while self._plan and (size < limit or not items):
            item = self._plan.popleft()
            self._shown[item.y][item.x : item.stop] = self._wanted[item.y][item.x : item.stop]
            items.append(item)
            size += MOVE + len(item.payload)
        if not self._plan:
            self._dirty = [None] * self.height
        text, self._pen, self.cursor = encode(items, self._pens, self.width, self._pen)
        return start + text

    def _make_sure(self) -> str:
        """Return what sets the pen, whatever somebody else has set; only once in a while."""
        self._pieces += 1
        if self._pieces % SURE:
            return ""
        self._pen = PLAIN
        return "\x1b[m"

    def _resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._wanted = [[(" ", PLAIN)] * width for _ in range(height)]
        self._shown = [[] for _ in range(height)]
        self._dirty = [(0, width)] * height
        self._odd = set(range(height))
        self.forget()

    def _put(self, y: int, start: int, strip: Strip, stop: int) -> None:
        if not 0 <= y < self.height:
            return
        row = self._wanted[y]
        cells = self._cells(strip, y)[: min(stop, self.width) - start]
        end = start + len(cells)
        if row[start:end] != cells:
            row[start:end] = cells
            known = self._dirty[y] or (start, end)
            self._dirty[y] = (min(start, known[0]), max(end, known[1]))
            self._plan.clear()

    def _cells(self, strip: Strip, y: int) -> list[Cell]:
        of, blank = self._pens.of, self._pens.blank
        cells: list[Cell] = []
        for text, style, control in strip:
            if control:
                continue
            pen = of(style)
            if text.isspace() and text.isascii():
                cells += [(" ", blank(pen))] * len(text)
            elif text.isascii():
                ground = blank(pen)
                cells += [(" ", ground) if character == " " else (character, pen) for character in text]
            else:
                self._wide(cells, text, pen, y)
        return cells

    def _wide(self, cells: list[Cell], text: str, pen: Pen, y: int) -> None:
        ground, full = self._pens.blank(pen), self._pens.full(pen)
        if full is not None and full.back == pen.back:
            text = text.replace("\u2580", "\u2588").replace("\u2584", "\u2588")  # both halves in one colour
        for character in text:
            if character == "\u2588" and full is not None:
                cells.append((" ", full))  # one byte instead of three, or a few for a run of any length
                continue
            width = 1 if character < "\u0300" or "\u2500" <= character <= "\u259f" else cell_len(character)
            if width != 1:
                self._odd.add(y)
            if self._ascii and not character.isascii():
                cells += [("?", pen)] * width
            elif width == 0 and cells:
                cells[-1] = (cells[-1][0] + character, cells[-1][1])
            elif width:
                cells.append((" ", ground) if character == " " else (character, pen))
                cells += [("", pen)] * (width - 1)

    def _clear(self) -> str:
        """Erase the whole screen, in the colour of most of its blanks where the terminal can."""
        ground = PLAIN
        if self._kind.erases_in_colour:
            grounds = Counter(pen for row in self._wanted for text, pen in row if text == " " and not pen.attributes)
            ground = grounds.most_common(1)[0][0] if grounds else PLAIN
        self._shown = [[(" ", ground)] * self.width for _ in range(self.height)]
        whole = (0, self.width)
        self._dirty = [whole if one != other else None for one, other in zip(self._wanted, self._shown, strict=True)]
        self._unknown = False
        self._pen, self._pieces = ground, 0
        return f"\x1b[m{self._pens.turn(PLAIN, ground)}\x1b[2J"

    def _row(self, y: int, span: Span) -> Iterator[Item]:
        """Yield what is to be sent of a row, which differs at most within a span."""
        wanted, shown = self._wanted[y], self._shown[y]
        if y in self._odd:
            if any(len(text) != 1 for row in (wanted, shown) for text, _ in row):
                yield from self._uneven(y)
                return
            self._odd.discard(y)
        erases = self._kind.erases_in_colour
        tail = _tail(wanted) if erases else len(wanted)
        for start, stop in stretches(wanted, shown, self._pens, span):
            erase = start >= tail or stop > tail + ERASE
            yield from self._runs(y, start, tail if erase else stop)
            if erase:
                yield Item(y, max(start, tail), len(wanted), "\x1b[K", wanted[-1][1], blank=True, moves=False)
                return

    def _runs(self, y: int, start: int, stop: int) -> Iterator[Item]:
        """Yield the cells of a stretch, a run of one pen each; blanks go with their neighbours where they can."""
        row, pens, erases = self._wanted[y], self._pens, self._kind.erases_in_colour
        at = start
        while at < stop:
            first, (text, pen) = at, row[at]
            blank = text == " "
            ground = pens.blank(pen)
            while at < stop and (row[at][1] is pen if blank or row[at][0] != " " else row[at][1] is ground):
                if blank and row[at][0] != " ":
                    break
                at += 1
            length = at - first
            if not blank:
                length = len("".join(text for text, _ in row[first:at]).rstrip(" "))
                at = first + length
            if blank and length >= ERASE and erases and not pen.attributes:
                yield Item(y, first, at, f"\x1b[{length}X", pen, blank=True, moves=False)
            else:
                yield Item(y, first, at, "".join(text for text, _ in row[first:at]), pen, blank=blank)

    def _uneven(self, y: int) -> Iterator[Item]:
        """Yield all of a row with characters whose width the terminal may see otherwise: each is followed by a jump."""
        row = self._wanted[y]
        for x, (text, pen) in enumerate(row):
            if text:
                stop = x + 1
                while stop < len(row) and not row[stop][0]:
                    stop += 1
                sure = len(text) == 1 and stop == x + 1
                yield Item(y, x, stop, text, pen, blank=text == " ", moves=sure)


def _tail(row: list[Cell]) -> int:
    """Return the first of the equal blanks at a row's end that an erasure can make."""
    last = row[-1]
    at = len(row)
    if last[0] == " " and not last[1].attributes:
        while at and row[at - 1] == last:
            at -= 1
    return at


def stretches(wanted: list[Cell], shown: list[Cell], pens: Pens, span: Span) -> list[Span]:
    """Return the (first, last + 1) cells of each stretch in which two rows of equal length differ within a span.

    A few equal cells between two stretches that need no other pen are part of them: sending them again is cheaper
    than a jump.
    """
    found: list[Span] = []
    for at in range(*span):
        if wanted[at] != shown[at]:
            if found and at - found[-1][1] < GAP and _same_pen(wanted, found[-1][1] - 1, at, pens):
                found[-1] = (found[-1][0], at + 1)
            else:
                found.append((at, at + 1))
    return found


def _same_pen(row: list[Cell], first: int, last: int, pens: Pens) -> bool:
    pen = row[first][1]
    ground = pens.blank(pen)
    return all(row[at][1] is pen or (row[at][1] is ground and row[at][0] == " ") for at in range(first + 1, last))
