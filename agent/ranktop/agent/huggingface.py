"""``from ranktop.agent.huggingface import RanktopCallback``: the explicit line for a transformers Trainer."""

from __future__ import annotations

from ranktop.agent.trainers.huggingface import RanktopCallback

__all__ = ["RanktopCallback"]
