"""States that are stored block by block in 8 or 4 bits: bitsandbytes and torchao."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Blocks:
    """How one optimizer stores each of its states."""

    states: int
    """States per parameter that are like it."""
    bits: int = 8
    size: int = 256
    """Elements that share one fp32 scale."""
    table: int = 1024
    """Bytes of the quantisation map that a tensor's state refers to."""
    smallest: int = 4096
    """Tensors of fewer elements are stored in full."""
    full: int | None = None
    """Bytes per element of a state in full; None = the parameter's."""
    words: str = ""

    def bytes(self, numel: int, itemsize: int) -> int:
        """Return the bytes of all states of one tensor."""
        if numel < self.smallest or (self.full is None and numel % self.size):
            return self.states * numel * (itemsize if self.full is None else self.full)
        codes = -(-numel * self.bits // 8)
        return self.states * (codes + 4 * -(-numel // self.size) + self.table)


def _bitsandbytes(states: int) -> Blocks:
    """``bitsandbytes/optim/optimizer.py`` ``init_state``: uint8 from 4096 elements on, else fp32; blocks of 256.

    Every tensor's state refers to its map of 1 KiB, counted with each as a walk over the state counts it
    (they share one, which is less than a thousandth).
    """
    return Blocks(states, full=4, words=f"{states} x (1 B + 4 B per 256), fp32 below 4096 elements (bitsandbytes)")


def _torchao(states: int, bits: int, size: int, table: int) -> Blocks:
    """``torchao/optim/subclass_*.py`` and ``adam.py`` ``_new_buffer``: from 4096 elements in whole blocks on."""
    return Blocks(states, bits, size, table, words=f"{states} x ({bits} bits + 4 B per {size}) (torchao)")


BLOCKWISE: Final[dict[str, Blocks]] = {
    **{f"{paged}{name}8bit": _bitsandbytes(2) for paged in ("", "Paged") for name in ("Adam", "AdamW")},
    **{f"{paged}{name}8bit": _bitsandbytes(1) for paged in ("", "Paged") for name in ("Lion", "SGD", "RMSprop")},
    "Adagrad8bit": _bitsandbytes(1),
    "LAMB8bit": _bitsandbytes(2),
    "LARS8bit": _bitsandbytes(1),
    "AdEMAMix8bit": _bitsandbytes(3),
    **{f"{name}4bit": _torchao(2, 4, 128, 64) for name in ("Adam", "AdamW")},
    **{f"{name}Fp8": _torchao(2, 8, 256, 0) for name in ("Adam", "AdamW")},
}
"""Class -> how it stores its states; names that both packages have are bitsandbytes' unless the package is torchao."""

TORCHAO: Final[dict[str, Blocks]] = {f"{name}8bit": _torchao(2, 8, 256, 1024) for name in ("Adam", "AdamW")}
"""Classes that both packages have, as torchao stores them."""


def blockwise(name: str, package: str) -> Blocks | None:
    """Return how an optimizer of this class and package stores its states, None when it does not so."""
    return (TORCHAO.get(name) if package == "torchao" else None) or BLOCKWISE.get(name)
