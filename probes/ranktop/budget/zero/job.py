"""What every ZeRO layout needs of the inventory and the plan, and what all layouts share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final, TypeVar

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.optimizers.states import Piece, optimizer_amount
from ranktop.budget.plan import Plan, State, Zero
from ranktop.budget.terms import DTYPE_BYTES, Amount

SOURCES: Final = {
    0: "runtime/engine.py, runtime/fp16",
    1: "runtime/zero/stage_1_and_2.py",
    2: "runtime/zero/stage_1_and_2.py",
    3: "runtime/zero/stage3.py",
}
"""Files of DeepSpeed whose rules a stage follows."""

IN_FORWARD: Final = ("forward_end", "backward_start")
"""Moments between a forward pass and its backward pass."""

IN_STEP: Final = ("backward_end", "step_end")
"""Moments at which the base optimizer is about to step, or has just stepped."""


_ADAM: Final = (State(name="exp_avg"), State(name="exp_avg_sq"))
_OWN_STATES: Final[dict[str, tuple[State, ...]]] = {
    "FusedAdam": _ADAM,
    "FusedLamb": _ADAM,
    "DeepSpeedCPUAdam": _ADAM,
    "FusedLion": _ADAM[:1],
    "DeepSpeedCPULion": _ADAM[:1],
    "DeepSpeedCPUAdagrad": _ADAM[1:],
}
"""What DeepSpeed's own optimizers make in their first step (``deepspeed/ops``); their step count is no tensor."""


Found = TypeVar("Found")


class Job:
    """An inventory and a plan, with what follows from them for any stage."""

    def __init__(self, inventory: Inventory, plan: Plan, options: Zero, first_step: bool) -> None:
        self._once: dict[Hashable, Any] = {}
        self.options = options
        self.first_step = first_step
        self.plan = _with_masters(_with_own_states(plan), options)
        self.kinds: list[Kind] = list(inventory)
        order, kinds = inventory.order, inventory.kinds
        by_kind = [(kind.numel, kind.itemsize, self.is_updated(kind)) for kind in kinds]
        self.numels = [by_kind[i][0] for i in order]
        """Elements of each parameter, in the order of the model."""
        self.sizes = [by_kind[i][0] * by_kind[i][1] for i in order]
        """Bytes of each parameter."""
        self.updates = [by_kind[i][2] for i in order]
        """Whether each parameter is updated."""
        self.item = max((by_kind[i][1] for i in set(order)), default=2)
        """Bytes per element of the widest dtype."""
        self.buffer_bytes = inventory.buffer_bytes
        self.ranks = max(1, plan.layout.shard)
        self.rank = plan.layout.shard_rank
        self.accumulating = (plan.batch.accumulation or 1) > 1
        self.groups = self._groups()
        """Updated parameters by optimizer group; DeepSpeed leaves frozen and empty ones out."""
        self.loose = [kind for kind, updated in zip(self.kinds, self.updates, strict=True) if not updated]
        self.whole_gradients = sum(size for size, updated in zip(self.sizes, self.updates, strict=True) if updated)
        """Bytes of the gradients of all updated parameters, in the parameters' dtype."""

    def once(self, name: Hashable, work: Callable[[], Found]) -> Found:
        """Return what follows from the job alone, whichever of its ranks asks; worked out when first asked for."""
        known = self._once
        if name not in known:
            known[name] = work()
        found: Found = known[name]
        return found

    def of_rank(self, plan: Plan) -> Job:
        """Return the same for another rank of the sharding group: what ``once`` knows is shared."""
        found = copy(self)
        found.plan = replace(self.plan, layout=plan.layout)
        found.rank = plan.layout.shard_rank
        return found

    @staticmethod
    def is_updated(kind: Kind) -> bool:
        """Whether an optimizer updates this parameter."""
        return kind.trainable and kind.group >= 0 and kind.numel > 0

    def _groups(self) -> list[list[Kind]]:
        found: dict[int, list[Kind]] = {}
        for kind, updated in zip(self.kinds, self.updates, strict=True):
            if updated:
                found.setdefault(kind.group, []).append(kind)
        return [found[index] for index in sorted(found)]

    @property
    def optimizer_on_device(self) -> bool:
        """Whether optimizer states, and the gradients they are updated with, lie on the device."""
        return self.options.offload_optimizer == "none" or self.plan.host

    @property
    def parameters_on_device(self) -> bool:
        """Whether ZeRO-3's partitions lie on the device."""
        return self.options.offload_parameters == "none" or self.plan.host

    def gradient_bytes(self, kind: Kind) -> int:
        """Bytes per element that a gradient is accumulated in."""
        return DTYPE_BYTES[self.options.gradient_dtype or kind.dtype]

    def master_bytes(self, kind: Kind) -> int:
        """Bytes per element of what the base optimizer updates."""
        return DTYPE_BYTES[self.plan.precision.master or kind.dtype]

    def ready(self, kind: Kind) -> bool:
        """Whether an accumulated gradient already has the dtype that it is used in."""
        return (self.options.gradient_dtype or kind.dtype) == (self.plan.precision.master or kind.dtype)


def _with_own_states(plan: Plan) -> Plan:
    """Fill in the states of DeepSpeed's own optimizers before their first step."""
    if plan.optimizer.states or plan.optimizer.name not in _OWN_STATES:
        return plan
    filled = [replace(each, states=_OWN_STATES.get(each.name, each.states)) for each in (plan.optimizer, *plan.groups)]
    return replace(plan, optimizer=filled[0], groups=tuple(filled[1:]))


def _with_masters(plan: Plan, options: Zero) -> Plan:
    """Stages 1 to 3 keep master weights even of a model in fp32 (their optimizers copy what they update)."""
    if not options.stage or plan.precision.master is not None:
        return plan
    return replace(plan, precision=replace(plan.precision, master="float32"))


class Layout:
    """Amounts of one rank by moment; a subclass for each way in which DeepSpeed lays states out."""

    name = ""

    def __init__(self, job: Job) -> None:
        self.job = job

    def parameters(self, moment: str) -> Amount:
        """Bytes of the weights."""
        raise NotImplementedError

    def gradients(self, moment: str) -> Amount:
        """Bytes of the gradients."""
        raise NotImplementedError

    def updated(self) -> Sequence[tuple[int, Kind]]:
        """Elements of each tensor that the base optimizer updates, with a kind that tells its dtype and group."""
        raise NotImplementedError

    def steps_at_start(self) -> bool:
        """Whether DeepSpeed lets the base optimizer step once when the engine is made."""
        return False

    def optimizer(self, moment: str) -> Amount:
        """Bytes of master weights and optimizer state."""
        job = self.job
        if not job.optimizer_on_device:
            return Amount(0, self.rule("master weights and optimizer state offloaded to the host"))
        updated = self.updated()
        masters = sum(n * job.master_bytes(k) for n, k in updated) if job.plan.precision.master else 0
        before = job.first_step and moment != "step_end" and not self.steps_at_start()
        pieces = [Piece((n,), job.master_bytes(k), k.group, whole=False) for n, k in updated]
        states = optimizer_amount(pieces, job.plan, before_first_step=before)
        if states.bytes is None:
            return states
        return Amount(masters + states.bytes, self.rule(f"master weights, {states.rule}"), states.slack)

    def rule(self, what: str) -> str:
        """Name a rule and its source."""
        return f"{self.name}: {what} (DeepSpeed {SOURCES[self.job.options.stage]})"
