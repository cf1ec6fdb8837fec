"""What stands above and below the table: what was asked, and what a reader must know to trust the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ranktop.budget.model import Model
from ranktop.budget.planning import bands
from ranktop.budget.planning.answer import Answer, Row
from ranktop.budget.planning.ranking import CALL, nearest
from ranktop.budget.planning.request import Request
from ranktop.budget.planning.sizes import GIB, Unit
from ranktop.budget.planning.table import MOMENT_WORDS
from ranktop.budget.terms import BUDGETED

Note = tuple[str, str]
"""What a line is about, and its text."""


UNEQUAL: Final = 0.02
"""Share of the worst rank's bytes by which another must differ to be worth a line."""


def header(answer: Answer) -> list[str]:
    """Return the lines above the table: model, run, device."""
    request = answer.request
    return [model_line(request), f"{run_line(request)}; {device_line(request)}"]


def model_line(request: Request) -> str:
    """Return the model in one line, its parameters exact."""
    model = request.run.model
    parts = [f"{request.parameters:,} parameters", *_shape(model)]
    return f"{model.name or 'model'}: {', '.join(parts)}"


def _shape(model: Model) -> Iterator[str]:
    if not model.family:
        yield "no shape known"
        return
    yield f"{model.layers} layers"
    yield f"hidden {model.hidden}"
    grouped = f" ({model.kv_heads} key/value)" if model.kv_heads not in (0, model.heads) else ""
    yield f"{model.heads} heads{grouped}"
    yield f"ffn {model.ffn}"
    if model.vocab:
        yield f"vocabulary {model.vocab}"
    if model.experts:
        yield f"{model.experts} experts, {model.experts_per_token} per token"


def run_line(request: Request) -> str:
    """Return how it is trained, in one line."""
    run = request.run
    length = run.sequence_length or run.model.positions
    batch = f"micro-batch {run.micro_batch}" + (f" × {length} tokens" if length else "")
    if request.global_batch is not None:
        batch += f", {request.global_batch} samples a step"
    elif run.accumulation > 1:
        batch += f" × {run.accumulation} accumulated"
    checkpointing = {"none": "no checkpointing"}.get(run.checkpointing, f"{run.checkpointing} checkpointing")
    every = f" every {run.checkpoint_every} blocks" if run.checkpoint_every > 1 else ""
    axes = [("dp", run.data), ("tp", run.tensor), ("pp", run.pipeline), ("cp", run.context), ("ep", run.expert)]
    parts = [
        f"{run.world_size} GPU{'s' * (run.world_size != 1)}",
        *(f"{name} {size}" for name, size in axes if size is not None and (size > 1 or name not in ("cp", "ep"))),
        batch,
        run.precision,
        request.optimizer,
        checkpointing + every,
        f"{run.attention} attention",
    ]
    if run.lora is not None:
        parts.append(f"{'QLoRA' if run.lora.quantized else 'LoRA'} rank {run.lora.rank}")
    return ", ".join(part for part in parts if part)


def device_line(request: Request) -> str:
    """Return what a GPU holds and how to read the table."""
    memory = request.run.device_memory
    if memory is None:
        return "no device given"
    return f"{GIB.named(memory)} per GPU" + (f" ({request.device})" if request.device else "")


def legend(answer: Answer, wide: bool) -> str:
    """Return how to read the table."""
    unit = answer.unit.name
    unknown = any(row.total is None and not row.projection.refused for row in answer.rows)
    peak = "at its peak (≥: inside backward, and the most that is known)" if unknown else "at its peak"
    text = (
        f"In {unit} on the worst rank {peak}. comm: sent per step by the GPU that sends most; batch: largest that fits"
    )
    return f"{text}; ±: error of the total, ? beside what is guessed." if wide else f"{text}."


def notes(answer: Answer, wide: bool) -> list[Note]:
    """Return the lines below the table."""
    found: list[Note] = [*_best(answer)]
    rows = [row for row in answer.rows if not row.projection.refused]
    found += [("unknown", text) for text in _unknown(rows)]
    if not wide:
        found += [("peak", text) for text in _peaks(rows)]
    found += [("worst rank", text) for text in _worst(rows, answer.unit)]
    found += [("beside the step", text) for text in _outside(rows, answer.unit)]
    found += [("error", text) for text in _errors(rows)]
    found += [("config", text) for text in answer.request.notes]
    found += [("assumed", text) for text in answer.request.assumed]
    told = ((text, row.name) for row in rows for text in row.projection.assumptions)
    found += [("assumed", text) for text in _grouped(told, rows)]
    return found


def _best(answer: Answer) -> Iterator[Note]:
    run = answer.request.run
    if run.device_memory is None:
        yield "fits", "unknown without a device: give --device-memory 80GiB or --gpu h100"
    elif answer.best is not None:
        speed = "" if run.link or run.world_size == 1 else " (400 Gb/s taken; --link)"
        yield (
            "* best",
            f"{answer.best}: fits, the simplest of those that lose least per sample to sending "
            f"({CALL * 1e6:.0f} µs a call taken), copying, idle GPUs{speed}",
        )
    elif any(row.fits is False for row in answer.rows):
        some = any(row.fits is None and not row.projection.refused for row in answer.rows)
        label = "nothing known fits" if some else "nothing fits"
        less = ["--checkpointing full"] * (run.checkpointing != "full") + ["fewer samples"] * (run.micro_batch > 1)
        yield label, f"{_nearest(answer.rows)}try {', '.join([*less, 'shorter samples', 'more GPUs'])}, or --fit"
    if answer.request.own is not None:
        yield "> config", f"{answer.request.own}: what the given config file asks for"


def _nearest(rows: Iterable[Row]) -> str:
    closest = nearest(rows)
    if closest is None:
        return ""
    return f"{closest.name} comes nearest, {GIB.named(-(closest.projection.headroom or 0))} too much; "


def _unknown(rows: list[Row]) -> Iterator[str]:
    told = ((f"{name}: {reason}", row.name) for row in rows for name, reason in row.unknown().items())
    yield from _grouped(told, rows)


def _peaks(rows: list[Row]) -> Iterator[str]:
    """Yield in one line which strategies peak at which moment."""
    known = [row for row in rows if row.total is not None]
    told = _grouped(((MOMENT_WORDS.get(row.moment or "", ""), row.name) for row in known), known)
    if text := "; ".join(told):
        yield text


def _worst(rows: list[Row], unit: Unit) -> Iterator[str]:
    for row in rows:
        rank = row.projection.rank
        totals = [each.total for each in row.projection.ranks]
        known = [total for total in totals if total is not None]
        if rank is None or len(known) < 2 or max(known) - min(known) < UNEQUAL * max(known):
            continue
        where = f"stage {rank.stage}, " if rank.plan.layout.pipeline > 1 else ""
        yield f"{row.name}: {where}{ranks_words(rank.ranks)}; the least loaded hold {unit.named(min(known))}"


def ranks_words(ranks: tuple[int, ...]) -> str:
    """Return ranks in words, e.g. ``rank 0``, ``ranks 0-7``, ``16 ranks from 0``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"{len(ranks)} ranks from {ranks[0]}"


def _outside(rows: list[Row], unit: Unit) -> Iterator[str]:
    """Yield what a step does not show: a surge at load or save, and states on disk."""
    for row in rows:
        rank = row.projection.rank
        if rank is None:
            continue
        for moment, words in (("load", "loading the model"), ("checkpoint_save", "saving a checkpoint")):
            total = rank.budget.total(moment)
            if total is not None and row.total is not None and total > row.total:
                yield f"{row.name}: {words} takes {unit.named(total)}, more than the step"
        if rank.budget.nvme.bytes:
            yield f"{row.name}: {unit.named(rank.budget.nvme.bytes)} per rank on NVMe"


def _errors(rows: list[Row]) -> Iterator[str]:
    """Yield which categories are exact, which nearly so, which guessed, and what that makes of the totals."""
    exact, near, guessed = [], [], []
    for name in BUDGETED:
        found = [bands.of(row.amounts[name]) for row in rows if row.amounts[name].bytes]
        sure = [band.within for band in found if band.within is not None and not band.guessed]
        guesses = [band.guessed for band in found if band.guessed]
        if sure and max(sure) == 0 and not guesses:
            exact.append(name)
        elif sure and max(sure) > 0:
            near.append(f"{name} within {bands.percent(max(sure))}")
        if guesses:
            some = "" if len(guesses) == len(found) else " in part"
            guessed.append(f"{name}{some}")
    totals = [band.within for row in rows if row.total and (band := bands.of_sum(row.amounts)).within is not None]
    parts = [
        f"{', '.join(exact)} exact" if exact else "",
        *near,
        f"{', '.join(guessed)} guessed" if guessed else "",
        f"totals within {bands.percent(max(totals))}" + " beside the guess" * bool(guessed) if totals else "",
    ]
    if text := "; ".join(part for part in parts if part):
        yield text


def _grouped(told: Iterable[tuple[str, str]], rows: list[Row]) -> Iterator[str]:
    """Yield every text once, with the strategies that it is about; none of them when it is about all."""
    groups: dict[str, list[str]] = {}
    everyone = [row.name for row in rows]
    for text, name in told:
        names = groups.setdefault(text, [])
        if name not in names:
            names.append(name)
    for text, names in groups.items():
        if text:
            yield text + _about(names, everyone)


def _about(names: list[str], everyone: list[str]) -> str:
    """Return in brackets which strategies a text is about; nothing when it is about all."""
    others = [name for name in everyone if name not in names]
    if not others:
        return ""
    few = len(others) <= 2 and len(names) > 4
    return f" (all but {', '.join(others)})" if few else f" ({', '.join(names)})"
