"""What Megatron-LM's own estimate says (megatron/training/theoretical_memory_usage.py), and where it is wrong.

As of commit d98e8a6: norms are whole on every tensor-parallel rank, experts are divided by expert parallel. Older
versions divide the former and not the latter. Not part of any budget: it stands beside ours where ours is explained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.activations.megatron import gated, rms_norm
from ranktop.budget.model import Model, NoRule
from ranktop.budget.models.section import dense_layers, size
from ranktop.budget.plan import Plan

WRONG: Final = (
    "biases and learned positions are left out of the parameters",
    "context parallel does not exist in it: activations are not divided, and the optimizer is split over dp alone",
    "full recomputation saves nothing; sequence parallel saves only together with selective recomputation",
    "the scores of unfused attention (5 a s^2 b / t bytes per layer) are left out always",
    "gated feed-forward networks, grouped keys and tokens routed to several experts all count like f = 4h and k = a",
    "logits: 2 bytes each (4 with sequence parallel) where 6 are alive around the loss, and none at all with pp > 1",
    "always the first stage; a stage with the head and its logits may need more",
    "fp32 copies of fp16 gradients, the libraries' workspaces (68 to 96 MiB) and stage inputs are left out",
    "5 % are added to activations without sequence parallel, whatever they are",
)
"""Against 115 published readings: states 18 % too low in the median, totals 37 % off in the median, 81 % at worst."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes of the most loaded rank, as the tool reports them."""

    states: float
    """``weight_and_optimizer_memory``."""
    activations: float

    @property
    def total(self) -> float:
        """The sum of both."""
        return self.states + self.activations


def estimate(model: Model, plan: Plan, *, distributed_optimizer: bool | None = None) -> Estimate:
    """Return Megatron-LM's own numbers; NoRule when the shape of the model or the batch is not known.

    ``distributed_optimizer``: None = the plan's (``layout.shard`` over 1). The vocabulary counts as it is given.
    """
    if not (model.layers and model.hidden and plan.batch.micro_batch and plan.batch.sequence_length):
        raise NoRule("Megatron's estimate needs the model's shape, the micro-batch and the sequence length")
    split = plan.layout.shard > 1 if distributed_optimizer is None else distributed_optimizer
    replicas, layout = plan.layout.data, plan.layout
    alone = max(1, replicas // layout.expert)
    shared, routed = _parameters(model, plan)
    states = shared * _per_parameter(split, replicas) + routed * _per_parameter(split, alone)
    sharded = bool(plan.sequence_parallel) and plan.checkpointing == "selective"
    return Estimate(states, _with_sharding(model, plan) if sharded else _without(model, plan))


def _per_parameter(split: bool, ranks: int) -> float:
    return 6 + 12 / ranks if split else 18.0


def _parameters(model: Model, plan: Plan) -> tuple[float, float]:
    """Return (parameters without routed experts, routed experts) of the most loaded rank."""
    h, layout, norm = model.hidden, plan.layout, 1 if rms_norm(model) else 2
    multiplier = 1.5 if gated(model) else 1
    query = (model.head_dim or h // model.heads) * model.heads / h
    attention = 2 * h * h * (1 + (model.kv_heads or model.heads) / model.heads) * query
    sparse = model.layers - len(dense_layers(model)) if model.experts else 0
    ffn = model.ffn or 4 * h
    mlps = (model.layers - sparse) * ffn + sparse * size(model, "shared_ffn")
    split = attention * model.layers + 2 * h * mlps * multiplier
    whole = norm * h * (2 * model.layers + 1) + sparse * h * model.experts
    embedding = h * model.vocab * (1 if model.tied or layout.pipeline > 1 else 2)
    shared = (split / layout.tensor + whole) / layout.pipeline + embedding / layout.tensor
    experts = sparse * 2 * h * (size(model, "expert_ffn") or ffn) * model.experts * multiplier
    return shared, experts / (layout.pipeline * layout.expert * layout.tensor)


def _in_pipeline(plan: Plan, activations: float) -> float:
    """Return the activations of all layers, times the share of them that is alive on the first stage."""
    stages, pipeline = plan.layout.pipeline, plan.pipeline
    if pipeline is not None and pipeline.virtual > 1:
        return activations * (1 + (stages - 1) / (stages * pipeline.virtual))
    if stages > 1:
        micro = pipeline.micro_batches if pipeline is not None else plan.batch.accumulation or stages
        return activations * min(1, micro / stages)
    return activations


def _tokens(plan: Plan) -> int:
    return (plan.batch.micro_batch or 0) * (plan.batch.sequence_length or 0)


def _with_sharding(model: Model, plan: Plan) -> float:
    """``compute_activation_memory``: (18 + 4 f/h) sbh per layer, everything over t."""
    n, h, stages = _tokens(plan), model.hidden, plan.layout.pipeline
    found = n * h * (18 + 4 * (model.ffn or 4 * h) / h) * model.layers
    found += 8 * n * stages + n * h * stages
    found = _in_pipeline(plan, found)
    if stages == 1:
        found += n * h * 4 * (1 + model.vocab / h)
    return found / plan.layout.tensor


def _without(model: Model, plan: Plan) -> float:
    """``compute_activation_memory_without_sp``: (10 + 24/t) sbh per layer, 16-bit logits, 5 % on top."""
    n, h, t, stages = _tokens(plan), model.hidden, plan.layout.tensor, plan.layout.pipeline
    found = n * h * (10 + 24 / t) * model.layers
    found += 8 * n * stages + n * h * stages
    found = _in_pipeline(plan, found)
    if stages == 1:
        found += 2 * (n * model.vocab / t + n * h)
    return found * 1.05
