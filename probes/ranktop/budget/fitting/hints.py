"""When nothing fits: what would make it fit, computed, and what fits if training itself is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ranktop.budget.fitting.candidate import Candidate, Suggestion
from ranktop.budget.fitting.judge import Judge, Point
from ranktop.budget.fitting.shapes import shapes
from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.optimizers.names import by_name
from ranktop.budget.run import Run

if TYPE_CHECKING:
    from ranktop.budget.fitting.search import Search

MOST_RANKS: Final = 64
"""How many times the ranks are looked at."""

SCALING: Final = ("zero3", "zero3-offload", "zero-infinity", "fsdp-full", "3d")
"""Strategies that need less per rank, the more ranks there are."""

_ADAM: Final = ("Adam", "AdamW", "FusedAdam", "DeepSpeedCPUAdam")

_WITH_MASTERS: Final = {"fp32": "bf16", "amp-bf16": "bf16", "bf16-master": "bf16"}


def shorter(judge: Judge, near: Candidate) -> int | None:
    """Return the most tokens per sample, in steps of 128, with which the nearest plan fits; None when none does."""
    length = near.run.sequence_length or near.run.model.positions
    low, high = 0, (length - 1) // 128
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(judge, near, middle * 128) else (low, middle - 1)
    return low * 128 or None


def _fits(judge: Judge, near: Candidate, length: int) -> bool:
    try:
        found = judge.judge(replace(near.run, sequence_length=length), near.strategy)
    except (NoRule, BadInput):
        return False
    return found is not None and found.fits


def more_ranks(judge: Judge, near: Candidate, strategies: tuple[str, ...]) -> Iterator[tuple[int, str] | None]:
    """Yield None as long as nothing fits with twice the ranks, and twice again; at last their number and a plan.

    The global batch is kept. Everything is checkpointed, the micro-batch is the smallest.
    """
    names = tuple(name for name in strategies if name in SCALING or name == near.strategy)
    factor = 2
    while factor <= MOST_RANKS:
        world = judge.run.world_size * factor
        grown = Judge(replace(judge.run, world_size=world, data=None), judge.present, judge.batch, judge.at)
        for shape in shapes(grown.run, names, near.strategy):
            if grown.each(shape) is not None:
                one = grown.candidate(Point(shape, near.run.precision, "full", 1))
                if one is not None and one.fits:
                    yield world, one.title
                    return
            yield None
        factor *= 2


def suggestions(run: Run, judge: Judge, strategies: tuple[str, ...]) -> Iterator[Suggestion | None]:
    """Yield None as often as there was work, and the plans that fit if training itself is changed."""
    from ranktop.budget.fitting.search import Search

    changed: list[tuple[str, Run]] = []
    if run.optimizer.name in _ADAM and run.lora is None:
        words = "8-bit Adam (bitsandbytes): another optimizer, its moments in 8 bits"
        changed.append((words, replace(run, optimizer=by_name("adamw8bit"))))
    if run.precision in _WITH_MASTERS:
        words = "pure bf16: no fp32 weights, small updates are lost in rounding"
        changed.append((words, replace(run, precision=_WITH_MASTERS[run.precision])))
    for words, other in changed:
        search = Search(other, batch=judge.batch, strategies=strategies, at=judge.at)
        yield from _first(search, judge, words)


def _first(search: Search, judge: Judge, words: str) -> Iterator[Suggestion | None]:
    for _ in search.feasible(judge.present):
        yield None
    found = search.answer().fitting
    if found:
        yield Suggestion(words=words, candidate=found[0])
