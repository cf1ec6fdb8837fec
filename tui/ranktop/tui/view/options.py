"""What the person at the keyboard has chosen: selection, order, filter, moment, scale, panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.terms import MOMENTS
from ranktop.tui.session.rings import Ring
from ranktop.tui.view.text import UNICODE, Glyphs, Line

MOMENT_CHOICES: Final = ("peak", *MOMENTS, "now")
"""What the bars may show: each rank's own peak, one moment of the last step, or the latest reading."""

SORTS: Final = ("rank", "used", "difference", "utilization", "power", "temperature", "step time", "age")
"""Orders of the ranks; all but the first start with the largest."""

ZOOMS: Final = ("auto", "device", "process", "tensors")
"""What the full bar stands for: chosen by itself, the device, the largest process, the largest sum of tensors."""

PAGES: Final = ("steps", "device", "card", "rules")
"""Side pages of the detail panel."""

MOMENT_WORDS: Final = {
    "peak": "peak of the step",
    "step_start": "start of the step",
    "forward_end": "end of forward",
    "backward_start": "start of backward",
    "backward_end": "end of backward",
    "step_end": "end of the step",
    "now": "now",
}


@dataclass(slots=True)
class Options:
    """State of the ranks screen that is the viewer's own."""

    selected: int | None = None
    """Rank number, so that the selection stays on its rank whatever the order."""
    top: int = 0
    """First row that is shown."""
    sort: str = "rank"
    reverse: bool = False
    filter: str = ""
    typing: bool = False
    """The filter is being typed."""
    moment: str = "peak"
    zoom: str = "auto"
    held: tuple[str, int] | None = None
    """Zoom and bytes of the scale on the screen."""
    detail: bool = True
    page: int = 0
    frozen_at: float | None = None
    """Session time at which the picture was frozen; None while live."""
    replaying: bool = False
    """The picture is of a recording."""
    live_beside: bool = False
    """... of a job that is watched as well, so that there is something to go back to."""
    glyphs: Glyphs = UNICODE
    letters: bool = False
    """Draw bars with letters: there is no colour, or no half block."""
    charts: tuple[Ring, object, list[Line]] | None = None
    """History on the screen: what it was drawn from, what else it depends on, its lines."""

    panel: tuple[object, float, list[tuple[Line, Line]]] | None = None
    """Detail panel on the screen: what it depends on besides its numbers, when it was drawn, its lines in two parts."""
    hold: float = 0.0
    """Seconds for which the panel's numbers may stand; 0: draw them anew with this picture."""

    def cycle(self, field: str, choices: tuple[str, ...], by: int = 1) -> str:
        """Move a field to its next choice and return it."""
        at = choices.index(getattr(self, field))
        chosen = choices[(at + by) % len(choices)]
        setattr(self, field, chosen)
        return chosen
