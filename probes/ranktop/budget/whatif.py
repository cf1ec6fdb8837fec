"""A running job as the planner's question: its own strategy by name, and what was measured carried into the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ranktop.budget.activations.measured import Measured, measured, measured_activations
from ranktop.budget.activations.saved import Activations
from ranktop.budget.inventory import Inventory
from ranktop.budget.live import Live, live_budget, understand
from ranktop.budget.model import Model, NoRule
from ranktop.budget.naming import precision_name
from ranktop.budget.plan import Plan
from ranktop.budget.run import Run
from ranktop.budget.terms import Amount, Memory, Part

TRUSTED: Final = 0.02
"""A measurement so close to the closed form is taken as its confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One rank's card with what it measured."""

    inventory: Inventory
    plan: Plan
    name: str = ""
    """Class of the model."""
    moments: Mapping[str, Memory]
    """moment -> bytes, of the last finished step; empty before the first."""
    total: int | None = None
    """Bytes of the device."""


def as_run(job: Job, *, runtime: int | None = None) -> Run:
    """Return the run that a job is; ``runtime`` are measured bytes of the process beside its tensors."""
    plan = job.plan
    found = understand(job.inventory, plan, job.name)
    model = found.model or Model(name=job.name or "model", count=job.inventory.numel)
    layout = plan.layout
    split = layout.tensor > 1 or layout.pipeline > 1
    return Run(
        model=model,
        world_size=layout.world_size,
        tensor=layout.tensor if layout.tensor > 1 else None,
        pipeline=layout.pipeline if layout.pipeline > 1 else None,
        data=layout.data if split else None,
        context=layout.context,
        expert=layout.expert,
        gpus_per_node=layout.shard if layout.replicate > 1 < layout.shard else 8,
        precision=precision_name(plan),
        optimizer=plan.optimizer,
        micro_batch=plan.batch.micro_batch or 1,
        sequence_length=plan.batch.sequence_length or 0,
        accumulation=plan.batch.accumulation or 1,
        checkpointing=plan.checkpointing or "none",
        checkpoint_every=plan.checkpoint_every,
        attention=plan.attention,
        loss=plan.loss,
        sequence_parallel=plan.sequence_parallel,
        lora=plan.lora,
        zero=plan.zero,
        fsdp=plan.fsdp,
        ddp=plan.ddp,
        device_memory=job.total,
        host=plan.host,
        activations=_source(job, found),
        inventory=None if found.model is not None else job.inventory,
        runtime=None if runtime is None else _measured_runtime(runtime),
        running=plan,
    )


def _measured_runtime(size: int) -> Amount:
    parts = (Part("context and libraries, as measured in this job", size),)
    return Amount(size, "measured in this job", parts=parts)


class _Projected:
    """Activations of other plans from this job's: the closed form times what the job measured of it."""

    def __init__(self, job: Job, found: Activations, ratio: float) -> None:
        self.close = abs(ratio - 1) <= TRUSTED
        saved = round(found.saved * ratio)
        self.source = Measured(forward_end=saved, backward_start=saved, plan=job.plan, layers=found.layers)

    def __call__(self, model: Model, plan: Plan) -> Activations:
        if self.close:
            from ranktop.budget.activations.closed import activations

            return activations(model, plan)
        return measured_activations(self.source, plan, model)


class _PerToken:
    """Activations of other plans from this job's bytes per token: all that is known of an unknown architecture."""

    def __init__(self, job: Job, why: str) -> None:
        self.job, self.why = job, why

    def __call__(self, model: Model, plan: Plan) -> Activations:
        job, batch = self.job, self.job.plan.batch
        end, start = job.moments.get("forward_end"), job.moments.get("backward_start")
        if end is None or end.activations is None or batch.micro_batch is None:
            raise NoRule(f"{self.why}, and no step of it has been measured yet")
        layers = max(1, len(job.inventory.units()) - 1)
        source = measured(
            end.activations,
            start.activations if start is not None else None,
            job.plan,
            layers,
            batch.micro_batch,
            batch.sequence_length or 1,
        )
        return measured_activations(source, plan, None)


def _source(job: Job, found: Live) -> _Projected | _PerToken | None:
    if found.activations is not None:
        return _Projected(job, found.activations, ratio(job, found)) if job.moments else None
    return _PerToken(job, found.reason)


def ratio(job: Job, found: Live) -> float:
    """Return measured / expected activations at the end of forward; 1 when either is unknown.

    Expected as the measured side sees them: gathered parameters and held outputs are in both.
    """
    memory = job.moments.get("forward_end")
    if memory is None or not memory.activations or found.activations is None:
        return 1.0
    amount = live_budget(job.inventory, job.plan, job.name).at("forward_end").get("activations")
    if amount is None or not amount.bytes:
        return 1.0
    beside = amount.bytes - found.activations.saved
    saved = memory.activations - beside
    near = abs(memory.activations - amount.bytes) <= amount.slack
    return 1.0 if near or saved <= 0 else saved / found.activations.saved
