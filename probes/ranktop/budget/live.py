"""The budget of a running job: its card through the rules for plans, in the categories as they are measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.activations.saved import Activations
from ranktop.budget.expected import expected
from ranktop.budget.inventory import Inventory
from ranktop.budget.live_gathered import gathered
from ranktop.budget.model import BadInput, Model, NoRule
from ranktop.budget.plan import Forward, Plan
from ranktop.budget.terms import DTYPE_BYTES, Amount, Budget, Part

NOT_RECOGNISED: Final = "the shapes of its parameters are those of no architecture that is known here"
ROUNDING: Final = "rounding to the allocator's blocks"
OUTPUTS: Final = "logits of the output object"
OTHER_OBJECTS: Final = 2**20
"""Bytes by which what Python and libraries have from malloc changes over a job's steps (up to 0.8 MiB were seen)."""
FLIGHT_RECORDER: Final = 3 * 2**20
"""The same where ranks communicate: torch keeps the last 2000 collectives (2.5 MiB were seen, reached step by step)."""
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
    if seen is not None and seen.cache_bytes:
        model = replace(model, options={**model.options, "use_cache": True})
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
    moments = {}
    for moment, table in budget.moments.items():
        activations = _as_read(moment, table["activations"], plan, found, first_step)
        parts, slack = gathered(moment, inventory, plan, first_step)
        if activations.bytes is not None:
            activations = _more(replace(activations, slack=activations.slack + slack), *parts)
        moments[moment] = as_measured({**table, "activations": activations})
    return replace(budget, moments=moments)


def _as_read(moment: str, activations: Amount, plan: Plan, found: Live, first_step: bool) -> Amount:
    """Say why activations are unknown, and put outputs and loss where the script has them."""
    if activations.bytes is None:
        return replace(activations, rule=found.reason or activations.rule)
    if plan.host:
        # malloc has no blocks of 512 bytes, but serves others too.
        activations = _without(activations, ROUNDING)
        others = OTHER_OBJECTS + (FLIGHT_RECORDER if plan.layout.world_size > 1 else 0)
        activations = replace(activations, slack=activations.slack + others)
    seen, alive = plan.forward, found.activations
    if seen is None or alive is None or seen.output_bytes is None:
        return activations
    if moment in ("forward_end", "backward_start"):
        activations = _with_outputs(moment, activations, plan, seen, alive)
    if moment == "forward_end" and not seen.autocast_inside:
        activations = _more(activations, Part("copies of weights in autocast's cache", alive.cached, False))
    if _holds_last(moment, plan, first_step):
        activations = _more(activations, Part("last outputs, held by the script", seen.held_bytes or 0, False))
    if moment not in ("load", "checkpoint_save"):
        activations = replace(activations, slack=activations.slack + seen.output_bytes + seen.cache_bytes)
    return activations


def _holds_last(moment: str, plan: Plan, first_step: bool) -> bool:
    """Whether outputs of an earlier forward are alive: until the next one has returned, if the script holds them."""
    if first_step and (moment == "step_start" or (moment == "forward_end" and (plan.batch.accumulation or 1) == 1)):
        return False
    return moment in ("step_start", "forward_end", "backward_end", "step_end")


def _with_outputs(moment: str, amount: Amount, plan: Plan, seen: Forward, alive: Activations) -> Amount:
    """Put the root's outputs and the loss where the script computes it.

    A root that returns logits: the loss keeps its own copy only later, and has dropped it again when the gradient of
    the logits is there. One that returns logits and loss: the script holds both. transformers' are in the rule.
    """
    size = outputs = seen.output_bytes or 0
    if moment == "backward_start" and seen.held_bytes is not None:
        outputs = min(size, seen.held_bytes)
    held = Part("outputs, held by the script", outputs, False)
    if seen.loss_inside is False and alive.logits:
        low = plan.precision.autocast
        # The head keeps its input by itself where autocast casts it.
        cast = alive.boundary * DTYPE_BYTES[low] // DTYPE_BYTES[plan.precision.parameters] if low else 0
        gradient = Part("gradient of the logits", size if moment == "backward_start" else 0, False)
        return _more(_without(amount, "logits and loss"), Part("head's input, cast", cast), held, gradient)
    if not seen.loss_inside:
        return amount
    if plan.loss == "hf":
        return _more(_without(amount, OUTPUTS), held)
    return _more(amount, held)


def _more(amount: Amount, *parts: Part) -> Amount:
    found = tuple(part for part in parts if part.bytes)
    return replace(amount, bytes=(amount.bytes or 0) + _size(found), parts=(*amount.parts, *found))


def _without(amount: Amount, name: str) -> Amount:
    gone = tuple(part for part in amount.parts if part.name == name)
    parts = tuple(part for part in amount.parts if part.name != name)
    return replace(amount, bytes=(amount.bytes or 0) - _size(gone), parts=parts)


def as_measured(table: dict[str, Amount]) -> dict[str, Amount]:
    """Move what the measured side cannot tell from temporaries to the activations, where it lands.

    Gathered parameters and reduce buffers come from the buffers; library workspaces, which the allocator counts, from
    the runtime: their size is a guess, so that it is a slack as well.
    """
    buffers, unseen = _without_unseen(table["buffers"])
    runtime, workspaces = _without_unseen(table["runtime"])
    activations = table["activations"]
    size, extra = _size(unseen), _size(workspaces)
    if activations.bytes is not None and (size or extra):
        activations = replace(
            activations,
            bytes=activations.bytes + size + extra,
            parts=(*activations.parts, *unseen, *workspaces),
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
