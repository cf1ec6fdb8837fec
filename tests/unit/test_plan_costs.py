"""What a comparison of strategies works out: no more than it must, and nothing else than strategy by strategy."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from time import struct_time
from types import FrameType

import pytest

from ranktop.budget import expected
from ranktop.budget.activations.closed import activations
from ranktop.budget.desk import Desk
from ranktop.budget.expected import expected as plain
from ranktop.budget.fsdp import states
from ranktop.budget.models.catalogue import find
from ranktop.budget.optimizers.names import by_name
from ranktop.budget.planning.answer import answer
from ranktop.budget.planning.flags import Flags
from ranktop.budget.planning.json_text import json_text
from ranktop.budget.planning.request import request
from ranktop.budget.project import inventory, project
from ranktop.budget.run import STRATEGIES, Run
from ranktop.budget.runtime import runtime

EIGHT = Flags(model="llama-3-8b", world_size="8", gpu="h100")


def test_a_comparison_works_each_kind_of_rank_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """47 kinds of rank, many of them at several micro-batches; of equal shards one stands for all."""
    made: list[str] = []
    told: list[str] = []

    class Counted(expected.Rank):
        def __init__(self, *arguments: object, **more: object) -> None:
            made.append("")
            super().__init__(*arguments, **more)  # type: ignore[arg-type]

        def budget(self, *arguments: object) -> object:  # type: ignore[override]
            told.append("")
            return super().budget(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(expected, "Rank", Counted)
    rows = answer(request(EIGHT)).rows
    kinds = sum(len(row.projection.ranks) for row in rows)
    assert kinds == 47
    assert len(made) <= 40
    assert len(told) <= 70


def test_a_comparison_stays_within_its_calls() -> None:
    """Calls of Python functions, of which a machine's mood changes none: 540,000 before ranks shared what is theirs."""
    answer(request(EIGHT))  # imports and their caches
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        answer(request(EIGHT))
    finally:
        sys.setprofile(before)
    assert 1000 < calls < 205_000


RUNS = (
    Run(model=find("gpt2"), world_size=8, precision="amp-bf16", device_memory=24 * 10**9, loss="auto"),
    Run(model=replace(find("llama-3.2-1b"), layers=6), world_size=12, device_memory=80 * 10**9, sequence_length=1000),
    Run(model=find("t5-small"), world_size=6, gpus_per_node=3, precision="fp32", optimizer=by_name("sgd"),
        checkpointing="full", sequence_length=512, device_memory=16 * 10**9),
    Run(model=replace(find("mixtral-8x7b"), layers=4), world_size=16, precision="bf16", optimizer=by_name("muon"),
        accumulation=2, sequence_length=256, device_memory=80 * 10**9),
)  # fmt: skip


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.model.name)
def test_what_strategies_and_micro_batches_share_changes_no_number(run: Run) -> None:
    desk = Desk()
    for batch in (1, 3, 1):
        asked = replace(run, micro_batch=batch)
        for strategy in STRATEGIES:
            found = project(asked, strategy, desk)
            for rank in found.ranks:
                plan = rank.plan
                alive = activations(asked.model, plan)
                assert rank.budget == plain(inventory(asked, plan), plan, alive, runtime=runtime(plan)), strategy


def test_the_largest_micro_batch_fits_and_one_more_does_not() -> None:
    run, desk = RUNS[0], Desk()
    for strategy in ("single", "zero1", "zero3", "fsdp-full", "pp-1f1b"):
        most = project(run, strategy, desk).max_micro_batch
        assert most is not None
        assert most > 0
        fits = [project(replace(run, micro_batch=size), strategy).fits for size in (most, most + 1)]
        assert fits == [True, False], strategy


def test_a_full_desk_is_cleared_and_tells_the_same() -> None:
    """Three entries of each sort, where 18 strategies need dozens."""
    for strategy in STRATEGIES:
        assert project(RUNS[1], strategy, Desk(most=3)) == project(RUNS[1], strategy)


def test_shards_are_told_apart_where_the_last_is_smaller() -> None:
    even, uneven = (replace(RUNS[1], world_size=size) for size in (8, 7))
    for run, kinds in ((even, 1), (uneven, 2)):
        ranks = project(run, "fsdp-full").ranks
        assert len({id(rank.budget) for rank in ranks}) == kinds
        shapes = {states.shard_shapes(inventory(run, rank.plan).kinds[0], rank.plan)[1] for rank in ranks}
        assert len(shapes) == kinds


def test_json_is_written_as_the_standard_library_writes_it() -> None:
    values: tuple[object, ...] = (
        {}, [], (), {"a": {}, "b": [], "c": [[]], "d": {"e": [1, 2, [3.5, None, True]]}}, [1, -2, 10**30], [True, 1],
        [1.0, 1e-300, float("inf"), -0.0, 0.1], "é \" \\ \n \x7f \u2028 😀", {"é": "–", "": None}, None, False, 3, 2.5,
        [{"x": (1, 2)}, ["a", ""]], Counter(a=1, b=2), [struct_time(range(9))],
    )  # fmt: skip
    for value in values:
        assert json_text(value) == json.dumps(value, indent=2)
