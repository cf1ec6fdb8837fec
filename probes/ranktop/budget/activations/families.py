"""Which file speaks for a family of models."""

from __future__ import annotations

from typing import Final

from ranktop.budget.activations import bert, gpt, gpt2, llama, t5
from ranktop.budget.activations.family import Family
from ranktop.budget.model import Model, NoRule
from ranktop.budget.models.section import size, word


def _columns(model: Model) -> int:
    """Columns of the logits of a model with a task's head on top."""
    head = word(model, "head", "lm")
    if head in ("lm", "mlm", "pretraining"):
        return model.vocab
    return 0 if head == "none" else size(model, "labels", 2)


FAMILIES: Final[dict[str, Family]] = {
    "gpt": Family(before=gpt.before, block=gpt.block, after=gpt.after, rule="a GPT like nanoGPT"),
    "llama": Family(
        before=llama.before,
        block=llama.block,
        after=llama.after,
        tables=llama.tables,
        kinds=llama.kinds,
        rule="Llama-like decoders of transformers 5.24",
    ),
    "gpt2": Family(
        before=gpt2.before_gpt2,
        tables=lambda tape, shape, x: llama.arguments(tape, shape, x, positions=False),
        block=gpt2.block_gpt2,
        after=gpt2.after,
        rule="GPT-2 of transformers 5.24",
    ),
    "gpt-neox": Family(
        before=gpt2.before,
        block=gpt2.block_neox,
        after=gpt2.after,
        tables=lambda tape, shape, x: llama.tables(tape, shape, x, 0.25),
        rule="GPT-NeoX of transformers 5.24",
    ),
    "bert": Family(
        before=bert.before,
        block=bert.block,
        after=bert.after,
        upcasts=False,
        columns=_columns,
        rule="BERT of transformers 5.24",
    ),
    "vit": Family(
        before=bert.before_vit,
        block=bert.block_vit,
        after=bert.after_vit,
        upcasts=False,
        columns=lambda model: size(model, "labels", 2),
        rule="ViT of transformers 5.24",
    ),
    "t5": Family(
        before=t5.before,
        block=t5.block,
        after=t5.after,
        tables=t5.tables,
        kinds=t5.kinds,
        upcasts=False,
        within=0.1,
        rule="T5 of transformers 5.24",
    ),
}
"""Family -> its operations."""


def find(name: str) -> Family:
    """Return a family; NoRule when it has no closed form."""
    family = FAMILIES.get(name)
    if family is None:
        what = f"the family '{name}'" if name else "a bare number of parameters"
        raise NoRule(f"no closed form for the activations of {what}")
    return family
