"""Reads the keys of a model's config one by one: what is missing, of the wrong type or absurd is named."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any, Final

from ranktop.budget.model import BadInput

_MOST: Final = 1_000_000_000
"""Largest size that is believed; of layers and heads it is ``_MOST_LAYERS``."""
_MOST_LAYERS: Final = 100_000


class Fields:
    """The keys of one config. ``null`` counts as missing, as it does for transformers."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where
        """In front of every complaint, e.g. the file's name."""

    def bad(self, what: str) -> BadInput:
        """Return the error that says ``what`` about this config."""
        return BadInput(f"{self.where}: {what}")

    def has(self, *keys: str) -> bool:
        """Tell whether one of the keys has a value."""
        return any(self.config.get(key) is not None for key in keys)

    def whole(self, *keys: str, default: int | None = None, least: int = 1, most: int = _MOST) -> int:
        """Return a whole number under the first of ``keys`` that is there; BadInput when it is needed and lacks."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.bad(f"{key} must be a whole number, not {shown(value)}")
            if not least <= value <= most:
                raise self.bad(f"{key} must be {least} to {most}, not {shown(value)}")
            return value
        if default is None:
            raise self.bad(f"{keys[0]} is missing")
        return default

    def layers(self, *keys: str, default: int | None = None) -> int:
        """Return a number of layers or heads."""
        return self.whole(*keys, default=default, most=_MOST_LAYERS)

    def share(self, *keys: str, default: float = 0.0) -> float:
        """Return a number from 0 to 1."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise self.bad(f"{key} must be from 0 to 1, not {shown(value)}")
            return float(value)
        return default

    def flag(self, key: str, default: bool) -> bool:
        """Return a yes or no."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(f"{key} must be true or false, not {shown(value)}")
        return value

    def word(self, *keys: str, default: str) -> str:
        """Return a text."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.bad(f"{key} must be a text, not {shown(value)}")
            return value
        return default

    def wholes(self, key: str) -> tuple[int, ...]:
        """Return a list of indexes, empty when it is missing."""
        value = self.config.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            raise self.bad(f"{key} must be a list of whole numbers, not {shown(value)}")
        return tuple(value)

    def pair(self, key: str, default: int) -> tuple[int, int]:
        """Return (height, width), given as one number or as two."""
        value = self.config.get(key)
        if isinstance(value, (list, tuple)):
            if len(value) != 2:
                raise self.bad(f"{key} must be one or two numbers, not {shown(list(value))}")
            sides = [Fields({key: side}, self.where).whole(key) for side in value]
            return sides[0], sides[1]
        side = self.whole(key, default=default)
        return side, side

    def labels(self) -> int:
        """Return the number of classes: ``id2label``'s length, or ``num_labels``; transformers assumes 2."""
        names = self.config.get("id2label")
        if isinstance(names, Mapping) and names:
            return len(names)
        return self.whole("num_labels", default=2)

    def decoder_head(self) -> dict[str, bool | int | float | str]:
        """Return what a decoder's class has on top, as options of its family; nothing for a language model."""
        names = self.config.get("architectures")
        name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
        if name.endswith("ForSequenceClassification"):
            return {"head": "classifier", "labels": self.labels()}
        bare = name.endswith("Model") and not name.endswith("LMHeadModel")
        return {"head": "none"} if bare else {}

    def heads_of(self, hidden: int, heads: int, key: str, hidden_key: str) -> int:
        """Return the dimension of a head when the heads share ``hidden``; BadInput when they do not divide it."""
        if hidden % heads:
            raise self.bad(f"{key} {heads} does not divide {hidden_key} {hidden}")
        return hidden // heads
