"""Says on every screen that what it shows is not a real job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ranktop.tui.view.text import Line, Span, length, pad
from ranktop.wire.schema import Card

if TYPE_CHECKING:
    from ranktop.tui.session.state import Snapshot
    from ranktop.tui.view.options import Options

SIMULATED: Final = "SIMULATED"

LABEL: Final = (f" {SIMULATED} ", "frozen")

REPLAY: Final = (" REPLAY ", "frozen")

BRAND: Final = " ranktop "

_GAP: Final = re.compile(" {2,}")


def simulated(cards: Iterable[Card | None]) -> bool:
    """Tell whether the job behind some cards is a simulated one; the first card there is speaks for all."""
    return next((card.simulated for card in cards if card is not None), False)


def label_cells(snapshot: Snapshot, options: Options) -> int:
    """Return the cells that the labels take of the first line, in place of the program's name; 0 without any."""
    made_up = simulated(view.card for view in snapshot.ranks)
    return (len(REPLAY[0]) if options.replaying else 0) + (len(LABEL[0]) if made_up else 0)


def labelled(parts: Mapping[str, Sequence[Line]], label: Span = LABEL) -> dict[str, Sequence[Line]]:
    """Put a label before the first line of a screen, in place of the program's name where that stands there."""
    marked = dict(parts)
    first = next((name for name, lines in marked.items() if lines), None)
    if first is not None:
        line, *others = marked[first]
        marked[first] = [_labelled(line, label), *others]
    return marked


def _labelled(line: Line, label: Span) -> Line:
    width = length(line)
    rest = list(line)
    if rest and rest[0][0].startswith(BRAND):
        text, style = rest[0]
        rest[0] = (text.removeprefix(BRAND), style)
    over = len(label[0]) + length(rest) - width
    # The room is taken from the widest gap, so that what stands at the right stays there.
    gaps = [(at, gap.start(), gap.end()) for at, (text, _) in enumerate(rest) for gap in _GAP.finditer(text)]
    if over > 0 and gaps:
        at, start, end = max(gaps, key=lambda gap: gap[2] - gap[1])
        text, style = rest[at]
        rest[at] = (text[: max(start + 1, end - over)] + text[end:], style)
    return pad((label, *rest), width, "head")
