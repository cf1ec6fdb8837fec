"""Model states under real DeepSpeed jobs: measured equals every live byte, and the budget equals the measured.

The ground truth is a dispatch mode that knows every storage of the process (deepspeed_worker.py): what the probe
claims, what the script holds, what the current forward pass made and a few scalars must add up to all of it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest
from forked import run_jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(480),
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]

STATES = ("parameters", "gradients", "optimizer")
MOMENTS = ("step_start", "forward_end", "backward_start", "backward_end", "step_end")
SMALL = {"reduce_bucket_size": 300, "stage3_param_persistence_threshold": 10}
OFFLOAD = {**SMALL, "offload_optimizer": {"device": "cpu"}}

Case = dict[str, Any]
Results = dict[int, dict[str, Any]]

BASIC: dict[str, Case] = {
    f"zero{stage}-{optimizer}-{dtype}": {
        "stage": stage,
        "optimizer": optimizer,
        "dtype": dtype,
        "zero": SMALL if stage else {},
    }
    for dtype in ("fp32", "bf16")
    for optimizer in ("adamw", "sgd")
    for stage in (0, 1, 2, 3)
}

OPTIONS: dict[str, Case] = {
    "zero3-default-persistence": {"stage": 3, "zero": {"reduce_bucket_size": 1000}},
    "zero0-accumulation": {"stage": 0, "zero": {}, "accumulation": 2},
    "zero1-accumulation": {"stage": 1, "accumulation": 2},
    "zero2-accumulation": {"stage": 2, "accumulation": 2},
    "zero3-accumulation": {"stage": 3, "accumulation": 2},
    "zero2-groups": {"stage": 2, "groups": True},
    "zero2-groups-fp32": {"stage": 2, "groups": True, "dtype": "fp32"},
    "zero3-groups-fp32": {"stage": 3, "groups": True, "dtype": "fp32"},
    "zero2-overlap": {"stage": 2, "zero": {**SMALL, "overlap_comm": True}},
    "zero2-round-robin": {"stage": 2, "zero": {**SMALL, "round_robin_gradients": True}},
    "zero2-scattered": {"stage": 2, "zero": {**SMALL, "contiguous_gradients": False}, "groups": True},
    "zero2-aligned": {"stage": 2, "zero": {**SMALL, "parameter_alignment": True}},
    "zero1-offload": {"stage": 1, "zero": OFFLOAD},
    "zero2-offload": {"stage": 2, "zero": OFFLOAD},
    "zero2-offload-accumulation": {"stage": 2, "zero": OFFLOAD, "accumulation": 2},
    "zero3-offload": {"stage": 3, "zero": OFFLOAD},
    "zero3-offload-parameters": {"stage": 3, "zero": {**OFFLOAD, "offload_param": {"device": "cpu"}}},
    "zero3-sub-groups": {"stage": 3, "zero": {**SMALL, "sub_group_size": 100}},
    "zero3-sub-groups-fp32": {"stage": 3, "dtype": "fp32", "zero": {**SMALL, "sub_group_size": 100}},
    "zero1-fp32-accumulation": {"stage": 1, "config": {"data_types": {"grad_accum_dtype": "fp32"}}},
    "zero2-fp32-accumulation": {"stage": 2, "config": {"data_types": {"grad_accum_dtype": "fp32"}}},
    "zero3-fp32-accumulation": {"stage": 3, "config": {"data_types": {"grad_accum_dtype": "fp32"}}},
    "zero2-fp32-accumulation-twice": {
        "stage": 2,
        "config": {"data_types": {"grad_accum_dtype": "fp32"}},
        "accumulation": 2,
    },
}

CASES: dict[str, Case] = {
    **BASIC,
    **{name: {"optimizer": "adamw", "dtype": "bf16", "zero": SMALL, **case} for name, case in OPTIONS.items()},
}

ALONE = (
    "zero1-adamw-fp32",
    "zero2-adamw-bf16",
    "zero3-adamw-bf16",
    "zero3-default-persistence",
    "zero3-accumulation",
    "zero2-offload",
)
"""Cases that run on one rank too, where there is nothing to share out."""

PAIRED = [name for name in CASES if any(word in name for word in ("bf16", "accumulation", "groups", "aligned"))]
"""Cases that run on two ranks too, as most do on three, which divide nothing evenly."""

CASES_OF: dict[int, list[str]] = {1: list(ALONE), 2: PAIRED, 3: list(CASES)}
"""Number of ranks -> cases."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Results]:
    """Number of ranks -> what each of them found of its cases."""
    folders = {world: tmp_path_factory.mktemp(f"deepspeed-{world}") for world in CASES_OF}
    for world, folder in folders.items():
        (folder / "cases.json").write_text(json.dumps({name: CASES[name] for name in CASES_OF[world]}))
    run_jobs("deepspeed_worker", folders, timeout=420)
    return {
        world: {rank: json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)}
        for world, folder in folders.items()
    }


def rows(results: Results, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every reading of a case with a name for it."""
    for rank, cases in results.items():
        for row in cases[name]["rows"]:
            yield f"rank {rank}, step {row['step']}, {row['moment']}", row


every_case = pytest.mark.parametrize(
    ("world", "name"), [(world, name) for world, names in CASES_OF.items() for name in names]
)


@every_case
def test_every_live_byte_is_accounted_for(jobs: dict[int, Results], world: int, name: str) -> None:
    for where, row in rows(jobs[world], name):
        assert not row["unexplained"], f"{where}: nobody claims (bytes, born)"
        assert not row["missing"], f"{where}: claimed, but not alive"
        rest = row["held"] + row["activations"] + row["scalars"]
        assert sum(row["measured"].values()) == row["live"] - rest, where
        assert row["scalars"] <= 256, where


@every_case
def test_torch_sees_the_same_optimizer(jobs: dict[int, Results], world: int, name: str) -> None:
    """The base optimizer's parameters, gradients and states, as torch's own hooks show them, are where they belong."""
    for where, row in rows(jobs[world], name):
        assert not row["public"], where


@every_case
def test_budget_equals_measurement(jobs: dict[int, Results], world: int, name: str) -> None:
    results = jobs[world]
    for rank, cases in results.items():
        expected = cases[name]["expected"]
        for row in cases[name]["rows"]:
            for key in ("first",) if row["step"] == 0 else ("later", "later, planned before"):
                for category in STATES:
                    amount, slack, rule = expected[key][row["moment"]][category]
                    where = f"rank {rank}, step {row['step']}, {row['moment']}, {category}: {rule}"
                    assert amount is not None, where
                    assert abs(amount - row["measured"][category]) <= slack, where


@every_case
def test_slack_only_where_the_first_step_gathers(jobs: dict[int, Results], world: int, name: str) -> None:
    for cases in jobs[world].values():
        for key, table in cases[name]["expected"].items():
            slack = {(moment, c) for moment, row in table.items() for c, a in row.items() if a[1]}
            gathering = {(moment, "parameters") for moment in ("forward_end", "backward_start")}
            allowed = gathering if (key, name) == ("first", "zero3-accumulation") else set()
            assert slack <= allowed, (key, slack)


@every_case
def test_cheap_looks_tell_the_truth(jobs: dict[int, Results], world: int, name: str) -> None:
    """Equal layout keys mean equal bytes, keys recur every step, and gradients exist when they have bytes."""
    for rank, cases in jobs[world].items():
        bytes_of: dict[str, Any] = {}
        for row in cases[name]["rows"]:
            where = f"rank {rank}, step {row['step']}, {row['moment']}"
            assert row["exist"] == (row["measured"]["gradients"] > 0), where
            assert bytes_of.setdefault(row["key"], row["measured"]) == row["measured"], where
        by_step = [[r["key"] for r in cases[name]["rows"] if r["step"] == step] for step in (1, 2)]
        assert by_step[0] == by_step[1]


@pytest.mark.parametrize("world", [2, 3])
def test_hooks_see_every_step(jobs: dict[int, Results], world: int) -> None:
    """Hooks on the engine, on its model, on the output and on all optimizers run once each, in this order."""
    forward = ["engine begins", "model begins", "model ends", "engine ends", "output has its gradient"]
    step = ["optimizer begins", "optimizer ends"]
    for cases in jobs[world].values():
        for name in CASES_OF[world]:
            case = CASES[name]
            steps = {"zero2-groups": 2, "zero2-groups-fp32": 2, "zero3-groups-fp32": 2, "zero2-scattered": 2}
            if "sub-groups" not in name:
                wanted = forward * case.get("accumulation", 1) + step * steps.get(name, 1)
                assert cases[name]["events"] == wanted, name
            assert cases[name]["found"], name
            assert [r["moment"] for r in cases[name]["rows"] if r["step"] == 1] == list(MOMENTS), name
            assert cases[name]["plan"]["strategy"] == f"zero{case['stage']}"
        assert cases["zero3-sub-groups"]["events"].count("optimizer ends") >= 2
        assert cases["zero1-fp32-accumulation"]["plan"]["wrapper"] == "BF16_Optimizer"
