"""Every known answer, asked of the product: published, measured and counted cases in one table.

``pytest -s tests/cases/test_budget_cases.py`` prints it: case, published, ours, error.
"""

from __future__ import annotations

import importlib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from case_table import Row, cases, rows, table

MOST_UNASKED = 5
"""Cases whose inputs do not say what would be needed, or that are wrong themselves; each with its reason."""


@cache
def answered() -> tuple[Row, ...]:
    for file in sorted(Path(__file__).parent.glob("answers_*.py")):
        importlib.import_module(file.stem)
    return tuple(rows())


def summary() -> str:
    found = answered()
    errors = sorted(row.error for row in found if row.error is not None)
    asked = len(errors)
    inside = sum(row.inside is True for row in found)
    worst = sorted((row for row in found if row.error is not None), key=lambda row: -(row.error or 0.0))[:10]
    lines = [
        f"{len(found)} cases, {asked} asked, {inside} inside their tolerance ({inside / asked:.1%})",
        f"error: median {errors[asked // 2]:.3%}, p90 {errors[asked * 9 // 10]:.2%}, largest {errors[-1]:.1%}",
        "",
        "largest errors:",
        table(worst),
        "",
        "by source: cases, inside, p90 error",
    ]
    for source in dict.fromkeys(row.case.source[:60] for row in found):
        of = [row for row in found if row.case.source.startswith(source)]
        some = sorted(row.error for row in of if row.error is not None)
        p90 = f"{some[len(some) * 9 // 10]:.2%}" if some else "-"
        lines.append(f"  {source:60} {len(of):4} {sum(row.inside is True for row in of):4} {p90:>8}")
    return "\n".join(lines)


def test_every_case_that_can_be_asked_is_inside_its_tolerance() -> None:
    found = list(answered())
    print(f"\n{table(found)}\n\n{summary()}")
    assert len(found) == len(cases()) == 777
    off = [row for row in found if row.inside is False]
    assert not off, table(off)


def test_what_is_not_asked_is_little_and_says_why() -> None:
    unasked = [row for row in answered() if row.ours is None]
    assert len(unasked) <= MOST_UNASKED, Counter(row.reason for row in unasked)
    assert all(len(row.reason) > 20 for row in unasked)


@pytest.mark.parametrize(
    ("source", "median", "p90"),
    [
        ("Megatron-LM functional-test", 0.01, 0.09),
        ("own FSDPMemTracker", 0.01, 0.05),
        ("own run of deepspeed", 0.01, 0.05),
    ],
)
def test_measured_families_are_close_and_not_only_inside(source: str, median: float, p90: float) -> None:
    errors = sorted(row.error for row in answered() if row.case.source.startswith(source) and row.error is not None)
    assert errors[len(errors) // 2] <= median
    assert errors[len(errors) * 9 // 10] <= p90


def test_an_answer_is_compared_and_not_taken_over() -> None:
    """The table tells a wrong number from a right one."""
    row = next(row for row in answered() if isinstance(row.ours, float | int) and row.case.tolerance_rel < 0.5)
    assert isinstance(row.ours, float | int)
    assert Row(row.case, row.ours * 2 + 1).inside is False
    assert Row(row.case, None, "no").inside is None
