"""``from ranktop.agent.lightning import RanktopCallback``: the explicit line for a Lightning Trainer."""

from __future__ import annotations

from ranktop.agent.trainers.lightning import RanktopCallback

__all__ = ["RanktopCallback"]
