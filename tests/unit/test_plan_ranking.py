"""Which strategy is marked as the best: the order that a practitioner would expect, on cases with a clear answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ranktop.budget.collective import Collective
from ranktop.budget.fitting.cost import Speeds, work
from ranktop.budget.models.catalogue import find
from ranktop.budget.planning.answer import Row, answer
from ranktop.budget.planning.ranking import CALL, lost_per_sample
from ranktop.budget.planning.ranking import best as best_of
from ranktop.budget.planning.request import request
from ranktop.tui.plan import plan
from ranktop.tui.plan_flags import PlanFlags


def best(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert plan([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["best"]


@pytest.mark.parametrize(
    ("strategies", "memory", "expected"),
    [
        ("single,ddp", "80GiB", "ddp"),  # idle GPUs cost more than an all-reduce
        ("zero1,zero1-offload", "80GiB", "zero1"),  # nothing goes to the host that needs not
        ("ddp,zero3", "80GiB", "ddp"),  # what is whole needs not be gathered
        ("fsdp-full,fsdp-grad-op", "80GiB", "fsdp-grad-op"),
        ("ddp,zero3", "14GiB", "zero3"),  # only one of them fits
        ("ddp,zero1", "1GiB", None),
    ],
)
def test_best(capsys: pytest.CaptureFixture[str], strategies: str, memory: str, expected: str | None) -> None:
    run = ("--model", "gpt2-xl", "--seq-len", "512", "--world-size", "8", "--device-memory", memory)
    assert best(capsys, *run, "--strategy", strategies) == expected


@pytest.mark.parametrize("model", ["gpt2", "bert-base-uncased", "vit-b-16", "gpt2-xl"])
def test_what_fits_whole_is_not_cut(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert best(capsys, "--model", model, "--world-size", "8", "--gpu", "h100") == "ddp"


def one_row() -> Row:
    return answer(request(PlanFlags(model="gpt2", world_size="8", gpu="h100", strategy="ddp"))).rows[0]


def test_what_fits_by_less_than_its_error_gives_way_to_what_costs_as_much() -> None:
    row = one_row()
    assert row.projection.headroom is not None
    other = replace(row, projection=replace(row.projection, strategy="zero1"))
    assert best_of([other, row], "h100") == "ddp"
    tight = replace(row, projection=replace(row.projection, headroom=1 << 20))
    assert best_of([other, tight], "h100") == "zero1"
    assert best_of([tight], "h100") == "ddp"


def test_many_calls_cost_more_than_their_few_bytes() -> None:
    row = one_row()
    sent = Collective(kind="all_reduce", group=8, bytes=1 << 20, axis="replicate")
    few, many = (
        replace(row, projection=replace(row.projection, collectives=(replace(sent, calls=calls),)))
        for calls in (1, 1001)
    )
    at = Speeds()
    work_done = work(find("gpt2"), 1024)
    more = lost_per_sample(many, at, work_done) - lost_per_sample(few, at, work_done)
    assert more == pytest.approx(1000 * CALL / 8)


def test_a_pipeline_that_waits_is_not_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    run = [
        "--model",
        "llama-3-8b",
        "--seq-len",
        "4096",
        "--world-size",
        "8",
        "--gpu",
        "h200",
        "--strategy",
        "fsdp-full,pp-1f1b",
    ]
    assert best(capsys, *run) == "fsdp-full"
    assert best(capsys, *run, "--grad-accum", "1024") == "pp-1f1b"


def test_without_a_device_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert best(capsys, "--model", "gpt2") is None
