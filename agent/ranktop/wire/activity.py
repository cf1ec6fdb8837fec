"""What the known words of an activity (``Sample.activity``) mean."""

from __future__ import annotations

from typing import Final

VALIDATION: Final = "validation"
SAVE: Final = "save"

_KINDS: Final = {
    "validation": VALIDATION, "validate": VALIDATION, "validating": VALIDATION, "val": VALIDATION,
    "evaluation": VALIDATION, "evaluate": VALIDATION, "evaluating": VALIDATION, "eval": VALIDATION, "test": VALIDATION,
    "save": SAVE, "saving": SAVE, "checkpoint": SAVE, "checkpointing": SAVE,
    "save checkpoint": SAVE, "save_checkpoint": SAVE, "saving a checkpoint": SAVE,
}  # fmt: skip

WORDS: Final = {VALIDATION: "validation", SAVE: "saving a checkpoint"}
"""Kind -> how it is said."""


def kind_of(activity: str) -> str:
    """Return :data:`VALIDATION` or :data:`SAVE` for a known word; empty for any other."""
    return _KINDS.get(activity.strip().lower(), "")


def in_words(activity: str) -> str:
    """Return how an activity is said: the known ones alike, any other by its own word."""
    return WORDS.get(kind_of(activity), activity)
