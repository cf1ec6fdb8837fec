"""What the strategies screen says in words: what is asked, how the measured side differs, how sure a row is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.optimizers.names import by_name
from ranktop.budget.run import Projection, Run
from ranktop.budget.words import optimizer_name
from ranktop.tui.session.whatif import Changes, Measured, WhatIf
from ranktop.tui.view.options import MOMENT_WORDS, Options
from ranktop.tui.view.plan import optimizer
from ranktop.tui.view.text import Glyphs, Line, Span, Unit, first_that_fits, fit, pad, plain, signed, size

STRETCH_WORDS: Final = {
    **MOMENT_WORDS, "forward": "inside forward", "backward": "inside backward",
    "optimizer_step": "inside the optimizer's step",
}  # fmt: skip

SHORT_MOMENTS: Final = {
    MOMENT_WORDS["step_start"]: "step start", MOMENT_WORDS["forward_end"]: "fwd end",
    MOMENT_WORDS["backward_start"]: "bwd start", MOMENT_WORDS["backward_end"]: "bwd end",
    MOMENT_WORDS["step_end"]: "step end",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """What a full bar stands for, and the unit of the numbers."""

    bytes: int
    unit: Unit
    capacity: int | None
    shared: int = 0
    """Ranks that share a host's memory; 0 where each has a device of its own."""


def question(whatif: WhatIf, options: Options, width: int) -> Line:
    """Say what is asked: the job as it runs, or with which changes."""
    run, changes = whatif.run, whatif.changes
    if run is None:
        return pad([(f" {plain(whatif.reason)}", "warn")], width, "panel")
    words = "what if:" if changes else "as it runs:"
    spans: list[Span] = [(f" {words} ", "panel bold")]
    dot = f" {options.glyphs.dot} "
    for number, (text, changed) in enumerate(_facts(run, changes)):
        spans += [(dot if number else "", "panel"), (text, "panel warn bold" if changed else "panel")]
    return pad(spans, width, "panel")


def _facts(run: Run, changes: Changes) -> list[tuple[str, bool]]:
    world = changes.world_size or run.world_size
    batch = changes.micro_batch or run.micro_batch
    tokens = changes.sequence_length or run.sequence_length
    checkpointing = changes.checkpointing or run.checkpointing
    found = [
        (f"{world} {'rank' if world == 1 else 'ranks'}", changes.world_size is not None),
        (f"batch {batch}", changes.micro_batch is not None),
        (f"{tokens:,} tokens" if tokens else "", changes.sequence_length is not None),
        (changes.precision or run.precision, changes.precision is not None),
        (f"checkpointing {checkpointing}", changes.checkpointing is not None),
        (_optimizer(run, changes), changes.optimizer is not None),
        (f"FSDP offload {changes.offload}" if changes.offload else "", changes.offload is not None),
    ]
    return [(text, changed) for text, changed in found if text]


def _optimizer(run: Run, changes: Changes) -> str:
    """Name the optimizer as the header does."""
    if changes.optimizer is not None:
        return optimizer_name(by_name(changes.optimizer))
    return optimizer(run.running) if run.running is not None else optimizer_name(run.optimizer)


def difference(measured: Measured, scale: Scale, glyphs: Glyphs, room: int) -> str:
    """Say by how much the measured side is over, when, and what the allocator caches beside it."""
    delta = "" if measured.over is None else signed(measured.over, scale.unit, 1, glyphs)
    when = STRETCH_WORDS.get(measured.moment, measured.moment)
    cache = f"cache {size(measured.memory.cache, scale.unit)}" if measured.memory.cache else ""
    first, short = (
        " ".join(word for word in (delta, words) if word) for words in (when, SHORT_MOMENTS.get(when, when))
    )
    forms = [", ".join(part for part in (lead, cache) if part) for lead in (first, short, delta)]
    return first_that_fits([*forms, first, delta, ""], room)


def below(name: str, whatif: WhatIf, scale: Scale, options: Options, width: int) -> list[Line]:
    """Tell of the selected strategy where it peaks, how sure that is, and what was taken for granted."""
    found = whatif.rows.get(name)
    if found is None or found.refused or found.rank is None:
        return [pad((), width)]
    rank = found.rank
    peak = rank.budget.peak()
    words = [
        f"{name}: peak {STRETCH_WORDS.get(peak, peak)}" if peak else f"{name}: peak unknown: {_why(found)}",
        _sureness(found),
    ]
    measured = whatif.measured
    if name == whatif.own and measured is not None and measured.memory.cache:
        when = STRETCH_WORDS.get(measured.moment, measured.moment)
        words.append(f"{size(measured.held, scale.unit)} with cache at {SHORT_MOMENTS.get(when, when)}")
    if len(found.ranks) > 1:
        words.append(
            f"worst is rank {rank.ranks[0]}" + (f", stage {rank.stage}" if rank.plan.layout.pipeline > 1 else "")
        )
    save, load = rank.budget.total("checkpoint_save"), rank.budget.total("load")
    if save is not None and rank.total is not None and save > rank.total:
        words.append(f"saving a checkpoint needs {size(save, scale.unit)}")
    if load is not None and rank.total is not None and load > rank.total:
        words.append(f"loading needs {size(load, scale.unit)}")
    first = f" {options.glyphs.dot} ".join(word for word in words if word)
    second = "; ".join(plain(text) for text in found.assumptions)
    lines = [pad([(fit(f" {first}", width, ellipsis=options.glyphs.ellipsis), "text")], width)]
    return [*lines, pad([(f" {second}", "dim")], width)] if second else lines


def _why(found: Projection) -> str:
    return next((plain(amount.rule) for amount in found.amounts().values() if amount.bytes is None), "")


def _sureness(found: Projection) -> str:
    """Say how far the total may be off, leaving out what is a guess by nature."""
    amounts = [amount for amount in found.amounts().values() if amount.bytes]
    guessed = [name for name, amount in found.amounts().items() if amount.within is None and amount.bytes]
    off = sum((amount.bytes or 0) * amount.within for amount in amounts if amount.within is not None)
    total = sum(amount.bytes or 0 for amount in amounts)
    if not total:
        return ""
    share = off / total
    words = "exact" if share < 0.0005 else f"within {share:.1%}"
    return words + (f", {' and '.join(guessed)} guessed" if guessed else "")
