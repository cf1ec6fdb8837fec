"""Lightning's words for precision."""

from __future__ import annotations

from typing import Final

DTYPES: Final = {"64": "float64", "32": "float32", "16": "float16", "bf16": "bfloat16"}
"""How Lightning's precision words begin (``bf16-mixed``, ``32-true``) -> dtype that is computed in."""


def dtype_of(words: object) -> str | None:
    """Return the dtype's name; None for words that name none (``transformer-engine``)."""
    return DTYPES.get(str(words).split("-", 1)[0])
