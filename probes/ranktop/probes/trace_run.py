"""From a recipe to coefficients: reads the grid, falls back to real tensors where fake ones fail, checks the fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from ranktop.budget.activations.coefficients import Coefficients, Setting
from ranktop.budget.model import BadInput
from ranktop.probes.trace_bench import Bench, NeedsReal
from ranktop.probes.trace_feed import Feed
from ranktop.probes.trace_fit import DEPTHS, Grid, error, fit, grid
from ranktop.probes.trace_model import Recipe
from ranktop.probes.trace_step import Setup

LINEAR: Final = 0.01
"""Error beyond which a model is said not to be linear in depth, batch or sequence."""

REAL_TOKENS: Final = 64
"""Longest sequence that is run with real tensors, which cost time and memory."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to read, and under which setting."""

    batch: int
    sequence: int
    sequences: tuple[int, ...] = ()
    parameters: str | None = None
    """Dtype that the parameters are given; None = as the model makes them."""
    autocast: str | None = None
    checkpointing: bool = False
    """Read a second time with every block checkpointed."""
    gpu: bool = True
    real: bool = False


def run(recipe: Recipe, feed: Feed, request: Request) -> Coefficients:
    """Return the coefficients of a model; BadInput or the model's own exception."""
    setup = Setup(feed, getattr(torch, request.autocast) if request.autocast else None, request.gpu)
    bench = Bench(recipe, setup, getattr(torch, request.parameters) if request.parameters else None, request.real)
    if not bench.real:
        try:
            return _read(recipe, feed, request, bench, grid(request.batch, request.sequence, request.sequences))
        except NeedsReal as reason:
            bench.go_real(str(reason))
    return _read(recipe, feed, request, bench, _small(request))


def _small(request: Request) -> Grid:
    """Return a grid that is cheap to compute on a CPU."""
    if request.sequences:
        return grid(1, min(request.sequences), request.sequences)
    return grid(min(request.batch, 2), min(request.sequence, REAL_TOKENS))


def _read(recipe: Recipe, feed: Feed, request: Request, bench: Bench, where: Grid) -> Coefficients:
    plain = {point: bench.read(*point) for point in where.points()}
    terms = fit(plain, where)
    missed = [error(terms, point, bench.read(*point)) for point in where.checks()]
    notes = [f"real tensors: {bench.reason}"] if bench.real else []
    for what, off in zip(("depth", "batch and sequence"), missed, strict=True):
        if off > LINEAR:
            notes.append(f"not linear in {what}: a prediction missed by {off:.1%}")
    full = None
    if request.checkpointing:
        if not bench.blocks()[DEPTHS[0]]:
            raise BadInput("nothing to checkpoint: no list of modules grows with the number of layers")
        full = fit({point: bench.read(*point, checkpointed=True) for point in where.points()}, where)
    shallow, deep = (plain[d, where.batches[0], where.sequences[0]] for d in DEPTHS)
    counts, sizes = (
        (low - (high - low), high - low)
        for low, high in (
            (shallow.parameters, deep.parameters),
            (shallow.parameter_bytes, deep.parameter_bytes),
        )
    )
    if counts[1] <= 0:
        notes.append("parameters do not grow with the number of layers")
    return Coefficients(
        model=recipe.name,
        layers=recipe.layers,
        setting=_setting(request, bench),
        plain=terms,
        full=full,
        parameters=counts,
        parameter_bytes=sizes,
        batch=request.batch,
        sequence=request.sequence,
        batches=where.batches,
        sequences=where.sequences,
        within=round(max(missed), 6),
        tensors="real" if bench.real else "fake",
        loss=feed.used,
        torch=str(torch.__version__),
        notes=tuple(notes),
    )


def _setting(request: Request, bench: Bench) -> Setting:
    sizes: dict[str, int] = {}
    model = bench.model(DEPTHS[-1])
    for parameter in model.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + parameter.numel()
    return Setting(
        parameters=max(sizes, key=lambda name: sizes[name]) if sizes else "float32",
        autocast=request.autocast,
        attention=str(getattr(getattr(model, "config", None), "_attn_implementation", None) or ""),
        host=not request.gpu,
    )
