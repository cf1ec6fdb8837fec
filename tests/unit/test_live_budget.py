"""A running job's budget: outputs and losses where its script has them, and what measuring cannot tell apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranktop.budget.activations.closed import activations
from ranktop.budget.expected import expected
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.live import (
    FLIGHT_RECORDER,
    NO_BATCH,
    NOT_RECOGNISED,
    OTHER_OBJECTS,
    OUTPUTS,
    ROUNDING,
    as_measured,
    live_budget,
    understand,
)
from ranktop.budget.live_gathered import gathered
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Batch, Ddp, Forward, Fsdp, Layout, OptimizerPlan, Plan, Precision
from ranktop.budget.terms import ALL_MOMENTS, MOMENTS, STATES, Amount, Part

MODEL = Model(family="gpt", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocab=100, positions=32)
LLAMA = Model(
    family="llama", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=100, positions=32
)  # fmt: skip
LOGITS = 4 * 32 * 100 * 4
OUTSIDE = Forward(heads=4, output_bytes=LOGITS, loss_inside=False)
INSIDE = Forward(heads=4, output_bytes=LOGITS + 4, loss_inside=True)
PLAN = Plan(
    optimizer=OptimizerPlan(name="AdamW", count=1),
    batch=Batch(micro_batch=4, sequence_length=32, accumulation=1),
    host=True,
    forward=OUTSIDE,
)
SHARDED = replace(PLAN, strategy="fsdp2", fsdp=Fsdp(), layout=Layout(world_size=2, shard=2))
BLOCK = 4 * (4 * 64 + 3 * 64 * 64 + 3 * 64 + 64 * 64 + 64 + 2 * 4 * 64 * 64 + 5 * 64)
ROOT = 4 * (2 * 100 * 64 + 32 * 64 + 2 * 64)


def at(moment: str, plan: Plan, model: Model = MODEL, *, first: bool = False) -> Amount:
    """Return the activations that a job of this plan should show."""
    return live_budget(inventory(model, plan), plan, first_step=first).at(moment)["activations"]


def names(amount: Amount) -> dict[str, int]:
    return {part.name: part.bytes for part in amount.parts}


def test_an_architecture_that_is_not_known_says_so_and_has_its_states_all_the_same() -> None:
    odd = Inventory.of([Kind((7, 5), "float32"), Kind((3,), "float32")])
    budget = live_budget(odd, PLAN)
    for moment in ("forward_end", "backward_start"):
        amount = budget.at(moment)["activations"]
        assert (amount.bytes, amount.rule) == (None, NOT_RECOGNISED)
        assert all(budget.at(moment)[category].bytes is not None for category in STATES)
    assert understand(odd, PLAN).model is None


def test_a_batch_that_was_not_seen_says_so() -> None:
    amount = at("forward_end", replace(PLAN, batch=Batch()))
    assert (amount.bytes, amount.rule) == (None, NO_BATCH)
    assert understand(inventory(MODEL, PLAN), replace(PLAN, batch=Batch()), "Mine").model == replace(MODEL, name="Mine")


def test_a_loss_outside_of_the_model_comes_after_forward_and_is_gone_when_the_logits_have_their_gradient() -> None:
    alive = activations(MODEL, PLAN)
    end, start = at("forward_end", PLAN), at("backward_start", PLAN)
    assert end.bytes == alive.saved - alive.logits + LOGITS
    assert start.bytes == alive.saved - alive.logits + 2 * LOGITS
    assert "logits and loss" not in names(end)
    assert "logits and loss" not in names(start)
    assert names(start)["gradient of the logits"] == LOGITS


def test_under_autocast_the_head_keeps_its_input_although_the_loss_is_outside() -> None:
    plan = replace(PLAN, precision=Precision(autocast="bfloat16"), forward=replace(OUTSIDE, output_bytes=LOGITS // 2))
    assert names(at("forward_end", plan))["head's input, cast"] == 4 * 32 * 64 * 2


def test_a_loss_inside_of_the_model_has_run_when_forward_ends() -> None:
    plan = replace(PLAN, forward=INSIDE)
    alive = activations(MODEL, plan)
    for moment in ("forward_end", "backward_start"):
        found = at(moment, plan)
        assert found.bytes == alive.saved + LOGITS + 4
        assert names(found)["logits and loss"] == alive.logits


def test_a_loss_inside_of_a_transformers_model_keeps_the_logits_in_its_output() -> None:
    plan = replace(PLAN, loss="hf", forward=INSIDE)
    alive = activations(LLAMA, plan)
    assert {part.name: part.bytes for part in alive.parts}[OUTPUTS] == LOGITS
    assert at("forward_end", plan, LLAMA).bytes == alive.saved + 4
    dropped = replace(plan, forward=replace(INSIDE, held_bytes=0))
    assert at("forward_end", dropped, LLAMA).bytes == alive.saved + 4
    assert at("backward_start", dropped, LLAMA).bytes == alive.saved - LOGITS


@pytest.mark.parametrize("accumulation", [1, 2])
def test_outputs_that_a_script_holds_are_there_until_the_next_forward_has_returned(accumulation: int) -> None:
    batch = replace(PLAN.batch, accumulation=accumulation)
    held = replace(PLAN, batch=batch, forward=replace(OUTSIDE, held_bytes=LOGITS))
    dropped = replace(PLAN, batch=batch, forward=replace(OUTSIDE, held_bytes=0))

    def more(moment: str, first: bool = False) -> int:
        return (at(moment, held, first=first).bytes or 0) - (at(moment, dropped, first=first).bytes or 0)

    assert [more(moment) for moment in MOMENTS] == [LOGITS] * 5
    again = LOGITS if accumulation > 1 else 0
    assert [more(moment, True) for moment in MOMENTS] == [0, again, LOGITS, LOGITS, LOGITS]


def test_when_outputs_are_let_go_is_a_slack_while_a_step_runs() -> None:
    plan = replace(PLAN, forward=replace(OUTSIDE, cache_bytes=1000))
    budget = live_budget(inventory(MODEL, plan), plan)
    slacks = {moment: budget.at(moment)["activations"].slack - OTHER_OBJECTS for moment in ALL_MOMENTS}
    assert slacks == {
        moment: 0 if moment in ("load", "checkpoint_save") else LOGITS + 1000 for moment in ALL_MOMENTS
    }  # fmt: skip


def test_a_key_value_cache_among_the_outputs_is_a_part() -> None:
    plan = replace(PLAN, loss="hf", forward=replace(INSIDE, cache_bytes=1))
    found = names(at("forward_end", plan, LLAMA))
    assert found["key/value cache of the output object"] == 2 * 2 * 4 * 32 * 2 * 16 * 4


def test_autocasts_cache_holds_checkpointed_blocks_weights_until_the_script_leaves_it() -> None:
    plan = replace(PLAN, precision=Precision(autocast="bfloat16"), checkpointing="full")
    biases = 4 * 512
    casts = 2 * ((3 * 64 * 64 + 64 * 64 + 2 * 4 * 64 * 64) * 2 + biases)
    assert names(at("forward_end", plan))["copies of weights in autocast's cache"] == casts
    assert "copies of weights in autocast's cache" not in names(at("backward_start", plan))


def test_malloc_has_no_blocks_of_512_bytes_but_other_customers() -> None:
    on_gpu = replace(PLAN, host=False)
    assert ROUNDING in names(at("step_start", on_gpu))
    assert ROUNDING not in names(at("step_start", PLAN))
    assert at("step_start", PLAN).slack == LOGITS + OTHER_OBJECTS
    together = replace(PLAN, layout=Layout(world_size=2, replicate=2), strategy="ddp", ddp=Ddp())
    assert at("step_start", together).slack == LOGITS + OTHER_OBJECTS + FLIGHT_RECORDER


def test_what_measuring_cannot_tell_from_temporaries_is_an_activation() -> None:
    table = {
        "activations": Amount(100, "saved", slack=3, within=0.1, parts=(Part("saved", 100),)),
        "buffers": Amount(70, "b", within=0.0, parts=(Part("module buffers", 20), Part("gathered", 50, False))),
        "runtime": Amount(9, "r", within=None, parts=(Part("context", 5), Part("workspaces", 4, False))),
    }
    found = as_measured(table)
    assert {name: amount.bytes for name, amount in found.items()} == {"activations": 154, "buffers": 20, "runtime": 5}
    assert found["activations"].slack == 3 + 4
    assert found["activations"].within == pytest.approx(100 * 0.1 / 170)
    assert [part.name for part in found["activations"].parts] == ["saved", "gathered", "workspaces"]
    assert all(sum(part.bytes for part in amount.parts) == amount.bytes for amount in found.values())


def test_unknown_activations_stay_unknown_and_nothing_is_moved_into_them() -> None:
    table = {
        "activations": Amount(None, "why"),
        "buffers": Amount(70, "b", parts=(Part("gathered", 70, False),)),
        "runtime": Amount(None, "not known"),
    }
    found = as_measured(table)
    assert found["activations"] == Amount(None, "why")
    assert found["buffers"].bytes == 0


def test_a_jobs_gathered_parameters_are_activations_and_its_buffers_what_can_be_seen() -> None:
    budget = live_budget(inventory(MODEL, SHARDED), SHARDED)
    paper = expected(inventory(MODEL, SHARDED), SHARDED, activations(MODEL, SHARDED))
    assert paper.at("backward_start")["buffers"].bytes == ROOT
    assert budget.at("backward_start")["buffers"].bytes == 0
    assert names(budget.at("backward_start")["activations"])["root's parameters, gathered"] == ROOT


def test_fsdp2_lets_go_of_the_last_all_gather_before_or_after_the_reading() -> None:
    known = inventory(MODEL, SHARDED)
    parts, slack = gathered("forward_end", known, SHARDED, first_step=False)
    assert [part.bytes for part in parts] == [BLOCK]
    assert slack == BLOCK
    assert gathered("backward_start", known, SHARDED, first_step=False) == ((), 0)
    assert at("forward_end", SHARDED).slack == LOGITS + BLOCK + OTHER_OBJECTS + FLIGHT_RECORDER
    half = replace(SHARDED, precision=Precision(compute="bfloat16", reduce="float32"))
    assert gathered("forward_end", known, half, first_step=False)[1] == BLOCK // 2
    alone = replace(SHARDED, layout=Layout())
    assert gathered("forward_end", known, alone, first_step=False) == ((), 0)


def test_fsdp2s_root_is_gathered_before_the_first_reading_of_all() -> None:
    known = inventory(MODEL, SHARDED)
    assert gathered("step_start", known, SHARDED, first_step=True)[1] == 2 * ROOT
    assert gathered("step_start", known, SHARDED, first_step=False) == ((), 0)


def test_fsdp2s_root_goes_after_forward_where_a_script_wants_it() -> None:
    plan = replace(SHARDED, fsdp=Fsdp(root_resharded=True))
    assert sum(part.bytes for part in gathered("forward_end", inventory(MODEL, plan), plan, False)[0]) == BLOCK + ROOT
    assert at("forward_end", plan).bytes == at("forward_end", SHARDED).bytes
    assert (at("backward_start", plan).bytes or 0) == (at("backward_start", SHARDED).bytes or 0) - ROOT


@pytest.mark.parametrize(
    ("fsdp", "ahead"),
    [
        (Fsdp(version=1), BLOCK),
        (Fsdp(version=1, prefetch=False), 0),
        (Fsdp(version=1, sharding="grad-op"), 0),
        (Fsdp(version=1, sharding="none"), 0),
    ],
)
def test_fsdp1_has_asked_for_the_last_unit_when_backward_begins(fsdp: Fsdp, ahead: int) -> None:
    plan = replace(SHARDED, strategy="fsdp1", fsdp=fsdp)
    known = inventory(MODEL, plan)
    assert sum(part.bytes for part in gathered("backward_start", known, plan, False)[0]) == ahead
    assert gathered("forward_end", known, plan, False) == ((), 0)
