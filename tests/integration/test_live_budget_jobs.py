"""The budget of running jobs beside what their ranks held: every strategy, on two ranks, counted storage by storage."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import msgspec
import pytest
from forked import run_jobs
from live_budget_cases import CASES, Case, Report

from ranktop.budget.live import understand
from ranktop.budget.naming import own_strategy
from ranktop.budget.project import rank_budget
from ranktop.budget.strategies import plan_of
from ranktop.budget.terms import MOMENTS, STATES, Amount
from ranktop.budget.whatif import Job, as_run, ratio
from ranktop.tui.session.expected import difference, expected
from ranktop.wire.schema import Table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TOLERANCE = 0.01
RANKS = 2
SMALL = 2048
"""Bytes of tokens, labels and scalars: whether a script holds them is not worth telling."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[list[Report]]:
    """What each rank of one job says, which runs all cases."""
    out = tmp_path_factory.mktemp("live")
    run_jobs("live_budget_worker", {RANKS: out}, timeout=220, also="deepspeed")
    return [
        msgspec.msgpack.decode((out / f"rank{rank}.msgpack").read_bytes(), type=list[Report]) for rank in range(RANKS)
    ]


def amounts(report: Report, table: Table) -> Iterator[tuple[str, str, int | None, Amount]]:
    """Yield (moment, category, measured, expected) of a table; the process beside its tensors is not counted here."""
    assert report.card is not None
    budget = expected(report.card, table)
    assert budget is not None
    assert set(table.moments) == set(MOMENTS), report.name
    for moment, memory in table.moments.items():
        for category, amount in budget.at(moment).items():
            if category != "runtime":
                yield moment, category, getattr(memory, category), amount


def tables(report: Report) -> list[Table]:
    """Return the tables of the first step and of a later one."""
    assert not report.errors, (report.name, report.errors)
    assert report.first is not None
    assert report.later is not None
    assert report.first.first
    assert not report.later.first
    return [report.first, report.later]


def every(reports: list[list[Report]], ranks: int = RANKS) -> list[tuple[Case, Report, Table]]:
    """Return each case's reports and tables on every rank."""
    assert [[report.name for report in rank] for rank in reports] == [[case.name for case in CASES]] * ranks
    return [
        (case, report, table)
        for rank in reports
        for case, report in zip(CASES, rank, strict=True)
        for table in tables(report)
    ]


def test_states_and_buffers_are_exact(reports: list[list[Report]]) -> None:
    for case, report, table in every(reports):
        for moment, category, measured, amount in amounts(report, table):
            if category in (*STATES, "buffers"):
                assert measured == amount.bytes, (case.name, table.first, moment, category, amount)


def test_nothing_is_told_of_a_healthy_job(reports: list[list[Report]]) -> None:
    for case, report, table in every(reports):
        for moment, category, measured, amount in amounts(report, table):
            # Libraries are loaded in the first step, whose memory is malloc's too: its activations are a guess.
            wanted = None if table.first and category == "activations" else 0
            assert difference(measured, amount) == wanted, (case.name, table.first, moment, category, measured, amount)


def test_a_jobs_own_row_among_the_strategies_holds_what_it_holds(reports: list[list[Report]]) -> None:
    for case, report, table in every(reports[:1], ranks=1):
        card = report.card
        assert card is not None
        assert card.plan is not None
        assert card.inventory is not None
        if table.first:
            continue
        job = Job(inventory=card.inventory, plan=card.plan, name=card.model, moments=table.moments)
        run = as_run(job)
        budget = rank_budget(run, plan_of(run, own_strategy(card.plan)))
        for moment, memory in table.moments.items():
            for category in STATES:
                assert getattr(memory, category) == budget.at(moment)[category].bytes, (case.name, moment, category)
        assert ratio(job, understand(card.inventory, card.plan, card.model)) == 1.0, case.name


def test_nothing_but_inputs_and_held_outputs_is_alive_between_the_passes(reports: list[list[Report]]) -> None:
    for case, report, table in every(reports):
        for moment, category, measured, amount in amounts(report, table):
            if category == "activations" and moment not in ("forward_end", "backward_start"):
                assert abs((measured or 0) - (amount.bytes or 0)) <= SMALL, (case.name, table.first, moment, amount)


def test_activations_around_the_loss(reports: list[list[Report]], capsys: pytest.CaptureFixture[str]) -> None:
    lines, errors = [], []
    for case, report, table in every(reports):
        for moment, category, measured, amount in amounts(report, table):
            if category != "activations" or moment not in ("forward_end", "backward_start"):
                continue
            wanted = amount.bytes
            assert wanted
            assert measured is not None
            errors.append(abs(measured - wanted) / wanted)
            if not table.first:
                lines.append(f"{case.name:36} {moment:14} {wanted:>9} {measured:>9} {errors[-1]:7.2%}")
    with capsys.disabled():
        print(f"\nActivations of {len(CASES)} jobs on {RANKS} ranks (gathered parameters included), bytes")
        print(f"{'job':36} {'moment':14} {'expected':>9} {'measured':>9}   error")
        print("\n".join(lines[: len(lines) // RANKS]))
        print(f"median {statistics.median(errors):.2%}, worst {max(errors):.2%} of {len(errors)} readings")
    assert max(errors) <= TOLERANCE
