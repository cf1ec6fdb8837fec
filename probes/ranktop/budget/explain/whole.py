"""The model and its states before any splitting: how many parameters, how many bytes each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ranktop.budget.inventory import Inventory
from ranktop.budget.models.tensors import tensors
from ranktop.budget.optimizers.states import Piece, optimizer_amount
from ranktop.budget.plan import Layout, Plan
from ranktop.budget.project import inventory
from ranktop.budget.run import Run
from ranktop.budget.terms import DTYPE_BYTES
from ranktop.budget.zero.job import Job


@dataclass(frozen=True, slots=True)
class Whole:
    """Counts of one replica and bytes per element of its states."""

    inventory: Inventory
    parameters: int
    trainable: int
    stored: tuple[tuple[float, int], ...]
    """(bytes per element, elements) of the weights, for each dtype that they are stored in."""
    gradient: int | None
    """Bytes per trainable element; None when it differs between parameters."""
    master: int
    """Bytes of the master copy per trainable element, 0 without."""
    experts: int
    """Elements of routed experts among the trainable ones."""
    states: float | None
    """Bytes of the optimizer's states per trainable element; None when they follow the shape of every tensor."""

    @property
    def optimizer(self) -> float | None:
        """Bytes of master copy and states together."""
        return None if self.states is None else self.master + self.states


def whole(run: Run, plan: Plan) -> Whole:
    """Return the counts for a plan, all its axes taken away. Raises NoRule, BadInput as the inventory does."""
    alone = replace(plan, layout=Layout(), pipeline=None)
    found = inventory(run, alone)
    by_item: dict[int, int] = {}
    trained: dict[int, int] = {}
    times = [0] * len(found.kinds)
    for index in found.order:
        times[index] += 1
    for kind, count in zip(found.kinds, times, strict=True):
        numel = kind.numel * count
        by_item[kind.itemsize] = by_item.get(kind.itemsize, 0) + numel
        if kind.trainable:
            trained[kind.itemsize] = trained.get(kind.itemsize, 0) + numel
    stored = max(trained, key=lambda item: trained[item]) if trained else 4
    master = _master(plan, stored)
    if alone.zero is not None:
        # DeepSpeed's own optimizers have states that torch's rules do not know.
        alone = Job(found, alone, alone.zero, first_step=False).plan
    return Whole(
        inventory=found,
        parameters=sum(by_item.values()),
        trainable=sum(trained.values()),
        stored=tuple((float(item), count) for item, count in sorted(by_item.items())),
        gradient=_gradient(plan, trained),
        master=master,
        experts=_experts(run) if plan.layout.expert > 1 and plan.lora is None else 0,
        states=_per_element(alone, master or stored),
    )


def _experts(run: Run) -> int:
    return sum(tensor.numel for tensor in tensors(run.model) if tensor.expert) if run.model.family else 0


def _gradient(plan: Plan, trained: dict[int, int]) -> int | None:
    own = plan.precision.gradients
    if plan.zero is not None:
        own = plan.zero.gradient_dtype
    elif plan.stack == "megatron" and own is None:
        own = plan.precision.master  # its main gradients are reduced and kept in fp32
    if own is not None:
        return DTYPE_BYTES[own]
    return next(iter(trained)) if len(trained) == 1 else None


def _master(plan: Plan, stored: int) -> int:
    """DeepSpeed keeps fp32 masters of whatever is stored in fewer bytes; others when the plan says so."""
    size = DTYPE_BYTES[plan.precision.master] if plan.precision.master else 4 if plan.zero is not None else 0
    return size if size > stored else 0


def _per_element(plan: Plan, item: int) -> float | None:
    """Ask the optimizer's rule for two shapes of equally many elements: factored states give two answers."""
    square, flat = (
        optimizer_amount([Piece(shape, item)], replace(plan, groups=())).bytes for shape in ((4096, 4096), (65536, 256))
    )
    if square is None or square != flat:
        return None
    # Step counters of some optimizers lie on the device: bytes per tensor, not per element.
    each = square / 4096**2
    return float(round(each)) if abs(each - round(each)) < 1e-5 else each
