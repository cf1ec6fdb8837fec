"""DeepSpeed ZeRO over a whole step: states, gathered parameters, buckets, copies and activations at every moment.

Source: DeepSpeed 0.19.8. States at the moments are those of ``ranktop.budget.zero.states``; what backward, the
optimizer's step, loading and saving add is followed hook by hook, so that a peak names what made it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import NO_ACTIVATIONS, Point, amount, parts, saved_parts
from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, STATES_AT, Amount, Part
from ranktop.budget.zero import step as zero_step
from ranktop.budget.zero.backward import backward, between_micro_batches
from ranktop.budget.zero.job import IN_FORWARD, Job, Layout
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
    options = options_of(plan)
    reason = uncovered(plan, options)
    if reason is not None:
        unknown = Amount(None, reason)
        return {moment: {name: unknown for name in BUDGETED if name != "runtime"} for moment in ALL_MOMENTS}
    return _Step(Job(inventory, plan, options, first_step), activations).table()


def off_device(inventory: Inventory, plan: Plan) -> tuple[Amount, Amount]:
    """Return what one rank keeps in the host's memory and on NVMe because of offloading, buffers included."""
    options = options_of(plan)
    reason = uncovered(plan, options)
    if reason is not None:
        return Amount(None, reason), Amount(None, reason)
    job = Job(inventory, plan, options, first_step=False)
    return _off_device(job, layout_of(job))


def between(inventory: Inventory, plan: Plan) -> dict[str, Amount]:
    """Return the states and buffers after ``engine.backward`` and before ``engine.step``, which is no moment of ours.

    Only there stages 1 and 2 hold gradients as they were reduced; in the step they become those of the masters.
    """
    options = options_of(plan)
    job = Job(inventory, plan, options, first_step=False)
    step = _Step(job, None)
    found = step.states("forward_end")
    gradients = zero_step.after_backward(job, step.layout)
    found["gradients"] = Amount(gradients, "gradients as backward has left them")
    found["buffers"] = amount(step.fixed + step.bucket, "buffers that stay")
    return found


class _Step:
    """One rank's amounts at every moment."""

    def __init__(self, job: Job, activations: Activations | None) -> None:
        self.job = job
        self.layout: Layout = layout_of(job)
        self.made = copy(self.layout)
        """The same before any step."""
        self.made.job = copy(job)
        self.made.job.first_step = True
        self.known = activations
        self.alive = activations if activations is not None else NOTHING
        self.fixed: tuple[Part, ...] = _module_buffers(job) + staging(job)
        self.bucket = bucket(job) if job.options.stage == 3 else ()
        self.waiting = between_micro_batches(job)

    def table(self) -> Table:
        """Return every moment's amounts."""
        job, layout = self.job, self.layout
        sharded = Sharded(job, self.alive, self._kept(), self.fixed) if job.options.stage == 3 else None
        stretches: dict[str, Callable[[], Point]] = {
            "load": lambda: zero_step.load(job, self.made),
            "forward": sharded.forward if sharded else self._forward,
            "backward": sharded.backward if sharded else self._backward,
            "optimizer_step": lambda: zero_step.step(job, layout),
            "checkpoint_save": lambda: zero_step.save(job, layout),
        }
        between_passes = sharded.between() if sharded else self.waiting
        found: Table = {}
        for moment in ALL_MOMENTS:
            if moment in stretches:
                found[moment] = self._stretch(moment, stretches[moment]())
            else:
                found[moment] = self._moment(moment, between_passes if moment in IN_FORWARD else ())
        return found

    def states(self, moment: str, layout: Layout | None = None) -> dict[str, Amount]:
        """Return parameters, gradients and optimizer at a moment."""
        layout = self.layout if layout is None else layout
        return {
            "parameters": layout.parameters(moment),
            "gradients": layout.gradients(moment),
            "optimizer": layout.optimizer(moment),
        }

    def _kept(self) -> int:
        """Bytes of gradients that exist before the last backward of a step."""
        return self.layout.gradients("backward_start").bytes or 0

    def _forward(self) -> Point:
        loss = saved_parts(self.alive) + parts(("temporaries of the loss", self.alive.loss_forward))
        return Point("loss, in forward", loss, self.fixed + self.waiting, self._kept())

    def _backward(self) -> Point:
        return backward(self.job, self.alive, self._kept(), self.fixed)

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
        found = self.states(STATES_AT[moment], self.made if moment == "load" else None)
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
            found["optimizer"] = self.layout.optimizer("step_end")
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
