"""The parameters of a model, exactly: which family's file speaks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ranktop.budget.model import BadInput, Model, NoRule, Tensor
from ranktop.budget.models import bert, gpt, gpt2, gpt_neox, llama, megatron, t5, vit
from ranktop.budget.models.section import Section, completed

FAMILIES: Final[dict[str, Callable[[Model], tuple[Section, ...]]]] = {
    "gpt": gpt.sections,
    "gpt2": gpt2.sections,
    "gpt-neox": gpt_neox.sections,
    "llama": llama.sections,
    "bert": bert.sections,
    "t5": t5.sections,
    "vit": vit.sections,
    "megatron-gpt": megatron.sections,
}
"""Family -> its sections."""


def sections(model: Model, tensor: int = 1) -> tuple[Section, ...]:
    """Return the model's tensors in runs, before tensor parallel splits them over ``tensor`` ranks.

    Only Megatron's vocabulary depends on their number. NoRule for a bare count, BadInput for an unknown family.
    """
    if not model.family:
        raise NoRule("only the number of parameters is known, not the model's shape")
    family = FAMILIES.get(model.family)
    if family is None:
        raise BadInput(f"unknown family {model.family!r}; known are {', '.join(FAMILIES)}")
    model = completed(model)
    return family(megatron.padded(model, tensor) if family is megatron.sections else model)


def tensors(model: Model) -> tuple[Tensor, ...]:
    """Return every parameter in the order of ``model.parameters()``, a tied weight once.

    Raises NoRule for a bare count and BadInput for sizes that cannot be.
    """
    return tuple(tensor for section in sections(model) for tensor in section.expand())


def count(model: Model) -> int:
    """Return the number of parameters of the whole model."""
    if not model.family and model.count is not None:
        return model.count
    return sum(section.count * sum(tensor.numel for tensor in section.tensors) for section in sections(model))
