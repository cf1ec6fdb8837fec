"""The whole budget of one rank: states, activations, buffers and runtime at every moment of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ranktop.budget import buffers, megatron, states
from ranktop.budget import runtime as processes
from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import NO_ACTIVATIONS, Point, amount, highest, parts, saved_parts
from ranktop.budget.held import Held, turns
from ranktop.budget.inventory import Inventory
from ranktop.budget.job import Job
from ranktop.budget.optimizers import step as optimizer_step
from ranktop.budget.plan import Plan
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, MOMENTS, STATES, STATES_AT, Amount, Budget, Part

if TYPE_CHECKING:
    from ranktop.budget.zero import moments as zero_moments


def expected(
    inventory: Inventory,
    plan: Plan,
    activations: Activations | None,
    *,
    first_step: bool = False,
    runtime: Amount | None = None,
) -> Budget:
    """Return what one rank should hold, for every moment of ALL_MOMENTS and every category of BUDGETED.

    Forward, backward and the optimizer's step are each at their highest point. ``first_step``: the optimizer has no
    state before its step. ``runtime``: measured bytes of the process beside its tensors, instead of the guess.
    A category without a rule has no bytes and says why.
    """
    return Rank(inventory, plan, first_step=first_step).budget(activations, runtime)


class Rank:
    """One rank under a plan, ready to tell its budget for any activations: what they change is worked out each time."""

    def __init__(self, inventory: Inventory, plan: Plan, *, first_step: bool = False, like: Rank | None = None) -> None:
        """``like``: a rank of the same sharding group with the same parameters, under the same plan."""
        self.inventory, self.plan, self.first_step = inventory, plan, first_step
        self._zero: zero_moments.Rank | None = None
        self._job: Job | None = None
        if plan.zero is not None:
            from ranktop.budget.zero import moments as zero_moments

            self._zero = zero_moments.Rank(inventory, plan, first_step, like._zero if like is not None else None)
        elif plan.stack != "megatron" or plan.fsdp is not None:
            plan = habits(plan)
            held = states.held_of(inventory, plan)
            self._job = Job(inventory, plan, held, None, first_step) if held is not None else None

    def budget(self, activations: Activations | None, runtime: Amount | None = None) -> Budget:
        """Return what the rank should hold with these activations, as ``expected`` does."""
        own = processes.runtime(self.plan) if runtime is None else runtime
        if self._zero is not None:
            return _deepspeed(self._zero, activations, own)
        if self._job is not None:
            # The next one takes over what this one works out.
            job = self._job = self._job.with_activations(activations)
            moments = {moment: {**_moment(job, moment), "runtime": own} for moment in ALL_MOMENTS}
            return Budget(moments, host=buffers.host(job))
        if self.plan.stack == "megatron" and self.plan.fsdp is None:
            found = megatron.moments(self.inventory, self.plan, activations, self.first_step)
            return Budget({moment: {**table, "runtime": own} for moment, table in found.items()})
        unknown = Amount(None, f"no rule for the strategy {self.plan.strategy!r}")
        return Budget({moment: {**dict.fromkeys(BUDGETED, unknown), "runtime": own} for moment in ALL_MOMENTS})


def habits(plan: Plan) -> Plan:
    """Return the plan with the gradients of earlier micro-batches alive where there are such.

    What a running pipeline's plan says was seen: all forwards of GPipe end before its first backward begins.
    """
    if plan.layout.pipeline > 1 and plan.pipeline is None:
        return plan
    micro = max(plan.batch.accumulation or 1, plan.pipeline.micro_batches if plan.pipeline else 1)
    if micro > 1:
        return replace(plan, gradients_at=tuple({**dict.fromkeys(plan.gradients_at), **dict.fromkeys(MOMENTS[1:])}))
    return plan


def _moment(job: Job, moment: str) -> dict[str, Amount]:
    if moment in MOMENTS:
        return _at_moment(job, moment)
    if moment == "forward":
        return _highest(job, moment, buffers.forward(job))
    if moment == "backward":
        return _highest(job, moment, buffers.backward(job))
    if moment == "optimizer_step":
        return _step(job)
    return _outside(job, moment)


def _states(job: Job, moment: str) -> dict[str, Amount]:
    return states.at(STATES_AT.get(moment, moment), job.held, job.plan, job.first_step)


def _at_moment(job: Job, moment: str) -> dict[str, Amount]:
    """One of MOMENTS: the host reads the counters, no kernel of forward or backward is under way."""
    found = _states(job, moment)
    size = found["gradients"].bytes or 0
    alive = job.activations
    if alive is None:
        activations = Amount(None, NO_ACTIVATIONS)
    elif moment in ("forward_end", "backward_start"):
        activations = amount(saved_parts(alive), alive.rule, alive.within)
    else:
        activations = amount(parts(("inputs", alive.inputs)), "tokens and labels of the micro-batch")
    return {
        **buffers.adjust(job, moment, found),
        "activations": _rounded(job, activations, size, moment == "step_end" or not job.first_step),
        "buffers": buffers.at(job, moment, size),
    }


def _rounded(job: Job, found: Amount, gradients: int, stepped: bool) -> Amount:
    """Add what the allocator adds to the states' tensors: live, it counts as activations."""
    if found.bytes is None:
        return found
    more = job.rounding(gradients, stepped)
    return replace(
        found, bytes=found.bytes + more, parts=found.parts + parts(("rounding to the allocator's blocks", more))
    )


def _highest(job: Job, moment: str, points: list[Point]) -> dict[str, Amount]:
    found = _states(job, moment)
    best = highest(points)
    alive = job.activations
    rule = f"highest point: {best.name}"
    activations = Amount(None, NO_ACTIVATIONS)
    if alive is not None:
        activations = amount(best.activations, f"{rule}; {alive.rule}", alive.within)
    gradients = replace(found["gradients"], bytes=best.gradients, slack=0, rule=f"made by then ({best.name})")
    if best.gradients == (job.held.gradients.bytes or 0):
        gradients = job.held.gradients
    return {
        **buffers.adjust(job, moment, {**found, "gradients": gradients}),
        "activations": _rounded(job, activations, best.gradients, not job.first_step),
        "buffers": amount(best.buffers, rule, job.buffers_within),
    }


def _step(job: Job) -> dict[str, Amount]:
    """The optimizer's step: all gradients, its state (made first thing in the first step), its temporaries."""
    found = _states(job, "optimizer_step")
    held = job.held
    temporaries = optimizer_step.temporaries(held.pieces, job.plan, turns(job.inventory, held.pieces))
    alive = job.activations
    gradients = found["gradients"]
    size = gradients.bytes or 0
    if held.copied:
        gradients = _with_copies(gradients, held)
    inputs = parts(("inputs", alive.inputs if alive is not None else 0))
    extra = temporaries.parts
    within = temporaries.within
    return {
        **buffers.adjust(job, "optimizer_step", {**found, "gradients": gradients, "optimizer": held.optimizer}),
        "activations": _rounded(job, amount(inputs + extra, temporaries.rule, within), size, True),
        "buffers": buffers.at(job, "optimizer_step", size),
    }


def _with_copies(gradients: Amount, held: Held) -> Amount:
    """Return the gradients with those of the master copies, in the masters' dtype beside the low-precision ones."""
    known = gradients.bytes or 0
    pieces = (Part("gradients", known), Part("gradients of the master copies", held.copied))
    rule = f"{gradients.rule.partition(';')[0]}, and copies for the masters"
    return Amount(known + held.copied, rule, within=gradients.within, parts=pieces)


def _outside(job: Job, moment: str) -> dict[str, Amount]:
    """Loading and saving: no activations, and what moving whole tensors takes."""
    found = _states(job, moment)
    none = Amount(0, "nothing runs forward or backward")
    if moment == "load":
        found = {**found, "gradients": Amount(0, "no gradients yet"), "optimizer": job.held.optimizer_before}
    size = found["gradients"].bytes or 0
    return {**buffers.adjust(job, moment, found), "activations": none, "buffers": buffers.at(job, moment, size)}


def _deepspeed(rank: zero_moments.Rank, activations: Activations | None, own: Amount) -> Budget:
    """Ask the rules of ZeRO; where they do not speak for a category, say so."""
    found = rank.moments(activations)
    silent = Amount(None, "no rule for this moment of DeepSpeed")
    moments = {
        moment: {**dict.fromkeys((*STATES, "activations", "buffers"), silent), "runtime": own, **found.get(moment, {})}
        for moment in ALL_MOMENTS
    }
    host, nvme = rank.off_device
    return Budget(moments, host=host, nvme=nvme)
