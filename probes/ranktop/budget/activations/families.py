"""Which file speaks for a family of models."""

from __future__ import annotations

from typing import Final

from ranktop.budget.activations import gpt, gpt2, llama
from ranktop.budget.activations.family import Family
from ranktop.budget.model import NoRule

FAMILIES: Final[dict[str, Family]] = {
    "gpt": Family(before=gpt.before, block=gpt.block, after=gpt.after, rule="reference GPT"),
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
}
"""Family -> its operations."""


def find(name: str) -> Family:
    """Return a family; NoRule when it has no closed form."""
    family = FAMILIES.get(name)
    if family is None:
        what = f"the family '{name}'" if name else "a bare number of parameters"
        raise NoRule(f"no closed form for the activations of {what}")
    return family
