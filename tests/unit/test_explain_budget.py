"""An explanation's numbers are the projection's, and its formulas come to what the exact rules say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ranktop.budget.explain import explain
from ranktop.budget.explain.explanation import MOST_RANKS, Explanation, Formula, Share
from ranktop.budget.model import Model
from ranktop.budget.models.catalogue import find
from ranktop.budget.models.tensors import count
from ranktop.budget.optimizers.names import by_name
from ranktop.budget.plan import Fsdp, Lora, Zero
from ranktop.budget.project import project
from ranktop.budget.run import STRATEGIES, Run

DENSE = replace(find("llama-3.2-1b"), layers=8)
EXPERTS = replace(find("mixtral-8x7b"), layers=2)
BARE = Model(name="7.5e9", count=7_500_000_000)
MODELS = {"dense": DENSE, "experts": EXPERTS, "bare": BARE}


def run_of(model: Model, world: int = 8, **more: Any) -> Run:
    length = 512 if model.family else 0
    return replace(Run(model=model, world_size=world, sequence_length=length, device_memory=80 << 30), **more)


@cache
def dense(strategy: str) -> Explanation:
    return explain(run_of(DENSE), strategy)


def formula(explanation: Explanation, category: str) -> Formula:
    return next(each for each in explanation.formulas if each.category == category)


@pytest.mark.parametrize(("kind", "world"), [("dense", 8), ("dense", 64), ("experts", 2), ("bare", 1), ("bare", 8)])
def test_every_strategy_is_explained(kind: str, world: int) -> None:
    for strategy in STRATEGIES:
        found = dense(strategy) if (kind, world) == ("dense", 8) else explain(run_of(MODELS[kind], world), strategy)
        if found.projection.refused:
            assert not found.formulas
            continue
        assert found.summary
        assert found.formulas
        assert found.knobs
        assert 1 <= len(found.ranks) <= MOST_RANKS
        assert 1 <= len(found.kinds) <= MOST_RANKS
        worst = found.projection.rank
        assert worst is not None
        assert any(worst.budget is rank.budget for rank in found.kinds)


def test_a_knob_tells_host_memory_and_nvme_apart() -> None:
    knob = next(each for each in dense("zero3-offload").knobs if each.after == "NVMe")
    on_host, on_disk = project(run_of(DENSE), "zero3-offload").rank, project(run_of(DENSE), "zero-infinity").rank
    assert on_host is not None
    assert on_disk is not None
    assert knob.nvme == on_disk.budget.nvme.bytes
    assert knob.nvme > 1 << 30
    assert knob.host == (on_disk.budget.host.bytes or 0) - (on_host.budget.host.bytes or 0) != knob.nvme


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_numbers_are_the_projection_s(strategy: str) -> None:
    found = dense(strategy)
    rank = found.projection.rank
    assert rank is not None
    assert found.projection == project(found.run, strategy)
    assert found.parameters == count(DENSE)
    for each in found.formulas:
        assert each.budget == rank.budget.at(each.moment)[each.category].bytes
        if each.most is not None:
            assert each.most == rank.budget.at(each.most_at)[each.category].bytes
            assert sum(part.bytes for part in each.more) <= each.most
    assert max(moment.total or 0 for moment in found.moments) == rank.total
    for moment in found.moments:
        assert sum(size or 0 for size in moment.held.values()) == rank.budget.total(moment.name)
    assert sum(one.sent for one in found.collectives) == found.projection.sent


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_rank_is_of_one_kind(strategy: str) -> None:
    found = dense(strategy)
    told = sorted(rank for kind in found.kinds for rank in kind.ranks)
    layout = found.kinds[0].plan.layout
    assert told == list(range(layout.world_size))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_knob_s_effect_is_the_difference_of_two_projections(strategy: str) -> None:
    found = dense(strategy)
    here = found.projection.rank
    assert here is not None
    assert here.total is not None
    assert {(knob.name, knob.after) for knob in found.knobs}
    for knob in found.knobs:
        there = project(replace(knob.run, device_memory=None), knob.strategy)
        rank = there.rank
        assert rank is not None
        assert rank.total is not None
        assert knob.peak == rank.total - here.total, knob
        assert knob.sent == there.sent - found.projection.sent, knob
        host = [each.budget.host.bytes or 0 for each in (rank, here)]
        nvme = [each.budget.nvme.bytes or 0 for each in (rank, here)]
        assert (knob.host, knob.nvme) == (host[0] - host[1], nvme[0] - nvme[1]), knob
        assert not knob.partial


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("pp-1f1b", {}), ("pp-gpipe", {}), ("pp-1f1b", {"virtual": 2, "pipeline": 8}), ("3d", {"tensor": 2})],
)
def test_deep_pipelines_are_searched_for_their_worst_stage(strategy: str, more: dict[str, int]) -> None:
    """Stages that cannot be the worst are left out when knobs are turned, which must not change the answer."""
    run = run_of(find("llama-3.2-1b"), 16, checkpointing="full", accumulation=32, **more)
    found = explain(run, strategy)
    here = found.projection.rank
    assert here is not None
    for knob in found.knobs:
        there = project(replace(knob.run, device_memory=None), knob.strategy).rank
        assert there is not None
        assert knob.peak == (there.total or 0) - (here.total or 0), knob


def test_knobs_come_in_the_order_of_their_effect() -> None:
    for strategy in STRATEGIES:
        sizes = [abs(knob.peak) for knob in dense(strategy).knobs]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("strategy", "category", "symbols"),
    [
        ("ddp", "parameters", ["2P"]),
        ("ddp", "optimizer", ["4P", "8P"]),
        ("zero1", "parameters", ["2P"]),
        ("zero1", "optimizer", ["4P/N", "8P/N"]),
        ("zero2", "gradients", ["4P/N"]),
        ("zero3", "parameters", ["2P/N"]),
        ("fsdp-full", "parameters", ["4P/N"]),
        ("fsdp-full", "gradients", ["4P/N"]),
        ("fsdp-full", "optimizer", ["8P/N"]),
        ("tp", "parameters", ["2P/t"]),
        ("pp-1f1b", "optimizer", ["4P/p", "8P/p"]),
        ("3d", "gradients", ["4P/(t·p)"]),
        ("3d", "optimizer", ["4P/(t·N·p)", "8P/(t·N·p)"]),
    ],
)
def test_symbols(strategy: str, category: str, symbols: list[str]) -> None:
    assert [term.symbol for term in formula(dense(strategy), category).terms] == symbols


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero1", "zero2", "zero3", "fsdp-full", "fsdp-grad-op"])
@pytest.mark.parametrize("category", ["parameters", "optimizer"])
def test_formulas_without_model_parallel_come_to_the_budget(strategy: str, category: str) -> None:
    """Padding apart; ZeRO-3 besides keeps small parameters whole."""
    each = formula(dense(strategy), category)
    assert each.bytes is not None
    assert each.budget is not None
    assert abs(each.bytes - each.budget) <= each.budget // 500
    assert (each.bytes == each.budget) == (not each.difference)


def test_what_a_formula_leaves_out_is_named() -> None:
    assert "stage" in formula(dense("pp-1f1b"), "parameters").difference
    assert "norms" in formula(dense("tp"), "parameters").difference
    assert "100,000" in formula(dense("zero3"), "parameters").difference


def test_saved_activations_add_up() -> None:
    each = formula(dense("ddp"), "activations")
    assert each.bytes is not None
    assert each.budget is not None
    assert abs(each.bytes - each.budget) < 1 << 20
    assert each.most is not None
    assert each.most > each.budget


def test_shares_of_the_states_tile_the_whole() -> None:
    """Over the ranks that share them, the parts are all different and as many as they are said to be."""
    for strategy in ("zero3", "fsdp-full", "tp", "pp-1f1b"):
        for at in range(3):
            shares = [rank.shares[at] for rank in dense(strategy).ranks]
            assert {share.parts for share in shares} == {8}
            assert sorted(share.index for share in shares) == list(range(8))


def test_shares_of_the_activations_say_what_is_not_cut() -> None:
    def shares(explanation: Explanation) -> list[Share]:
        return [rank.shares[3] for rank in explanation.ranks]

    whole = shares(dense("tp"))
    assert {(share.parts, share.partly, share.own) for share in whole} == {(1, True, False)}
    saved = [
        next(moment.held["activations"] or 0 for moment in dense(strategy).moments if moment.name == "forward_end")
        for strategy in ("tp", "single")
    ]
    assert saved[1] / 8 * 1.5 < saved[0] < saved[1]
    cut = shares(explain(run_of(DENSE, sequence_parallel="megatron", stack="megatron"), "tp"))
    assert {(share.parts, share.partly) for share in cut} == {(8, False)}
    staged = shares(dense("pp-1f1b"))
    assert {(share.parts, share.own, share.partly) for share in staged} == {(1, True, False)}
    assert [share.in_flight for share in staged] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert {share.in_flight for share in shares(dense("pp-gpipe"))} == {8}
    assert {(share.own, share.in_flight) for share in shares(dense("ddp"))} == {(True, 1)}


@pytest.mark.parametrize(
    ("strategy", "more", "said"),
    [
        ("single", {}, "on each rank"),
        ("ddp", {}, "on each rank"),
        ("zero1", {}, "over all ranks"),
        ("tp", {}, "over all ranks"),
        ("tp", {"tensor": 4}, "over 4 ranks"),
    ],
)
def test_master_weights_are_said_to_lie_where_they_do(strategy: str, more: dict[str, Any], said: str) -> None:
    found = explain(run_of(DENSE, **more), strategy)
    truth = next(each.truth for each in found.mistakes if "half of what fp32 does" in each.claim)
    assert f"({{masters}} {said})" in truth


def test_zero_1_has_all_gradients_and_zero_2_a_part() -> None:
    one, two = (dense(strategy).ranks[0].shares[1] for strategy in ("zero1", "zero2"))
    assert (one.parts, two.parts) == (1, 8)
    assert one.bytes == 2 * count(DENSE)


def test_offloaded_states_are_away() -> None:
    assert [share.away for share in dense("zero2-offload").ranks[0].shares] == ["", "host", "host", ""]
    assert [share.away for share in dense("zero-infinity").ranks[0].shares] == ["NVMe", "NVMe", "NVMe", ""]
    offloaded = explain(run_of(DENSE, fsdp=Fsdp(cpu_offload=True)), "fsdp-full")
    assert [share.away for share in offloaded.ranks[0].shares] == ["host", "host", "host", ""]


def test_only_the_first_gpu_of_data_parallel_has_the_optimizer() -> None:
    assert [rank.shares[2].parts for rank in dense("dp").ranks] == [1, 0, 0, 0, 0, 0, 0, 0]


def test_experts_are_told_apart() -> None:
    found = explain(run_of(EXPERTS, 8, expert=4), "ddp")
    each = formula(found, "parameters")
    assert [term.symbol for term in each.terms] == ["2Ps", "2Pe/e"]
    assert each.bytes == each.budget


def test_mistakes_carry_this_run_s_numbers() -> None:
    sizes = {mistake.claim: mistake.sizes for mistake in dense("zero2").mistakes}
    rule = next(sizes[claim] for claim in sizes if "4.5" in claim)
    assert rule["rule"] == 9_000_000_000  # 5e8 x 2 bytes x 2 buckets x 4.5, as the documents say
    assert rule["buckets"] == 1_000_000_000
    estimate = next(sizes[claim]["estimate"] for claim in sizes if "estimator" in claim)
    parameters = count(DENSE)
    assert estimate == 2 * parameters + 18 * parameters // 8


def test_the_estimator_says_what_deepspeed_s_own_says() -> None:
    """11.28 GiB for 2851 million parameters on 8 GPUs, as ``estimate_zero2_model_states_mem_needs`` itself answers."""
    from ranktop.budget.explain.estimators import zero_2
    from ranktop.budget.plan import Layout, Plan

    plan = Plan(layout=Layout(world_size=8, shard=8), zero=Zero(stage=2))
    assert round(zero_2(plan, 2_851_000_000).bytes / 2**30, 2) == 11.28


def test_estimates_are_told_with_the_formula_that_they_come_from() -> None:
    claims = [mistake.claim for name in ("zero2-offload", "zero3-offload") for mistake in dense(name).mistakes]
    said = [claim.partition("needs: ")[2] for claim in claims if "estimator" in claim]
    assert said == ["2P, {estimate}", "4 × largest layer, {estimate}"]


def test_a_running_job_of_unknown_architecture_is_explained() -> None:
    """Its parameters are an inventory, its activations a measurement."""
    from ranktop.budget.activations.saved import Activations
    from ranktop.budget.models.place import inventory
    from ranktop.budget.plan import Plan

    measured = Activations(layers=8, layer=10 << 20, blocks=80 << 20, logits=50 << 20, within=0.02, rule="measured")
    found = explain(
        Run(
            model=Model(name="Net"), world_size=4, precision="fp32", inventory=inventory(DENSE, Plan()),
            activations=lambda model, plan: measured, sequence_length=128,
        ),
        "fsdp-full",
    )  # fmt: skip
    assert found.parameters == count(DENSE)
    assert formula(found, "activations").bytes == 130 << 20
    assert formula(found, "activations").source == "measured"
    assert found.knobs


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_placeholder_of_a_mistake_has_its_size(strategy: str) -> None:
    for mistake in dense(strategy).mistakes:
        sizes = {name: str(size) for name, size in mistake.sizes.items()}
        assert "{" not in mistake.claim.format(**sizes)
        assert "{" not in mistake.truth.format(**sizes)
        assert all(size >= 0 for size in mistake.sizes.values()), mistake
        assert mistake.source


@pytest.mark.parametrize(
    "more",
    [
        {"precision": "amp-bf16"},
        {"precision": "fp8"},
        {"precision": "fp32", "optimizer": by_name("adafactor")},
        {"optimizer": by_name("muon")},
        {"optimizer": by_name("none")},
        {"lora": Lora(rank=8, quantized="nf4")},
        {"checkpointing": "full", "checkpoint_every": 2, "accumulation": 4, "micro_batch": 2},
        {"attention": "eager", "loss": "hf", "context": 2},
        {"zero": Zero(stage=2, overlap_comm=True, reduce_bucket_size=5), "fsdp": Fsdp(version=1)},
        {"stack": "megatron", "host": True},
    ],
)
def test_unusual_runs_are_explained(more: dict[str, Any]) -> None:
    for strategy in ("ddp", "zero2", "zero3-offload", "fsdp-full", "3d"):
        found = explain(run_of(DENSE, **more), strategy)
        assert found.projection.refused or found.formulas


def test_factored_states_have_no_formula() -> None:
    found = explain(run_of(DENSE, precision="fp32", optimizer=by_name("adafactor")), "ddp")
    each = formula(found, "optimizer")
    assert each.terms == ()
    assert each.budget
