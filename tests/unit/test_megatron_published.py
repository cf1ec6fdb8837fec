"""Megatron's own published readings: of its small jobs as a whole, of its 7B jobs one by one."""

from __future__ import annotations

from statistics import median
from typing import Any

import answers_megatron
import case_table
import pytest

GOLDEN = "Megatron-LM functional-test golden values"


def _errors(quantity: str, kind: str = "") -> list[float]:
    rows = [
        row
        for row in case_table.rows(GOLDEN)
        if row.case.quantity.startswith(f"torch.cuda {quantity}") and row.case.case.startswith(kind)
    ]
    return sorted(row.error for row in rows if row.error is not None)


@pytest.mark.parametrize("quantity", ["max_memory_allocated", "memory_allocated"])
def test_published_readings_of_small_jobs(quantity: str) -> None:
    errors = _errors(quantity)
    assert len(errors) >= 59
    assert median(errors) <= 0.01
    assert errors[int(0.9 * len(errors))] <= 0.03
    assert errors[-1] <= 0.09
    dense = _errors(quantity, "gpt/")
    assert median(dense) <= 0.007
    assert dense[int(0.9 * len(dense))] <= 0.012


def test_megatrons_own_estimate_is_what_it_prints() -> None:
    rows = list(case_table.rows("Megatron-LM megatron/training/theoretical_memory_usage.py"))
    assert len(rows) == 14
    assert case_table.table(rows, only_bad=True) == ""


SEVEN_BILLION: dict[str, Any] = {
    "L": 32, "h": 4096, "a": 32, "gqa": 8, "s": 8192, "cp": 1, "ep": 1, "E": None, "do": True, "sp": False, "rc": None,
    "swiglu": False, "bias": True, "untie": True, "bf16": True, "fp16": None, "vp": None, "gbs": 8, "dp": 2,
}  # fmt: skip
TENSOR = {"tp": 4, "pp": 1, "mbs": 2, "Vp": 131072}
PIPELINE = {"tp": 1, "pp": 4, "vp": 8, "mbs": 1, "Vp": 131200}


@pytest.mark.parametrize(
    ("inputs", "gpu", "peak", "steady"),
    [
        (TENSOR, "h100", 57143791616, 20663519232),
        (TENSOR, "a100", 58188115968, 20634103808),
        (PIPELINE, "h100", 60518293504, 24540168192),
        (PIPELINE, "a100", 60489064448, 24510808064),
    ],
)
def test_published_readings_of_7b_jobs(inputs: dict[str, Any], gpu: str, peak: float, steady: float) -> None:
    # gpt3_7b_tp4_pp1_memory_speed and gpt3_7b_tp1_pp4_memory_speed, of the same repository.
    case = case_table.Case(
        id="7b",
        kind="published_measured",
        source=f"golden_values_dev_dgx_{gpu}.json",
        case="gpt/gpt3_7b_memory_speed",
        inputs={**SEVEN_BILLION, **inputs, "attn": None},
        quantity="",
        value=peak,
        unit="B",
        tolerance_rel=0.01,
    )
    assert answers_megatron.peak(case) == pytest.approx(peak, rel=0.002)
    assert answers_megatron.steady(case) == pytest.approx(steady, rel=0.002)
