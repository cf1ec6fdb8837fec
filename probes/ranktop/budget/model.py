"""What a model is by its architecture: the few numbers of its config, and the tensors that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

LEARNED_POSITIONS: Final = ("gpt", "gpt2", "bert", "vit")
"""Families whose positions are a table of parameters: a sequence cannot be longer."""


class NoRule(Exception):
    """Raised when no rule covers what was asked; the text says what, as a reason to show."""


class BadInput(Exception):
    """Raised for what a user gave and cannot be meant; the text is one line: what is wrong and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Shape of a transformer, or only a number of parameters. Sizes are of the whole model, before any splitting."""

    name: str = ""
    """For people, e.g. ``llama-3-8b``."""
    family: str = ""
    """Key of the families' rules (``ranktop.budget.models``), e.g. ``llama``; empty for a bare count."""
    count: int | None = None
    """Number of parameters, for a model of which nothing else is known; else None."""
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    """Key/value heads (grouped-query attention); equal to ``heads`` without."""
    head_dim: int = 0
    ffn: int = 0
    """Width inside the feed-forward network."""
    vocab: int = 0
    positions: int = 0
    """Longest sequence that the model was made for; also the rows of learned position embeddings, where it has such."""
    tied: bool = False
    """The output head shares the token embedding's weight."""
    dropout: float = 0.0
    """Probability of dropout on hidden states and attention while training."""
    experts: int = 0
    """Routed experts per mixture-of-experts layer; 0 = dense."""
    experts_per_token: int = 0
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """What only some families have (decoder layers, q/k norms, pooler, patches, biases ...)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter of a model."""

    name: str
    """As ``named_parameters()`` of the reference implementation calls it."""
    shape: tuple[int, ...]
    layer: int | None = None
    """Index of its block, counted over all blocks; None outside of them."""
    role: str = ""
    """``embedding``, ``positions``, ``q``, ``k``, ``v``, ``qkv``, ``o``, ``gate``, ``up``, ``down``, ``norm``,
    ``bias``, ``router``, ``head`` or another word of its family."""
    split: int | None = None
    """Dimension that tensor parallel splits; None = whole on every rank."""
    expert: bool = False
    """Belongs to a routed expert: expert parallel deals these out."""
    first: bool = False
    """Lies on a pipeline's first stage (embeddings)."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)
