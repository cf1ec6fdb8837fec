"""How a dashboard is at first: what its person has put into the configuration."""

from __future__ import annotations

from ranktop.tui.config import settings
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Glyphs


def habits(glyphs: Glyphs) -> Options:
    """Return the options of a dashboard that opens."""
    chosen = settings()
    return Options(
        glyphs=glyphs,
        sort=chosen.value("dashboard.sort"),
        moment=chosen.value("dashboard.moment"),
        zoom=chosen.value("dashboard.scale"),
        detail=chosen.value("dashboard.detail"),
    )
