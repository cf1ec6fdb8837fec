"""What a family of models tells of its activations: what runs before, in and behind its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ranktop.budget.activations.shape import Shape
from ranktop.budget.activations.tape import Tape, Value
from ranktop.budget.model import Model

Tables = tuple[Value, ...]
"""Tensors that all blocks read and that need no gradient: cos and sin of rotary positions, an additive mask."""


def alike(model: Model) -> tuple[str, ...]:
    """All blocks are of one kind."""
    return ("",) * model.layers


def no_tables(tape: Tape, shape: Shape, x: Value) -> Tables:
    """Blocks read nothing but their input."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Functions that write a family's operations on a tape."""

    before: Callable[[Tape, Shape, Value], Value]
    """From tokens to the first block's input."""
    block: Callable[[Tape, Shape, Value, str, Tables], Value]
    """One block of the named kind."""
    after: Callable[[Tape, Shape, Value], Value]
    """From the last block's output to what the head reads."""
    tables: Callable[[Tape, Shape, Value], Tables] = no_tables
    kinds: Callable[[Model], tuple[str, ...]] = alike
    """The kind of every block, in order."""
    upcasts: bool = True
    """transformers' loss of the family: logits in fp32 and shifted labels (language models), or neither."""
    columns: Callable[[Model], int] = lambda model: model.vocab
    """Columns of the logits; 0 = the model has no head."""
    within: float = 0.01
    """Relative error of what is kept, as the tests measured it."""
    rule: str = ""
