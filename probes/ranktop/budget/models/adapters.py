"""LoRA: a frozen base, quantized or not, with low-rank adapters beside its linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ranktop.budget.model import BadInput, Tensor
from ranktop.budget.plan import Lora

LINEAR: Final = frozenset({"q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "dense", "shared_gate"})
"""Roles that are linear layers and get an adapter when no targets are named. As PEFT's ``all-linear``, it leaves the
head out; routers and fused experts are bare parameters to it."""

QUANTIZED: Final = ("nf4", "nf4-double", "int8")

_BLOCK = 64
"""Elements that share one scale in bitsandbytes' 4-bit formats (``blocksize``)."""
_NESTED = 256
"""First-level scales that share one second-level scale."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a rank stores it."""

    shape: tuple[int, ...]
    dtype: str
    trainable: bool


def check(lora: Lora, roles: frozenset[str]) -> None:
    """Raise BadInput for a rank below one, an unknown format or a target that the model does not have."""
    if lora.rank < 1:
        raise BadInput(f"a LoRA rank must be at least 1, not {lora.rank}")
    if lora.quantized is not None and lora.quantized not in QUANTIZED:
        raise BadInput(f"unknown quantization {lora.quantized!r}; known are {', '.join(QUANTIZED)}")
    known = sorted((roles & LINEAR) | (roles & {"head"}))
    for target in lora.targets:
        if target not in known:
            raise BadInput(f"no linear layer has the role {target!r}; this model has {', '.join(known)}")


def is_linear(tensor: Tensor) -> bool:
    """Tell whether a tensor is the weight of a linear layer inside the model (not its head)."""
    return tensor.role in LINEAR and len(tensor.shape) == 2


def adapters(tensor: Tensor, lora: Lora, turned: bool) -> Iterator[Tensor]:
    """Yield A ``[r, in]`` and B ``[out, r]`` of a linear weight, none when it is not a target.

    Tensor parallel splits the side on which the weight itself is split. ``turned``: the weight is ``[in, out]``.
    Source: peft/tuners/lora/layer.py ``LoraLayer.update_layer``.
    """
    if len(tensor.shape) != 2 or tensor.role not in (lora.targets or LINEAR):
        return
    out, into = reversed(tensor.shape) if turned else tensor.shape
    split = tensor.split if tensor.split is None or not turned else 1 - tensor.split
    yield Tensor(f"{tensor.name} A", (lora.rank, into), role="lora", split=1 if split == 1 else None)
    yield Tensor(f"{tensor.name} B", (out, lora.rank), role="lora", split=0 if split == 0 else None)


def quantized(shape: tuple[int, ...], form: str) -> Iterator[Stored]:
    """Yield what a frozen linear weight is stored as.

    ``nf4``: two elements a byte, one fp32 scale for 64 elements, a table of 16 values. ``nf4-double``: the scales in
    8 bits, with an fp32 scale for 256 of them, a table of 256 values and an offset. ``int8``: one fp32 scale a row.
    Scales and tables stand as one tensor. Source: bitsandbytes/functional.py ``quantize_4bit``, counted with it
    (4096 x 4096: 9,437,248 and 8,655,940 bytes).
    """
    numel = 1
    for dim in shape:
        numel *= dim
    if form == "int8":
        yield Stored(shape, "int8", False)
        yield Stored((shape[0],), "float32", False)
        return
    blocks = -(-numel // _BLOCK)
    yield Stored((-(-numel // 2), 1), "uint8", False)
    if form == "nf4":
        yield Stored((blocks + 16,), "float32", False)
        return
    yield Stored((blocks,), "uint8", False)
    yield Stored((-(-blocks // _NESTED) + 16 + 256 + 1,), "float32", False)
