"""DeepSpeed ZeRO over a whole step: states, gathered parameters, buckets, copies and activations at every moment.

Source: DeepSpeed 0.19.8. States at the moments are those of ``ranktop.budget.zero.states``; what backward, the
optimizer's step, loading and saving add is followed hook by hook, so that a peak names what made it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any

from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import NO_ACTIVATIONS, Point, amount, parts, saved_parts
from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, STATES_AT, Amount, Part
from ranktop.budget.zero import step as zero_step
from ranktop.budget.zero.backward import Backward, between_micro_batches
from ranktop.budget.zero.job import IN_FORWARD, Found, Job, Layout
from ranktop.budget.zero.offload import off_device as _off_device
from ranktop.budget.zero.offload import staging
from ranktop.budget.zero.progress import NOTHING
from ranktop.budget.zero.sharded import Sharded, bucket
from ranktop.budget.zero.states import layout_of, options_of, uncovered

Table = dict[str, dict[str, Amount]]


def moments(inventory: Inventory, plan: Plan, activations: Activations | None, first_step: bool = False) -> Table:
    """Return moment -> category -> bytes of one rank, for ALL_MOMENTS and every budgeted category but ``runtime``.

    With ``Plan.host`` the device is the machine's RAM: what is offloaded to the host counts there.
    """
    return Rank(inventory, plan, first_step).moments(activations)


def off_device(inventory: Inventory, plan: Plan) -> tuple[Amount, Amount]:
    """Return what one rank keeps in the host's memory and on NVMe because of offloading, buffers included."""
    return Rank(inventory, plan, first_step=False).off_device


class Rank:
    """One rank, worked out for any activations and any micro-batch: only the first of these takes long."""

    def __init__(self, inventory: Inventory, plan: Plan, first_step: bool, like: Rank | None = None) -> None:
        """``like``: another rank of the same sharding group, under the same plan."""
        options = options_of(plan)
        self.reason = uncovered(plan, options)
        self._step: _Step | None = None
        if self.reason is None:
            same = like._step if like is not None else None
            job = same.job.of_rank(plan) if same is not None else Job(inventory, plan, options, first_step)
            self._step = _Step(job)

    def moments(self, activations: Activations | None) -> Table:
        """Return ``moments`` with these activations."""
        if self._step is None:
            unknown = Amount(None, self.reason or "")
            return {moment: {name: unknown for name in BUDGETED if name != "runtime"} for moment in ALL_MOMENTS}
        return self._step.with_activations(activations).table()

    @cached_property
    def off_device(self) -> tuple[Amount, Amount]:
        """What is kept in the host's memory, and on NVMe."""
        if self._step is None:
            unknown = Amount(None, self.reason or "")
            return unknown, unknown
        layout = self._step.layout
        if layout.job.first_step:
            layout = copy(layout)
            layout.job = copy(layout.job)
            layout.job.first_step = False
        return _off_device(layout.job, layout)


def between(inventory: Inventory, plan: Plan) -> dict[str, Amount]:
    """Return the states and buffers after ``engine.backward`` and before ``engine.step``, which is no moment of ours.

    Only there stages 1 and 2 hold gradients as they were reduced; in the step they become those of the masters.
    """
    options = options_of(plan)
    job = Job(inventory, plan, options, first_step=False)
    step = _Step(job)
    found = dict(step.states("forward_end"))
    gradients = zero_step.after_backward(job, step.layout)
    found["gradients"] = Amount(gradients, "gradients as backward has left them")
    found["buffers"] = amount(step.fixed + step.bucket, "buffers that stay")
    return found


class _Step:
    """One rank's amounts at every moment."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.layout: Layout = layout_of(job)
        self.made = copy(self.layout)
        """The same before any step."""
        self.made.job = copy(job)
        self.made.job.first_step = True
        self.known: Activations | None = None
        self.alive = NOTHING
        self.fixed: tuple[Part, ...] = _module_buffers(job) + staging(job)
        self.bucket = bucket(job) if job.options.stage == 3 else ()
        self.waiting = between_micro_batches(job)
        self._once: dict[str, Any] = {}
        """What activations make no difference to; shared by all ``with_activations``."""

    def with_activations(self, activations: Activations | None) -> _Step:
        """Return the same step with these activations."""
        found = copy(self)
        found.known = activations
        found.alive = activations if activations is not None else NOTHING
        return found

    def once(self, name: str, work: Callable[[], Found]) -> Found:
        """Return what activations make no difference to, worked out when first asked for."""
        known = self._once
        if name not in known:
            known[name] = work()
        found: Found = known[name]
        return found

    @property
    def sharded(self) -> Sharded | None:
        """What stage 3 gathers and reduces; None under the others."""
        if self.job.options.stage != 3:
            return None
        return self.once("sharded", lambda: Sharded(self.job, self._kept(), self.fixed))

    def table(self) -> Table:
        """Return every moment's amounts."""
        job, layout, sharded, alive = self.job, self.layout, self.sharded, self.alive
        stretches: dict[str, Callable[[], Point]] = {
            "load": lambda: self.once("load", lambda: zero_step.load(job, self.made)),
            "forward": lambda: sharded.forward(alive) if sharded else self._forward(),
            "backward": lambda: sharded.backward(alive) if sharded else self._backward(),
            "optimizer_step": lambda: self.once("step", lambda: zero_step.step(job, layout)),
            "checkpoint_save": lambda: self.once("save", lambda: zero_step.save(job, layout)),
        }
        between_passes = sharded.between() if sharded else self.waiting
        found: Table = {}
        for moment in ALL_MOMENTS:
            if moment in stretches:
                found[moment] = self._stretch(moment, stretches[moment]())
            else:
                found[moment] = self._moment(moment, between_passes if moment in IN_FORWARD else ())
        return found

    def states(self, moment: str) -> dict[str, Amount]:
        """Return parameters, gradients and optimizer at a moment."""
        return self.once(f"states at {moment}", lambda: self._states(moment, self.layout))

    @staticmethod
    def _states(moment: str, layout: Layout) -> dict[str, Amount]:
        return {
            "parameters": layout.parameters(moment),
            "gradients": layout.gradients(moment),
            "optimizer": layout.optimizer(moment),
        }

    def _kept(self) -> int:
        """Bytes of gradients that exist before the last backward of a step."""
        return self.states("backward_start")["gradients"].bytes or 0

    def _forward(self) -> Point:
        loss = saved_parts(self.alive) + parts(("temporaries of the loss", self.alive.loss_forward))
        return Point("loss, in forward", loss, self.fixed + self.waiting, self._kept())

    def _backward(self) -> Point:
        walked = self.once("backward", lambda: Backward(self.job, self.layout, self._kept(), self.fixed))
        return walked.highest(self.alive)

    def _moment(self, moment: str, whole: tuple[Part, ...]) -> dict[str, Amount]:
        alive = self.known
        rule = f"ZeRO-{self.job.options.stage}"
        if moment in IN_FORWARD:
            activations = Amount(None, NO_ACTIVATIONS)
            if alive is not None:
                activations = amount(saved_parts(alive), alive.rule, alive.within)
        else:
            inputs = parts(("inputs", self.alive.inputs))
            activations = amount(inputs, "tokens and labels of the micro-batch")
        buffers = amount(self.fixed + self.bucket + whole, f"{rule}: buffers that stay, parameters that are gathered")
        return {**self.states(moment), "activations": activations, "buffers": buffers}

    def _stretch(self, moment: str, point: Point) -> dict[str, Amount]:
        found = dict(self.states(STATES_AT[moment]))
        if moment == "load":
            found = dict(self.once("made", lambda: self._states(STATES_AT[moment], self.made)))
        rule = f"ZeRO-{self.job.options.stage}: highest point: {point.name}"
        own: tuple[Part, ...] = ()
        if moment == "load":
            own = self.fixed
        elif moment in ("optimizer_step", "checkpoint_save"):
            own = self.fixed + self.bucket
        gradients = found["gradients"]
        if moment != "checkpoint_save" and gradients.bytes != point.gradients:
            gradients = Amount(point.gradients, f"made by then ({point.name})")
        if moment == "optimizer_step":
            found["optimizer"] = self.states("step_end")["optimizer"]
        return {
            **found,
            "gradients": gradients,
            "activations": self._activations(moment, point, rule),
            "buffers": amount(own + point.buffers, rule, self._within(moment)),
        }

    def _activations(self, moment: str, point: Point, rule: str) -> Amount:
        if moment in ("forward", "backward") and self.known is None:
            return Amount(None, NO_ACTIVATIONS)
        within = self.known.within if self.known is not None and moment in ("forward", "backward") else 0.0
        inputs = parts(("inputs", self.alive.inputs)) if moment == "optimizer_step" else ()
        return amount(inputs + point.activations, rule, within)

    def _within(self, moment: str) -> float:
        """Relative error: as measured on the host; on a GPU streams delay when memory is free (``record_stream``)."""
        options = self.job.options
        if moment not in ("forward", "backward"):
            return 0.01
        return 0.25 if not self.job.plan.host and (options.stage == 3 or options.overlap_comm) else 0.02


def _module_buffers(job: Job) -> tuple[Part, ...]:
    return (Part("module buffers", job.buffer_bytes),) if job.buffer_bytes else ()
