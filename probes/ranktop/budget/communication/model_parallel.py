"""What tensor, sequence, pipeline, context and expert parallel send for one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.collective import Collective
from ranktop.budget.communication.step import Step
from ranktop.budget.model import Model
from ranktop.budget.models.stages import V_SHAPED, chunks_of

_LOSS_REDUCTIONS: Final = 3
"""Maximum, sum of exponentials and the label's logit, each one fp32 number a token."""


def tensor_parallel(step: Step, model: Model, tokens: int) -> Iterator[Collective]:
    """One reduction of the residual stream per pass behind every attention and every MLP.

    With sequence parallel an all-reduce becomes a reduce-scatter and an all-gather of the same full size; Megatron
    gathers the inputs of its matrices once more in backward instead of keeping them. Full checkpointing repeats the
    forward's: Megatron all of them, torch (which stops once everything that was saved is back) not the last. Embedding
    and head add one each, the loss over a split vocabulary three small ones. Sources: Megatron-LM
    core/tensor_parallel/{layers,mappings,cross_entropy}.py, torch/distributed/tensor/parallel/{style,loss}.py.
    """
    plan = step.plan
    t, m = plan.layout.tensor, step.micro_steps
    stream = tokens * model.hidden * step.compute_item
    first, last = (end and model.vocab > 0 for end in step.ends)
    megatron = plan.stack == "megatron" or plan.sequence_parallel == "megatron"
    rule = f"{'Megatron' if megatron else 'DTensor'}: one reduction behind each row-parallel matrix"
    halves = step.row_parallel
    again = halves if plan.checkpointing == "full" else 0
    reduced_again = again if megatron or not again else again - step.layers
    if not plan.sequence_parallel:
        for phase, calls, what in (
            ("forward", halves + first, "outputs of attention and MLP"),
            ("backward", halves + last + reduced_again, "gradients of their inputs"),
        ):
            yield Collective(kind="all_reduce", group=t, bytes=m * calls * stream, calls=m * calls, axis="tensor",
                             phase=phase, what=what, rule=rule)  # fmt: skip
    else:
        regathered = halves + last if plan.sequence_parallel == "megatron" else 0
        for kind, phase, calls, what in (
            ("all_gather", "forward", halves + last, "inputs of attention and MLP, from parts of the sequence"),
            ("reduce_scatter", "forward", halves + first, "outputs of attention and MLP, to parts of the sequence"),
            ("all_gather", "backward", halves + first + again + regathered, "gradients and inputs, whole again"),
            ("reduce_scatter", "backward", halves + last + reduced_again, "gradients of the inputs, in parts"),
        ):
            yield Collective(kind=kind, group=t, bytes=m * calls * stream, calls=m * calls, axis="tensor",
                             phase=phase, what=what, rule=rule)  # fmt: skip
        yield from _replicated_gradients(step)
    if last and plan.loss != "none":
        calls = m * _LOSS_REDUCTIONS
        yield Collective(kind="all_reduce", group=t, bytes=calls * tokens * 4, calls=calls, axis="tensor",
                         phase="forward", what="loss over the split vocabulary",
                         rule="vocabulary-parallel cross entropy")  # fmt: skip


def _replicated_gradients(step: Step) -> Iterator[Collective]:
    """Gradients of what every tensor-parallel rank holds whole, though each saw a part of the sequence."""
    plan = step.plan
    whole = [(k, count) for k, count in step.kinds if k.trainable and k.tensor_parallel == "R"]
    yield Collective(
        kind="all_reduce", group=plan.layout.tensor,
        bytes=sum(k.numel * count * step.gradient_item(k) for k, count in whole),
        calls=1 if plan.sequence_parallel == "megatron" else sum(count for _, count in whole), axis="tensor",
        phase="optimizer", what="gradients of norms and biases, from all parts of the sequence",
        rule="sequence parallel: Megatron-LM core/distributed/finalize_model_grads.py, DTensor's Partial gradients",
    )  # fmt: skip


def pipeline(step: Step, model: Model, tokens: int) -> Iterator[Collective]:
    """One activation to the next stage in forward, one gradient to the previous in backward, per micro-batch and chunk.

    What this rank sends. Megatron with sequence parallel sends a part of the sequence. Source: Megatron-LM
    core/pipeline_parallel/schedules.py, torch/distributed/pipelining/stage.py.
    """
    plan = step.plan
    stages, m = plan.layout.pipeline, step.micro_steps
    chunks, total = chunks_of(plan)
    size = tokens * model.hidden * step.stream_item // (plan.layout.tensor if plan.sequence_parallel else 1)
    folded = plan.pipeline is not None and plan.pipeline.schedule in V_SHAPED
    for phase, ahead, what in (
        ("forward", 1, "block outputs, to the next stage"),
        ("backward", -1, "their gradients, to the previous stage"),
    ):
        calls = m * sum(
            0 <= chunk + ahead < total and _owner(chunk + ahead, stages, folded) != plan.layout.pipeline_rank
            for chunk in chunks
        )
        yield Collective(kind="p2p", group=2, bytes=calls * size, calls=calls, axis="pipeline", phase=phase, what=what,
                         rule="pipeline: one message per boundary and micro-batch")  # fmt: skip
    if model.tied and any(step.ends) and not all(step.ends) and model.vocab:
        numel = -(-model.vocab // plan.layout.tensor) * model.hidden
        item = next((step.gradient_item(k) for k, _ in step.kinds), 4)
        yield Collective(kind="all_reduce", group=2, bytes=numel * item, axis="pipeline", phase="optimizer",
                         what="gradient of the tied embedding, between first and last stage",
                         rule="Megatron-LM core/distributed/finalize_model_grads.py")  # fmt: skip


def _owner(chunk: int, stages: int, folded: bool) -> int:
    return 2 * stages - 1 - chunk if folded and chunk >= stages else chunk % stages


def context(step: Step, model: Model, tokens: int) -> Iterator[Collective]:
    """Ring attention: keys and values go once around in forward, they and their gradients in backward.

    What this rank sends, c - 1 hops of its share each; bytes are of what goes around. Source: TransformerEngine
    attention with ``cp_comm_type`` p2p; torch/distributed/tensor/experimental/_attention.py.
    """
    plan = step.plan
    c, m, layers = plan.layout.context, step.micro_steps, step.layers
    width = (model.kv_heads or model.heads) * (model.head_dim or model.hidden // max(1, model.heads))
    share = 2 * tokens * -(-width // plan.layout.tensor) * step.compute_item
    rule = "ring attention: 2 s b k d per block forward, twice that backward"
    for phase, times, what in (
        ("forward", 1, "keys and values, around the ring"),
        ("backward", 2, "keys, values and their gradients, around the ring"),
    ):
        calls = m * layers * times * (c - 1)
        yield Collective(kind="p2p", group=c, bytes=calls * share, calls=calls, axis="context", phase=phase, what=what,
                         rule=rule, within=0.05)  # fmt: skip


def expert(step: Step, model: Model, tokens: int) -> Iterator[Collective]:
    """Tokens to their experts and back, in forward and again in backward, with balanced routing.

    Source: Megatron-LM core/transformer/moe/token_dispatcher.py.
    """
    plan = step.plan
    calls = 2 * step.expert_layers * step.micro_steps
    parts = plan.layout.tensor if plan.sequence_parallel else 1
    size = max(1, model.experts_per_token) * tokens * model.hidden * step.compute_item // parts
    for phase, what in (("forward", "tokens to their experts and back"), ("backward", "their gradients")):
        yield Collective(kind="all_to_all", group=plan.layout.expert, bytes=calls * size, calls=calls, axis="expert",
                         phase=phase, what=what, rule="expert parallel: balanced routing", within=None)  # fmt: skip
