"""What is pushed into a script's own writer: the dashboard's numbers, and never a failure."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_job import FakeJob, fsdp_job, host_job
from msgspec.structs import replace

from ranktop.agent import attaching, push
from ranktop.agent.push import Pusher, facts
from ranktop.budget.terms import BUDGETED, CATEGORIES
from ranktop.tui.session.expected import expected, peak_moment
from ranktop.wire.schema import Card, Sample

PAGE = (Path(__file__).parents[2] / "docs" / "push.md").read_text()


class Agent:
    """An agent that has said this, so long ago."""

    def __init__(self, card: Card, sample: Sample, age: float = 0.2) -> None:
        self.sampler = SimpleNamespace(said=(card, sample, time.monotonic() - age))


def saw(monkeypatch: pytest.MonkeyPatch, job: FakeJob, rank: int, age: float = 0.2, **fields: Any) -> Sample:
    sample = replace(job.sample(rank, 5.0), **fields)
    monkeypatch.setattr(attaching, "_agent", Agent(job.card(rank), sample, age))
    return sample


@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("job", [fsdp_job(), host_job()], ids=["fsdp", "host"])
def test_the_facts_are_what_the_dashboard_shows(monkeypatch: pytest.MonkeyPatch, job: FakeJob, first: bool) -> None:
    for rank in (0, 1):
        table = job.sample(rank, 5.0).table
        assert table is not None
        sample = saw(monkeypatch, job, rank, table=replace(table, first=first))
        found = facts()
        peak = peak_moment(sample.table)
        budget = expected(job.card(rank), sample.table)
        assert peak is not None
        assert budget is not None
        assert sample.table is not None
        memory = sample.table.moments[peak]
        assert {name: found[f"ranktop/memory/{name}"] for name in CATEGORIES} == memory.by_category()
        for name in BUDGETED:
            amount = budget.at(peak)[name]
            assert found.get(f"ranktop/memory/expected/{name}") == amount.bytes
            assert found.get(f"ranktop/memory/tolerance/{name}") == amount.tolerance
        assert found["ranktop/memory/expected/parameters"] == memory.parameters
        assert found["ranktop/step/seconds"] == sample.steps[-1].seconds
        assert found.get("ranktop/device/power") == sample.device.power
        assert all(type(value) is float for value in found.values())


def test_less_than_the_plan_says_is_taken_for_checkpointing_as_the_dashboard_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = fsdp_job()
    from dataclasses import replace as with_fields

    job.plan = with_fields(job.plan, checkpointing=None)
    plain = saw(monkeypatch, job, 0)
    whole = facts()["ranktop/memory/expected/activations"]
    job.specs[0] = with_fields(job.specs[0], activations=int(whole / 3))
    saw(monkeypatch, job, 0)
    lower = job.sample(0, 5.0)
    budget = expected(job.card(0), lower.table)
    assert budget is not None
    peak = peak_moment(lower.table)
    assert peak == peak_moment(plain.table)
    amount = budget.at(str(peak))["activations"]
    assert facts()["ranktop/memory/expected/activations"] == amount.bytes
    assert facts().get("ranktop/memory/tolerance/activations") == amount.tolerance


def test_every_name_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    told = set(re.findall(r"^\| `(ranktop/[\w/]+)`", PAGE, re.MULTILINE))
    saw(monkeypatch, fsdp_job(), 0)
    phases = {f"ranktop/step/{phase}" for phase in ("data", "forward", "backward", "optimizer")}
    made = {
        re.sub(rf"(?<=/)(?:{'|'.join(CATEGORIES)}|total)$", "CATEGORY", name) for name in facts() if name not in phases
    }
    assert made == told


def test_nothing_without_an_agent_and_nothing_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching, "_agent", None)
    assert facts() == {}
    saw(monkeypatch, fsdp_job(), 0, age=3.5)
    assert facts() == {}
    job = fsdp_job()
    job.no_answer.add(0)  # its device last answered 12 s ago
    saw(monkeypatch, job, 0)
    found = facts()
    assert "ranktop/memory/parameters" in found
    assert not [name for name in found if name.startswith("ranktop/device/")]


def test_before_the_first_step_memory_is_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = saw(monkeypatch, fsdp_job(), 0, table=None, steps=(), step=0)
    found = facts()
    assert found["ranktop/memory/activations"] == sample.now.activations
    assert not [name for name in found if "expected" in name or name == "ranktop/step/seconds"]


class Board:
    """Stands for a SummaryWriter."""

    def __init__(self, error: Exception | None = None) -> None:
        self.scalars: list[tuple[str, float, int | None]] = []
        self.calls = 0
        self._error = error

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.calls += 1
        if self._error is not None:
            raise self._error
        self.scalars.append((tag, scalar_value, global_step))


class Run:
    """Stands for a W&B run."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], bool]] = []

    def log(self, data: dict[str, float], *, commit: bool) -> None:
        self.rows.append((data, commit))


def test_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    saw(monkeypatch, fsdp_job(), 0)
    run, board = Run(), Board()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    Pusher("wandb").push(7)
    assert run.rows == [(facts(), False)]
    late: list[Board] = []
    asked: list[int] = []

    def writer() -> Board | None:
        asked.append(1)
        return late[0] if late else None

    pusher = Pusher("tensorboard", writer=writer)
    pusher.push(7)
    late.append(board)
    pusher.push(8)
    pusher.push(9)
    assert {step for _, _, step in board.scalars} == {8, 9}
    assert {name: value for name, value, step in board.scalars if step == 9} == facts()
    assert len(asked) == 2  # not again once it has given one
    Pusher(True, writer=writer).push(10)
    assert len(run.rows) == 2
    assert board.scalars[-1][2] == 10
    Pusher(board).push()
    assert board.scalars[-1][2] is None
    Pusher(False, writer=writer).push(11)
    assert len(run.rows) == 2
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    Pusher("wandb").push(12)  # no run is active
    assert len(run.rows) == 2


def test_a_writer_that_fails_costs_two_lines_and_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    saw(monkeypatch, fsdp_job(), 0)
    board = Board(OSError(28, "No space left on device"))
    pusher = Pusher(board)
    for step in range(20):
        pusher.push(step)
    assert board.calls == 3
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("No space left on device" in line for line in said)
    assert said[-1].endswith("it is left alone from here on")


def test_what_cannot_be_worked_out_is_told_once_and_never_raised(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    saw(monkeypatch, fsdp_job(), 0)
    monkeypatch.setattr(push, "_told", set())
    monkeypatch.setattr(push, "_memory", lambda card, sample: 1 / 0)
    assert [facts(), facts()] == [{}, {}]
    Pusher("nonsense").push(1)
    first, second = capfd.readouterr().err.splitlines()
    assert "nothing is pushed of this rank: ZeroDivisionError" in first
    assert "cannot push to 'nonsense'" in second
