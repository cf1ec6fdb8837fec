"""Bytes and categories in the words of the memory rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ranktop.budget.inventory import Inventory
from ranktop.budget.terms import DTYPE_BYTES, Memory
from ranktop.tui.view.options import MOMENT_WORDS

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

PROCESS: Final = ("parameters", "gradients", "optimizer", "activations", "buffers", "cache", "runtime")
"""Categories of the process itself; what others do on the device says nothing of the rank."""

WORDS: Final = {
    "parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer state", "activations": "activations",
    "buffers": "buffers", "cache": "unused cache", "runtime": "runtime memory",
}  # fmt: skip
SHORT: Final = {
    "parameters": "par", "gradients": "grad", "optimizer": "opt", "activations": "act", "buffers": "buf",
    "cache": "cache", "runtime": "runtime",
}  # fmt: skip

MODEL_SIZED: Final = 0.05
"""Share by which a difference may miss the size of the parameters and still be called a copy of them."""


def sized(value: float, decimals: int = 1) -> str:
    """Write bytes with the unit that suits them: ``4.0 MiB``, ``12.4 GiB``."""
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(value) >= 0.9995 * unit:
            return f"{value / unit:.{decimals}f} {name}"
    return f"{value:.0f} B"


def at_moment(moment: str) -> str:
    """Write a moment of the step: ``at the end of forward``."""
    return f"at the {MOMENT_WORDS.get(moment, moment)}"


def short_size(value: float) -> str:
    """Write a difference in few characters: ``+6.0G``, ``-512M``."""
    return f"{value / GIB:+.1f}G" if abs(value) >= GIB else f"{value / MIB:+.0f}M"


def percent(share: float) -> str:
    """Write a share as a signed percentage: ``+28%``."""
    return f"{100 * share:+,.0f}%"


def lasting(seconds: float) -> str:
    """Write a time to come: ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def summed(memory: Memory, names: Sequence[str]) -> int:
    """Add up the categories that are known."""
    return sum(value for name in names if (value := getattr(memory, name)) is not None)


def whole_parameters(inventory: Inventory) -> int:
    """Bytes of the model's parameters before any sharding; unknown dtypes count nothing."""
    sizes = [kind.numel * DTYPE_BYTES.get(kind.dtype, 0) for kind in inventory.kinds]
    return sum(sizes[index] for index in inventory.order)


def model_sized(difference: float, whole: int | None, local: int | None = None) -> str:
    """Say what of the model a difference is as large as; empty: nothing. ``local``: bytes of this rank's shards."""
    half = whole // 2 if whole else None
    for words, size in (
        ("the model's parameters", whole),
        ("the rank's parameters", local),
        ("the model's parameters in 16 bits", half),
    ):
        if size and abs(difference - size) <= MODEL_SIZED * size:
            return words
    return ""
