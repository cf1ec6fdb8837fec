"""Activations that a running job has shown, carried over to another batch, sequence, precision or layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ranktop.budget.activations.coefficients import Setting
from ranktop.budget.activations.saved import Activations
from ranktop.budget.activations.scaling import BY_CLOSED_FORM, closed
from ranktop.budget.model import Model, NoRule
from ranktop.budget.plan import Batch, Plan
from ranktop.budget.terms import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one rank of a job held on top of its states at the two moments around the loss, in bytes."""

    forward_end: int
    backward_start: int
    plan: Plan
    """The job's; its batch is that of the measurement."""
    layers: int

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return (self.plan.batch.micro_batch or 1) * (self.plan.batch.sequence_length or 1)


def measured(
    forward_end_bytes: int, backward_start_bytes: int | None, plan: Plan, layers: int, batch: int, sequence: int
) -> Measured:
    """Return a job's measurement as a source of activations: ``traced.activations_from`` takes it.

    Bytes are those of category ``activations`` at ``forward_end`` and ``backward_start`` (None = not read); ``batch``
    and ``sequence`` are one rank's micro-batch. Raises NoRule for what is no such measurement, or from a pipeline.
    """
    if min(forward_end_bytes, batch, sequence) <= 0:
        raise NoRule("no activations were measured yet")
    if plan.layout.pipeline > 1:
        raise NoRule("how many micro-batches a pipeline's stage holds cannot be told from one reading")
    most = max(forward_end_bytes, backward_start_bytes or 0)
    seen = replace(plan, batch=replace(plan.batch, micro_batch=batch, sequence_length=sequence))
    return Measured(forward_end=forward_end_bytes, backward_start=most, plan=seen, layers=layers)


def measured_activations(source: Measured, plan: Plan, model: Model | None) -> Activations:
    """Return a measurement's activations under another plan: closed forms x (measured / closed form), or per token.

    Exact under the measured plan; within 5 % where a closed form carries it over; a guess where only tokens do.
    """
    plan = replace(plan, batch=_batch(plan.batch, source.plan.batch))
    same = _shape(plan) == _shape(source.plan)
    if model is not None:
        here, there = closed(model, source.plan), closed(model, plan)
        if here is not None and there is not None and here.saved:
            ratio = source.backward_start / here.saved
            return _times(there, ratio, 0.0 if same else BY_CLOSED_FORM)
    return _per_token(source, plan, same)


def _batch(asked: Batch, seen: Batch) -> Batch:
    return replace(
        asked,
        micro_batch=asked.micro_batch or seen.micro_batch,
        sequence_length=asked.sequence_length or seen.sequence_length,
    )


def _shape(plan: Plan) -> tuple[object, ...]:
    """Return what activations depend on."""
    batch = (plan.batch.micro_batch, plan.batch.sequence_length)
    return (*batch, plan.checkpointing or "none", plan.checkpoint_every, plan.layout.context, Setting.of(plan))


def _times(form: Activations, ratio: float, within: float) -> Activations:
    sizes = ("layer", "blocks", "recomputed", "outside", "logits", "casts", "loss_forward", "loss_backward",
             "block_forward", "block_backward", "after")  # fmt: skip
    scaled = {name: round(getattr(form, name) * ratio) for name in sizes}
    # Tokens and the residual stream have the size that they have, whatever a kernel saves.
    scaled["outside"] += round(form.in_flight * form.inputs * (ratio - 1)) // max(1, form.in_flight)
    return replace(
        form,
        **scaled,
        within=within,
        rule=f"measured in this job: {ratio:.2f} x closed form ({form.rule})",
        parts=(),
        backward=tuple((round(alive * ratio), made) for alive, made in form.backward),
    )


def _per_token(source: Measured, plan: Plan, same: bool) -> Activations:
    told = replace(plan, batch=source.plan.batch)
    if _shape(told) != _shape(source.plan):
        raise NoRule("this model has no closed form, and the job runs with other checkpointing, precision or splitting")
    tokens = (plan.batch.micro_batch or 1) * (plan.batch.sequence_length or 1)
    blocks = source.forward_end * tokens // source.tokens
    logits = (source.backward_start - source.forward_end) * tokens // source.tokens
    return Activations(
        layers=source.layers,
        layer=blocks // max(1, source.layers),
        blocks=blocks,
        logits=logits,
        within=0.0 if same else None,
        rule=f"measured in this job: {source.backward_start / source.tokens:.0f} bytes per token",
        parts=(Part("activations, per token", blocks, False), Part("loss", logits, False)),
    )
