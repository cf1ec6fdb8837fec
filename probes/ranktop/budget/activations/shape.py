"""What one rank computes on: sizes after tensor, sequence and context splitting, and bytes per element."""

from __future__ import annotations

from dataclasses import dataclass

from ranktop.budget.model import Model, NoRule
from ranktop.budget.models.section import flag
from ranktop.budget.plan import Lora, Plan
from ranktop.budget.terms import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one micro-batch on one rank, and what was chosen for its layers."""

    model: Model
    batch: int
    sequence: int
    """Tokens per sample on this rank (context parallel deals them out)."""
    hidden: int
    heads: int
    """Query heads on this rank."""
    kv_heads: int
    head_dim: int
    ffn: int
    """Width inside the feed-forward network on this rank."""
    tensor: int
    width: int
    """Bytes per element of the parameters as the blocks see them (FSDP's compute dtype where there is one)."""
    dropout: float
    attention_dropout: float
    attention: str
    gathered: str
    """``Plan.sequence_parallel``: how the sequence is split between tensor-parallel ranks outside of matrices."""
    lora: Lora | None
    experts: int
    """Expert-parallel ranks."""
    checkpointed: bool
    cache: bool
    """A key/value cache is filled in forward and lives as long as the output object."""

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.batch * self.sequence

    @property
    def query(self) -> int:
        """Columns of the query projection on this rank."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Columns of the key projection on this rank, and of the value projection."""
        return self.kv_heads * self.head_dim

    @property
    def trainable(self) -> bool:
        """Whether the base model's own weights get gradients."""
        return self.lora is None


def local(model: Model, plan: Plan) -> Shape:
    """Return the sizes on the rank that the plan names; NoRule when one is not known."""
    batch, sequence = plan.batch.micro_batch, plan.batch.sequence_length
    if not model.hidden or not model.layers:
        raise NoRule("activations need the model's shape, and only its number of parameters is known")
    if not batch or not sequence:
        raise NoRule("activations need the micro-batch and the sequence length")
    tensor = plan.layout.tensor
    heads = model.heads or 1
    kv_heads = model.kv_heads or heads
    return Shape(
        model=model,
        batch=batch,
        sequence=-(-sequence // plan.layout.context),
        hidden=model.hidden,
        heads=-(-heads // tensor),
        kv_heads=-(-kv_heads // tensor),
        head_dim=model.head_dim or model.hidden // heads,
        ffn=-(-(model.ffn or 4 * model.hidden) // tensor),
        tensor=tensor,
        width=DTYPE_BYTES[plan.precision.compute or plan.precision.parameters],
        dropout=model.dropout,
        attention_dropout=float(model.options.get("attention_dropout", model.dropout)),
        attention=plan.attention,
        gathered=plan.sequence_parallel if tensor > 1 else "",
        lora=plan.lora,
        experts=plan.layout.expert,
        checkpointed=(plan.checkpointing or "none") != "none",
        cache=flag(model, "use_cache") and (plan.checkpointing or "none") == "none",
    )
