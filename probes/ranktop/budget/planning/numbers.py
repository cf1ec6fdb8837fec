"""Numbers as people type them, read strictly: each complaint names the flag, the value and what would do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from ranktop.budget.devices import parse_count, parse_size
from ranktop.budget.model import BadInput

_SCALES: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}

_RATE: Final = re.compile(
    r"([0-9.]+(?:e[+]?[0-9]+)?)\s*([kmgt]?)(i?)(b|bit|bits|byte|bytes)\s*(?:/s|ps)", re.IGNORECASE
)

SMALLEST: Final = 1 << 20
LARGEST: Final = 1 << 50
"""Bytes between which the memory of a device lies."""

FASTEST: Final = 1e14
"""Bytes per second beyond which a link's speed is a typing error."""


def whole(flag: str, text: str, most: int, least: int = 1) -> int:
    """Return a whole number between two bounds. Raises BadInput."""
    clean = text.strip().replace("_", "").replace(",", "")
    try:
        value = int(clean)
    except ValueError:
        value = _integral(flag, text, clean)
    return _within(flag, text, value, most, least)


def _integral(flag: str, text: str, clean: str) -> int:
    """Return a whole number that is written as a float, e.g. ``1e6``."""
    try:
        number = float(clean)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number != int(number):
        raise BadInput(f"{flag} must be a whole number, not {text!r}")
    return int(number)


def count(flag: str, text: str, most: int) -> int:
    """Return a count of parameters, e.g. ``7.5e9``, ``7.5B``, ``350M``. Raises BadInput."""
    return _within(flag, text, _flagged(flag, parse_count, text), most, 1)


def size(flag: str, text: str) -> int:
    """Return bytes, e.g. of ``80GiB`` or ``24GB``. Raises BadInput."""
    return _within(flag, text, _flagged(flag, parse_size, text), LARGEST, SMALLEST)


def _flagged(flag: str, parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except BadInput as error:
        raise BadInput(f"{flag}: {error}") from None


def _within(flag: str, text: str, value: int, most: int, least: int) -> int:
    if value < least:
        raise BadInput(f"{flag} must be at least {least}, not {text}")
    if value > most:
        raise BadInput(f"{flag} {text} is beyond anything that exists: at most {most:,}")
    return value


def rate(flag: str, text: str) -> float:
    """Return bytes per second, e.g. of ``400Gb/s``, ``50GB/s``, ``100Gbps``: small b = bits. Raises BadInput."""
    found = _RATE.fullmatch(text.strip())
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or math.isnan(number):
        raise BadInput(f"{flag} must be a speed with its unit, such as 400Gb/s (bits) or 50GB/s (bytes), not {text!r}")
    scale = _SCALES[found[2].lower()]
    if found[3]:
        scale = 1024 ** round(math.log(scale, 1000))
    bits = found[4] == "b" or found[4].lower().startswith("bit")
    speed = number * scale / (8 if bits else 1)
    if not 0 < speed <= FASTEST:
        raise BadInput(f"{flag} {text} is not the speed of a link: more than 0, at most {FASTEST / 1e9:,.0f} GB/s")
    return speed
