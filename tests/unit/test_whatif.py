"""A running job as the planner's question: its own row is itself, and what it measured goes into the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranktop.budget.activations.closed import activations
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.live import NOT_RECOGNISED, live_budget, understand
from ranktop.budget.model import Model, NoRule
from ranktop.budget.models.place import inventory
from ranktop.budget.naming import own_strategy, precision_name
from ranktop.budget.optimizers.states import by_name
from ranktop.budget.plan import Batch, Ddp, Forward, Fsdp, Layout, Plan, Precision, Zero
from ranktop.budget.project import project, rank_budget
from ranktop.budget.run import PRECISIONS, STRATEGIES
from ranktop.budget.states import expected_states
from ranktop.budget.strategies import plan_of
from ranktop.budget.terms import MOMENTS, STATES, Memory
from ranktop.budget.whatif import Job, as_run, ratio

MODEL = Model(family="gpt", layers=4, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocab=101, positions=32)
ADAMW = by_name("AdamW")
MIXED = Precision(compute="bfloat16", reduce="float32")
MASTER = Precision(parameters="bfloat16", master="float32")
DDP = Layout(world_size=4, replicate=4)
SHARDS = Layout(world_size=4, shard=4)
HYBRID = Layout(world_size=4, replicate=2, shard=2)
WAITING = ("forward_end", "backward_start")
ODD = Inventory.of([Kind((70, 50), "float32"), Kind((30,), "float32")])


def live(**fields: object) -> Plan:
    """Return the plan of a job on CPUs, as a card tells it."""
    base = Plan(
        optimizer=ADAMW,
        batch=Batch(micro_batch=4, sequence_length=32, accumulation=1),
        host=True,
        forward=Forward(heads=4, output_bytes=4 * 32 * 101 * 4, loss_inside=False),
    )
    return replace(base, **fields)  # type: ignore[arg-type]


LARGE = live(
    batch=Batch(micro_batch=256, sequence_length=32, accumulation=1),
    forward=Forward(heads=4, output_bytes=0, loss_inside=False),
)
"""Beside whose activations nothing counts that malloc gives to others."""
ALWAYS = tuple(MOMENTS)
TWICE = Batch(micro_batch=4, sequence_length=32, accumulation=2)
PLANS = {
    "single": live(),
    "single bf16": live(precision=Precision(parameters="bfloat16")),
    "single amp": live(precision=Precision(autocast="bfloat16")),
    "ddp": live(strategy="ddp", layout=DDP, ddp=Ddp()),
    "ddp views": live(strategy="ddp", layout=DDP, ddp=Ddp(gradient_as_bucket_view=True)),
    "ddp no_sync": live(
        strategy="ddp", layout=DDP, ddp=Ddp(gradient_as_bucket_view=True), batch=TWICE, gradients_at=ALWAYS[1:],
        unsharded_gradients_at=WAITING,
    ),
    "ddp kept": live(strategy="ddp", layout=DDP, ddp=Ddp(), gradients_at=ALWAYS),
    "zero1": live(strategy="zero1", layout=SHARDS, zero=Zero(stage=1), precision=MASTER),
    "zero2": live(strategy="zero2", layout=SHARDS, zero=Zero(stage=2, reduce_bucket_size=5000), precision=MASTER),
    "zero2 fp32": live(strategy="zero2", layout=SHARDS, zero=Zero(stage=2), batch=TWICE),
    "zero3": live(strategy="zero3", layout=SHARDS, zero=Zero(stage=3, persistence_threshold=100), precision=MASTER),
    "zero1-offload": live(
        strategy="zero1", layout=SHARDS, zero=Zero(stage=1, offload_optimizer="cpu"), precision=MASTER
    ),
    "zero2-offload": live(
        strategy="zero2", layout=SHARDS, zero=Zero(stage=2, offload_optimizer="cpu"), precision=MASTER
    ),
    "zero3-offload": live(
        strategy="zero3", layout=SHARDS, precision=MASTER,
        zero=Zero(stage=3, offload_optimizer="cpu", offload_parameters="cpu"),
    ),
    "fsdp-full": live(strategy="fsdp2", layout=SHARDS, fsdp=Fsdp()),
    "fsdp-full one": live(strategy="fsdp1", layout=SHARDS, fsdp=Fsdp(version=1), precision=MIXED),
    "fsdp-full no_sync": live(
        strategy="fsdp2", layout=SHARDS, fsdp=Fsdp(), batch=TWICE, gradients_at=ALWAYS[1:],
        unsharded_gradients_at=WAITING, precision=MIXED,
    ),
    "fsdp-full one no_sync": live(
        strategy="fsdp1", layout=SHARDS, fsdp=Fsdp(version=1), batch=TWICE, gradients_at=ALWAYS[1:],
        unsharded_gradients_at=WAITING,
    ),
    "fsdp-full bf16": live(
        strategy="fsdp2", layout=SHARDS, fsdp=Fsdp(), precision=Precision(parameters="bfloat16")
    ),
    "fsdp-grad-op": live(strategy="fsdp2", layout=SHARDS, fsdp=Fsdp(sharding="grad-op"), precision=MIXED),
    "fsdp-hybrid": live(strategy="fsdp2", layout=HYBRID, fsdp=Fsdp(sharding="hybrid")),
    "fsdp-hybrid kept": live(strategy="fsdp2", layout=HYBRID, fsdp=Fsdp(sharding="hybrid-grad-op")),
    "tp": live(strategy="tp", layout=Layout(world_size=2, tensor=2)),
    "tp ddp": live(strategy="ddp", layout=Layout(world_size=4, tensor=2, replicate=2), ddp=Ddp()),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_a_jobs_own_row_holds_what_the_job_should_hold(name: str) -> None:
    plan = PLANS[name]
    known = inventory(MODEL, plan)
    run = as_run(Job(inventory=known, plan=plan, name="GPT", moments={}))
    strategy = own_strategy(plan)
    assert strategy == name.split()[0] or name == "tp ddp"
    assert strategy in STRATEGIES
    assert run.precision in PRECISIONS
    own = plan_of(run, strategy)
    assert (own.layout, own.precision) == (plan.layout, plan.precision)
    budget, states = rank_budget(run, own), expected_states(known, plan)
    for moment in MOMENTS:
        for category in STATES:
            amount = budget.at(moment)[category]
            assert amount.bytes is not None
            assert amount.bytes == states.at(moment)[category].bytes, (moment, category)
    assert budget.at("forward_end")["activations"].bytes is not None


@pytest.mark.parametrize(
    ("precision", "name"),
    [
        (Precision(), "fp32"),
        (Precision(autocast="bfloat16"), "amp-bf16"),
        (Precision(autocast="float16"), "amp-fp16"),
        (Precision(parameters="bfloat16"), "bf16"),
        (MASTER, "bf16-master"),
        (Precision(parameters="float16", master="float32"), "fp16-master"),
        (Precision(parameters="float8_e4m3fn", gradients="bfloat16", master="float32"), "fp8"),
    ],
)
def test_precisions_have_names(precision: Precision, name: str) -> None:
    assert precision_name(live(precision=precision)) == name
    run = replace(as_run(Job(inventory=inventory(MODEL, live()), plan=live(), moments={})), precision=name)
    assert precision_name(plan_of(run, "single")) == name


def test_a_waiting_gradient_is_a_habit_of_accumulation() -> None:
    plan = PLANS["fsdp-full no_sync"]
    run = as_run(Job(inventory=inventory(MODEL, plan), plan=plan, moments={}))
    assert plan_of(run, "fsdp-full").unsharded_gradients_at == WAITING
    assert plan_of(replace(run, accumulation=1), "fsdp-full").unsharded_gradients_at == ()
    assert plan_of(run, "ddp").unsharded_gradients_at == ()


def measured(plan: Plan, times: float) -> Job:
    """Return a job whose saved activations are so many times the closed form's."""
    known = inventory(MODEL, plan)
    amount = live_budget(known, plan).at("forward_end")["activations"]
    saved = activations(MODEL, plan).saved
    size = (amount.bytes or 0) + round((times - 1) * saved)
    return Job(inventory=known, plan=plan, moments={"forward_end": Memory(activations=size)}, total=10**9)


def test_what_was_measured_goes_into_the_other_rows() -> None:
    plan = LARGE
    job = measured(plan, 1.5)
    assert ratio(job, understand(job.inventory, plan)) == pytest.approx(1.5, abs=0.001)
    run = as_run(job)
    assert run.activations is not None
    twice = replace(plan, batch=replace(plan.batch, micro_batch=512))
    found = run.activations(MODEL, twice)
    assert found.saved == pytest.approx(1.5 * activations(MODEL, twice).saved, rel=0.01)
    assert "measured in this job" in found.rule
    rank = project(run, "ddp").rank
    assert rank is not None
    assert "measured in this job" in rank.budget.at("forward_end")["activations"].rule


@pytest.mark.parametrize("times", [0.99, 1.0, 1.015])
def test_a_measurement_that_confirms_the_closed_form_leaves_it_as_it_is(times: float) -> None:
    plan = LARGE
    run = as_run(measured(plan, times))
    assert run.activations is not None
    assert run.activations(MODEL, plan) == activations(MODEL, plan)


def test_what_may_be_a_held_output_is_no_difference() -> None:
    plan = live()
    job = measured(plan, 1.0)
    size = job.moments["forward_end"].activations or 0
    held = replace(job, moments={"forward_end": Memory(activations=size + 4 * 32 * 101 * 4)})
    assert ratio(held, understand(job.inventory, plan)) == 1.0


def test_an_unknown_architecture_is_carried_over_by_its_tokens() -> None:
    plan = live()
    moments = {"forward_end": Memory(activations=1_000_000), "backward_start": Memory(activations=1_400_000)}
    run = as_run(Job(inventory=ODD, plan=plan, name="Odd", moments=moments))
    assert run.model.family == ""
    assert run.model.count == ODD.numel
    assert run.inventory == ODD
    assert run.activations is not None
    assert run.activations(run.model, plan).saved == 1_400_000
    assert run.activations(run.model, replace(plan, batch=replace(plan.batch, micro_batch=8))).saved == 2_800_000
    with pytest.raises(NoRule, match="no closed form"):
        run.activations(run.model, replace(plan, checkpointing="full"))
    found = project(run, "zero2")
    assert not found.refused
    assert found.rank is not None
    assert found.rank.budget.at("backward_end")["parameters"].bytes == ODD.numel * 4


def test_an_unknown_architecture_before_its_first_step_has_states_alone() -> None:
    run = as_run(Job(inventory=ODD, plan=live(), moments={}))
    assert run.activations is not None
    with pytest.raises(NoRule, match="no step of it has been measured"):
        run.activations(run.model, live())
    rank = project(run, "ddp").rank
    assert rank is not None
    amount = rank.budget.at("forward_end")["activations"]
    assert amount.bytes is None
    assert amount.rule.startswith(NOT_RECOGNISED)


@pytest.mark.parametrize("strategy", ["tp", "pp-1f1b", "pp-gpipe", "3d"])
def test_an_unknown_architecture_cannot_be_split(strategy: str) -> None:
    run = replace(as_run(Job(inventory=ODD, plan=live(), moments={})), world_size=8)
    assert project(run, strategy).refused


def test_a_job_brings_its_device_its_runtime_and_its_nodes() -> None:
    plan = PLANS["fsdp-hybrid"]
    run = as_run(Job(inventory=inventory(MODEL, plan), plan=plan, moments={}, total=80), runtime=7)
    assert (run.device_memory, run.gpus_per_node, run.world_size, run.host) == (80, 2, 4, True)
    assert run.runtime is not None
    assert run.runtime.bytes == 7
    assert as_run(Job(inventory=inventory(MODEL, plan), plan=plan, moments={})).runtime is None
