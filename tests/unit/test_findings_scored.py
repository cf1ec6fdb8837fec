"""The findings of seeded simulated jobs: who is slow, what else is wrong, and silence where nothing is.

A smaller version of ``tests/bench/bench_findings.py table``; the same jobs in every run, on a clock of their own.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
from bench.scoring import NAMED, SLOWING, Case, Outcome, cases, follow, scores

from ranktop.agent.simulation.faults import ENDING, KINDS, Fault
from ranktop.agent.simulation.job import Setup

JOBS = 24
STEPS = 40


@lru_cache
def outcomes() -> list[Outcome]:
    return [follow(case, STEPS, look_every=10) for case in cases(JOBS, seed=2, ranks=8)]


def test_the_slow_rank_is_named_and_no_other() -> None:
    score = scores(outcomes())["ranktop"]
    assert score.precision == 1.0
    assert score.recall is not None
    assert score.recall >= 0.9


def test_a_share_of_the_fastest_finds_less() -> None:
    found = scores(outcomes())
    ours = found.pop("ranktop").recall or 0.0
    assert all((plain.recall or 0.0) <= ours - 0.25 for plain in found.values())


def test_nothing_is_said_of_healthy_jobs() -> None:
    healthy = [one for one in outcomes() if one.case.fault is None]
    assert len(healthy) == JOBS // 4
    assert [finding.sentence for one in healthy for finding in one.serious] == []


def test_other_faults_are_named_and_nothing_else_is() -> None:
    others = [one for one in outcomes() if one.case.fault is not None and not one.case.slow]
    assert [one.case.fault for one in others if not one.found] == []
    assert [finding.sentence for one in others for finding in one.wrong] == []


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("straggler", "data", "throttle")])
def test_each_fault_is_named_with_its_rank(name: str) -> None:
    kind = KINDS[name]
    start = 12 if name in ENDING else 1
    fault = Fault(name, -1 if kind.everyone else 5, kind.by, start)
    outcome = follow(Case(Setup(8, faults=(fault,), seed=11), fault), 40, look_every=20)
    assert outcome.found, [finding.sentence for finding in outcome.looks[-1][1]]
    assert [finding.sentence for finding in outcome.wrong] == []
    assert outcome.failure == ""


def test_every_fault_has_a_rule() -> None:
    assert set(NAMED) == set(KINDS)
    assert set(SLOWING) <= set(KINDS)
