"""Budgets that ranks share are those that each of them would have had by itself."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ranktop.agent.simulation.job import Setup
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.live import live_budget
from ranktop.budget.plan import Fsdp, Layout, Plan
from ranktop.tui.session import expected as module
from ranktop.tui.session.expected import alike, expected
from ranktop.wire.schema import Card, Table

UNEVEN = Inventory.of([
    Kind((37, 5), "float32"), Kind((64, 3), "float32", unit=1), Kind((7, 11), "bfloat16", unit=1, shard_dim=1),
    Kind((), "float32", unit=2), Kind((9,), "float32", unit=-1), Kind((30, 4), "float32", unit=2, shards=6),
    Kind((30, 4), "float32", unit=2, shards=6, shard_rank=5),
])  # fmt: skip
"""Dimensions that no number of ranks divides, a scalar, one that stays whole, and experts sharded otherwise."""


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cache", {})
    monkeypatch.setattr(module, "_budgets", {})


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("ranks", [3, 8, 12, 40])
@pytest.mark.parametrize("reshard", [None, 2])
def test_ranks_with_the_same_rows_hold_the_same(ranks: int, first: bool, reshard: int | None) -> None:
    plan = Setup(ranks, strategy="fsdp2").plan(0)
    plan = replace(plan, fsdp=replace(plan.fsdp or Fsdp(), reshard_after_forward=reshard))
    kinds: dict[object, list[object]] = {}
    for rank in range(ranks):
        own = replace(plan, layout=replace(plan.layout, shard_rank=rank))
        kinds.setdefault(alike(UNEVEN, own), []).append(live_budget(UNEVEN, own, "", first_step=first))
    assert None not in kinds
    assert len(kinds) < ranks or ranks == 3
    assert all(budget == budgets[0] for budgets in kinds.values() for budget in budgets)


@pytest.mark.parametrize(("strategy", "computed"), [("fsdp2", 3), ("ddp", 1)])
def test_a_large_job_needs_few(strategy: str, computed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 ranks some lack the last rows of the model's sizes; each gets what it would compute by itself."""
    setup = Setup(64, strategy=strategy)
    cards = [setup.card(rank, pid=1 + rank) for rank in range(64)]
    count = 0

    def counted(card: Card, plan: Plan, first: bool) -> object:
        nonlocal count
        count += 1
        return live_budget(setup.inventory, plan, card.model, first_step=first)

    monkeypatch.setattr(module, "_compute", counted)
    found = [expected(card, None) for card in cards]
    assert 1 <= count <= computed
    for rank in (0, 31, 62, 63):
        assert found[rank] == live_budget(setup.inventory, setup.plan(rank), "LlamaForCausalLM", first_step=False)


def test_what_depends_on_the_rank_itself_is_not_shared() -> None:
    plan = Setup(8, strategy="fsdp2").plan(3)
    assert alike(UNEVEN, replace(plan, fsdp=Fsdp(version=1), strategy="fsdp1")) is None
    assert alike(UNEVEN, replace(plan, strategy="zero3")) is None
    dp = replace(plan, strategy="dp", layout=Layout(world_size=8, replicate=8, replicate_rank=3))
    assert alike(UNEVEN, dp) is None
    staged = replace(plan, layout=replace(plan.layout, pipeline=2, pipeline_rank=1))
    assert alike(UNEVEN, staged) != alike(UNEVEN, replace(staged, layout=replace(staged.layout, pipeline_rank=0)))


def test_nothing_is_compared_with_the_activations_of_a_cpu_jobs_first_step() -> None:
    """It loads libraries, too, through the malloc that serves the tensors."""
    setup = Setup(2, strategy="ddp")
    card = setup.card(0, pid=1)
    assert card.plan is not None
    on_host = msgspec.structs.replace(card, plan=replace(card.plan, host=True))
    for one, first, compared in ((on_host, True, False), (on_host, False, True), (card, True, True)):
        budget = expected(one, Table(step=1, first=first))
        assert budget is not None
        amounts = budget.at("forward_end")
        assert amounts["activations"].bytes
        assert (amounts["activations"].tolerance is not None) == compared
        assert amounts["parameters"].tolerance == 0
