"""The budget of a running job: its card through the rules for plans, in the categories as they are measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.activations.saved import Activations
from ranktop.budget.expected import expected
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import BadInput, Model, NoRule
from ranktop.budget.plan import Plan
from ranktop.budget.terms import DTYPE_BYTES, Amount, Budget, Part

NOT_RECOGNISED: Final = "the shapes of its parameters are those of no architecture that is known here"
NO_BATCH: Final = "the micro-batch has not been seen"


@dataclass(frozen=True, slots=True)
class Live:
    """What a card says, as far as the rules understand it."""

    model: Model | None
    """The architecture that has exactly these parameters; None when none of the known ones has."""
    activations: Activations | None
    reason: str
    """Why there are no activations; empty when there are."""


def understand(inventory: Inventory, plan: Plan, name: str = "") -> Live:
    """Recognise a card's model and its activations; ``name`` is the model's class."""
    from ranktop.budget.models.recognise import recognise

    seen = plan.forward
    try:
        model = recognise(inventory, plan, heads=seen.heads if seen is not None else None)
    except (NoRule, BadInput) as reason:
        return Live(None, None, str(reason))
    if model is None:
        return Live(None, None, NOT_RECOGNISED)
    model = replace(model, name=name or model.name, dropout=seen.dropout if seen is not None else 0.0)
    if plan.batch.micro_batch is None or plan.batch.sequence_length is None:
        return Live(model, None, NO_BATCH)
    try:
        from ranktop.budget.activations.closed import activations

        return Live(model, activations(model, plan), "")
    except (NoRule, BadInput) as reason:
        return Live(model, None, str(reason))


def live_budget(
    inventory: Inventory, plan: Plan, name: str = "", *, first_step: bool = False, runtime: Amount | None = None
) -> Budget:
    """Return what a running rank should hold, moment by moment, in the categories as they are measured.

    What the measured side cannot tell from temporaries (gathered parameters, reduce buffers) is in ``activations``.
    Outputs that the script still holds from the last forward are a slack: when it drops them is its own business.
    """
    found = understand(inventory, plan, name)
    budget = expected(inventory, plan, found.activations, first_step=first_step, runtime=runtime)
    moments = {
        moment: as_measured(_as_read(moment, table, inventory, plan, found)) for moment, table in budget.moments.items()
    }
    return replace(budget, moments=moments)


def _as_read(moment: str, table: dict[str, Amount], inventory: Inventory, plan: Plan, found: Live) -> dict[str, Amount]:
    """Say why activations are unknown, and put the loss where the script computes it."""
    activations = table["activations"]
    if activations.bytes is None:
        return {**table, "activations": replace(activations, rule=found.reason or activations.rule)}
    seen, alive = plan.forward, found.activations
    if seen is None or alive is None or seen.output_bytes is None:
        return table
    if seen.loss_inside is False and alive.logits:
        # The root returned logits: the loss keeps its own copy only later, and has dropped it again when the
        # gradient of the logits is there.
        outputs = Part("logits, held by the script", seen.output_bytes, False)
        if moment == "forward_end":
            activations = _instead(activations, alive.logits, (outputs,))
        elif moment == "backward_start":
            gradient = Part("gradient of the logits", seen.output_bytes, False)
            activations = _instead(activations, alive.logits, (outputs, gradient))
    if moment not in ("load", "checkpoint_save"):
        activations = replace(activations, slack=activations.slack + seen.output_bytes)
    if moment == "forward_end":
        activations = replace(activations, slack=activations.slack + _last_gathered(inventory, plan))
    return {**table, "activations": activations}


def _last_gathered(inventory: Inventory, plan: Plan) -> int:
    """Return the bytes of the last unit's all-gather output under FSDP2.

    FSDP2 drops it in its own hook behind the root's forward, and whether the reading comes before that depends on
    which hook was there first (torch/distributed/fsdp/_fully_shard/_fsdp_state.py ``_post_forward``).
    """
    if plan.fsdp is None or plan.fsdp.version != 2 or plan.layout.shard <= 1:
        return 0
    units = inventory.units()
    last = units[max(units)] if units else []
    item = DTYPE_BYTES[plan.precision.compute] if plan.precision.compute else None
    return sum(kind.numel * (item or kind.itemsize) for kind in last)


def _instead(amount: Amount, less: int, more: tuple[Part, ...]) -> Amount:
    kept = tuple(part for part in amount.parts if part.name != "logits and loss")
    size = (amount.bytes or 0) - less + sum(part.bytes for part in more)
    return replace(amount, bytes=size, parts=(*kept, *more))


def as_measured(table: dict[str, Amount]) -> dict[str, Amount]:
    """Move what the measured side cannot tell from temporaries to the activations, where it lands.

    Gathered parameters and reduce buffers come from the buffers; library workspaces, which the allocator counts, from
    the runtime: their size is a guess, so that it is a slack as well.
    """
    buffers, gathered = _without_unseen(table["buffers"])
    runtime, workspaces = _without_unseen(table["runtime"])
    activations = table["activations"]
    size, extra = _size(gathered), _size(workspaces)
    if activations.bytes is not None and (size or extra):
        activations = replace(
            activations,
            bytes=activations.bytes + size + extra,
            parts=(*activations.parts, *gathered, *workspaces),
            within=_together(activations, table["buffers"]) if size else activations.within,
            slack=activations.slack + extra,
        )
    return {**table, "activations": activations, "buffers": buffers, "runtime": runtime}


def _without_unseen(amount: Amount) -> tuple[Amount, tuple[Part, ...]]:
    unseen = tuple(part for part in amount.parts if not part.seen)
    if amount.bytes is None or not unseen:
        return amount, ()
    seen = tuple(part for part in amount.parts if part.seen)
    return replace(amount, bytes=amount.bytes - _size(unseen), parts=seen), unseen


def _size(parts: tuple[Part, ...]) -> int:
    return sum(part.bytes for part in parts)


def _together(one: Amount, other: Amount) -> float | None:
    """Return the relative error of a sum whose parts err independently of each other at worst."""
    if one.within is None or other.within is None:
        return None
    both = (one.bytes or 0) + (other.bytes or 0)
    return ((one.bytes or 0) * one.within + (other.bytes or 0) * other.within) / both if both else 0.0
