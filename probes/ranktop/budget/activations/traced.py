"""Activations from what was read: a trace of the user's model, or a running job's own measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget import pipeline
from ranktop.budget.activations.coefficients import Coefficients, Terms, at
from ranktop.budget.activations.measured import Measured, measured, measured_activations
from ranktop.budget.activations.saved import Activations
from ranktop.budget.activations.scaling import factors
from ranktop.budget.model import Model, NoRule
from ranktop.budget.models.stages import stage_layers
from ranktop.budget.plan import Plan
from ranktop.budget.terms import Part

__all__ = ("Coefficients", "Measured", "activations_from", "measured")

TRACE_ERROR: Final = 0.01
"""Error of a trace against measured steps, as tests/integration/test_trace.py has it."""

SELECTIVE_SHARE: Final = 0.7
"""What torch's selective checkpointing (matrix products and SDPA are kept) leaves of a block, as counted on a GPT."""


def activations_from(coefficients: Coefficients | Measured, plan: Plan, model: Model | None = None) -> Activations:
    """Return the activations of one micro-batch on the rank that ``plan.layout`` names.

    Batch and sequence that the plan leaves open are those of the trace. A plan in another precision or with another
    tensor-parallel size than was read is scaled by the ratio of closed forms when ``model`` has one, else by rules of
    thumb (``within`` is None then). Raises NoRule when the number of layers is not known, or for a measurement that
    says nothing about what is asked.
    """
    if isinstance(coefficients, Measured):
        return measured_activations(coefficients, plan, model)
    layers = (model.layers if model is not None else 0) or coefficients.layers
    if not layers:
        raise NoRule("the trace does not know how many layers the model has")
    chunk = max(len(blocks) for blocks in stage_layers(layers, plan))
    times = pipeline.alive(plan)
    read = _Read.of(coefficients, plan, chunk)
    factor, error, how = factors(model, plan, coefficients.setting)
    kept, recomputed, temporaries, guessed = _blocks(coefficients, read, plan, chunk)
    scaled = {name: round(value * factor[name]) for name, value in read.fixed.items()}
    first, last = pipeline.ends(plan)
    after = round(read.after * factor["outside"])
    outside = (scaled["outside"] - after if first else scaled["boundary"]) + (after if last else 0)
    logits = scaled["logits"] if last else 0
    blocks = round(kept * factor["layer"])
    casts = round(read.casts_of(chunk) * factor["casts"])
    return Activations(
        layers=chunk,
        layer=round(read.layer * factor["layer"]),
        blocks=blocks,
        recomputed=round(recomputed * factor["layer"]),
        outside=outside,
        logits=logits,
        inputs=scaled["inputs"],
        casts=casts,
        loss_forward=scaled["loss_forward"] if last else 0,
        loss_backward=scaled["loss_backward"] if last else 0,
        block_forward=scaled["block_forward"],
        block_backward=round(temporaries * factor["block_backward"]),
        boundary=scaled["boundary"],
        in_flight=times,
        within=None if error is None or guessed else max(coefficients.within, TRACE_ERROR, error),
        rule=", ".join(filter(None, (f"traced from {coefficients.model or 'the model'}", how))),
        parts=_parts(blocks, outside, logits, scaled["inputs"], casts, times),
        after=after if last else 0,
        backward=_stages(plan, read, error == 0.0 and read.for_mode(plan.checkpointing)),
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """A trace's quantities at one batch and sequence, before scaling."""

    terms: Terms
    """With or without checkpointing, as the plan has it."""
    layer: float
    """Saved by one block without checkpointing."""
    kept: float
    """Saved by one block as the terms have it."""
    after: float
    fixed: dict[str, int]
    batch: int
    sequence: int
    split: int
    full: bool
    """The terms are those of full checkpointing."""

    @staticmethod
    def of(coefficients: Coefficients, plan: Plan, layers: int) -> _Read:
        batch = plan.batch.micro_batch or coefficients.batch
        sequence = plan.batch.sequence_length or coefficients.sequence
        split = plan.layout.context
        full = coefficients.full if plan.checkpointing == "full" else None
        terms = full or coefficients.plain
        place = (batch, sequence, split)
        names = ("logits", "inputs", "boundary", "loss_forward", "loss_backward", "block_forward", "block_backward")
        fixed = {name: terms.bytes(name, 0, *place) for name in names}
        cached = terms.bytes("cached", layers, *place)
        fixed["loss_forward"] += cached
        fixed["block_forward"] += cached
        fixed["outside"] = terms.bytes("saved", 0, *place)
        return _Read(
            terms=terms,
            layer=at(coefficients.plain.per_layer["saved"], *place),
            kept=at(terms.per_layer["saved"], *place),
            after=at(terms.fixed["after"], *place),
            fixed=fixed,
            batch=batch,
            sequence=sequence,
            split=split,
            full=full is not None,
        )

    def for_mode(self, checkpointing: str | None) -> bool:
        """Return whether the step that was read ran with this checkpointing."""
        return (checkpointing or "none") == ("full" if self.full else "none")

    def casts_of(self, layers: int) -> int:
        """Bytes of cached casts on a rank of so many layers."""
        return self.terms.bytes("casts", layers, self.batch, self.sequence, self.split)


def _blocks(coefficients: Coefficients, read: _Read, plan: Plan, layers: int) -> tuple[float, float, float, bool]:
    """Return what all blocks keep, what recomputing one segment makes, temporaries, and whether that is guessed."""
    temporaries = float(read.fixed["block_backward"])
    mode = plan.checkpointing or "none"
    if mode == "none":
        return layers * read.layer, 0.0, temporaries, False
    if mode == "selective":
        return SELECTIVE_SHARE * layers * read.layer, (1 - SELECTIVE_SHARE) * read.layer, temporaries, True
    every = max(1, plan.checkpoint_every)
    segments = -(-layers // every)
    if coefficients.full is None:
        kept, again = float(read.fixed["boundary"]), every * read.layer - read.fixed["boundary"]
        return segments * kept, max(0.0, again), temporaries, False
    casts = coefficients.plain.per_layer["casts"][0] - read.terms.per_layer["casts"][0]
    one = read.layer - read.kept + casts
    # The checkpointed trace has seen one block's recomputation and its temporaries together.
    return segments * read.kept, one + (every - 1) * (read.layer + casts), max(0.0, temporaries - one), False


def _stages(plan: Plan, read: _Read, known: bool) -> tuple[tuple[int, int], ...]:
    """Return the points of one block's backward, without those that another one exceeds in both numbers."""
    if not known or plan.checkpoint_every > 1:
        return ()
    found: list[tuple[int, int]] = []
    stages = [
        (made, round(read.kept + at(above, read.batch, read.sequence, read.split))) for above, made in read.terms.stages
    ]
    for made, alive in sorted(stages, reverse=True):
        if not found or alive > found[-1][0]:
            found.append((alive, made))
    return tuple(reversed(found))


def _parts(blocks: int, outside: int, logits: int, inputs: int, casts: int, times: int) -> tuple[Part, ...]:
    named = (
        ("blocks", times * blocks),
        ("outside of the blocks", times * outside),
        ("logits and loss", logits),
        ("tokens and labels", times * inputs),
        ("low-precision copies of the weights (autocast)", casts),
    )
    return tuple(Part(name, size, seen=False) for name, size in named if size)
