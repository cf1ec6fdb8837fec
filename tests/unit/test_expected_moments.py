"""The whole budget of small models, moment by moment, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranktop.budget import runtime
from ranktop.budget.activations.saved import Activations
from ranktop.budget.expected import expected
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import BadInput
from ranktop.budget.optimizers.states import by_name
from ranktop.budget.plan import Batch, Ddp, Fsdp, Layout, Pipeline, Plan, Precision
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, Amount, Budget

NONE = Amount(0, "left out")
ADAMW = by_name("adamw")

# Multiples of 512 bytes, so that rounding adds nothing: an embedding, two blocks of a matrix, a head, in fp32.
TABLE, MATRIX = 512 * 1024, 512 * 512
MODEL = Inventory.of(
    [Kind((512, 256), "float32"), *[Kind((256, 256), "float32")] * 2, Kind((512, 256), "float32", group=0)]
)
SIZE = 2 * TABLE + 2 * MATRIX

UNIT = 100 * 512
ALIVE = Activations(
    layers=2, layer=10 * UNIT, blocks=20 * UNIT, outside=3 * UNIT, logits=4 * UNIT, inputs=512, loss_forward=UNIT,
    loss_backward=8 * UNIT, block_backward=5 * UNIT, boundary=UNIT, after=2 * UNIT, within=0.01, rule="by hand",
)  # fmt: skip


def budget(plan: Plan, alive: Activations | None = ALIVE, **options: bool) -> Budget:
    return expected(MODEL, plan, alive, runtime=NONE, **options)


def sizes(found: Budget, moment: str) -> dict[str, int | None]:
    return {name: found.at(moment)[name].bytes for name in BUDGETED if name != "runtime"}


def test_one_device_through_a_step() -> None:
    found = budget(Plan(optimizer=ADAMW))
    assert sizes(found, "step_start") == {
        "parameters": SIZE, "gradients": 0, "optimizer": 2 * SIZE, "activations": 512, "buffers": 0,
    }  # fmt: skip
    assert sizes(found, "forward")["activations"] == 28 * UNIT + 512
    assert sizes(found, "forward_end")["activations"] == 27 * UNIT + 512
    assert sizes(found, "backward_end")["gradients"] == SIZE
    step = sizes(found, "optimizer_step")
    assert (step["optimizer"], step["activations"]) == (2 * SIZE, SIZE + 512)
    assert found.peak() == "optimizer_step"


def test_backward_is_highest_in_the_last_block_at_the_loss_or_at_its_end() -> None:
    # 27 + 8 units at the loss; in the last block 26 units with the gradients of head and block, 15.4 units;
    # at the end 2 units with all gradients, 30.7 units.
    block = budget(Plan(optimizer=ADAMW)).at("backward")
    assert block["gradients"].bytes == TABLE + MATRIX
    assert block["activations"].bytes == 26 * UNIT + 512
    vocabulary = replace(ALIVE, loss_backward=20 * UNIT)
    loss = budget(Plan(optimizer=ADAMW), vocabulary).at("backward")
    assert "(loss)" in loss["gradients"].rule
    assert (loss["gradients"].bytes, loss["activations"].bytes) == (0, 47 * UNIT + 512)
    short = replace(ALIVE, blocks=2 * UNIT, layer=UNIT, logits=0, loss_backward=0)
    end = budget(Plan(optimizer=ADAMW), short).at("backward")
    assert (end["gradients"].bytes, end["activations"].bytes) == (SIZE, 2 * UNIT + 512)


def test_accumulation_keeps_gradients_through_every_later_forward() -> None:
    plan = Plan(optimizer=ADAMW, batch=Batch(micro_batch=1, accumulation=2))
    found = budget(plan)
    for moment in ("forward", "forward_end", "backward_start", "backward", "backward_end"):
        assert found.at(moment)["gradients"].bytes == SIZE
    assert found.at("step_start")["gradients"].bytes == 0
    first = budget(plan, first_step=True)
    assert first.at("backward_end")["optimizer"].bytes == 0
    assert first.at("optimizer_step")["optimizer"].bytes == 2 * SIZE


def test_masters_have_gradients_in_the_step_alone() -> None:
    half = Inventory.of([replace(kind, dtype="bfloat16", group=-1) for kind in MODEL])
    plan = Plan(optimizer=by_name("adamw", fused=True), precision=Precision(parameters="bfloat16", master="float32"))
    found = expected(half, plan, ALIVE, runtime=NONE)
    assert found.at("optimizer_step")["gradients"].bytes == SIZE // 2 + SIZE
    assert found.at("backward_end")["gradients"].bytes == SIZE // 2
    # Masters and two states of 4 bytes; fused AdamW has its counters on the device.
    assert found.at("step_end")["optimizer"].bytes == 3 * SIZE + 4 * 4


@pytest.mark.parametrize("view", [False, True])
def test_ddp_has_its_buckets_through_the_step(view: bool) -> None:
    plan = Plan(strategy="ddp", layout=Layout(world_size=4, replicate=4), ddp=Ddp(gradient_as_bucket_view=view),
                optimizer=ADAMW)  # fmt: skip
    found = budget(plan)
    assert found.at("step_start")["buffers"].bytes == SIZE
    assert found.at("step_start")["buffers"].parts[0].seen
    together = [found.at("backward_end")[name].bytes for name in ("gradients", "buffers")]
    assert together == ([SIZE, 0] if view else [SIZE, SIZE])


def test_a_compression_hook_copies_a_bucket_in_backward() -> None:
    layout = Layout(world_size=4, replicate=4)
    without = Plan(strategy="ddp", layout=layout, ddp=Ddp(), optimizer=ADAMW)
    plain, hooked = budget(without), budget(replace(without, ddp=Ddp(hook_dtype="bfloat16")))
    assert (hooked.at("backward")["buffers"].bytes or 0) - (plain.at("backward")["buffers"].bytes or 0) == SIZE // 2
    assert hooked.at("forward")["buffers"].bytes == plain.at("forward")["buffers"].bytes


def test_data_parallel_loads_gpu_0_and_the_others_only_while_they_run() -> None:
    layout = Layout(world_size=4, replicate=4)
    first = budget(Plan(strategy="dp", layout=layout, optimizer=ADAMW))
    other = budget(Plan(strategy="dp", layout=replace(layout, replicate_rank=1), optimizer=ADAMW))
    assert sizes(first, "step_start")["optimizer"] == 2 * SIZE
    assert sum(size or 0 for size in sizes(other, "step_start").values()) == 512
    assert sizes(other, "forward_end")["parameters"] == SIZE
    assert sizes(other, "optimizer_step")["optimizer"] == 0
    names = {part.name for part in first.at("forward")["activations"].parts}
    assert "outputs gathered from all GPUs" in names
    assert (first.total("backward") or 0) > (other.total("backward") or 0)


def test_a_parameter_server_is_rank_0() -> None:
    layout = Layout(world_size=4, replicate=4)
    server = budget(Plan(strategy="ps", layout=layout, optimizer=ADAMW))
    worker = budget(Plan(strategy="ps", layout=replace(layout, replicate_rank=3), optimizer=ADAMW))
    assert sizes(server, "step_end")["optimizer"] == 2 * SIZE
    assert sizes(worker, "step_end") == {**sizes(server, "step_end"), "optimizer": 0}
    assert sizes(worker, "optimizer_step")["activations"] == 512


UNITS = Inventory.of(
    [Kind((512, 256), "float32"), Kind((256, 256), "float32", unit=1), Kind((256, 256), "float32", unit=2),
     Kind((512, 256), "float32")]
)  # fmt: skip


def sharded(**options: object) -> Plan:
    base: dict[str, object] = {
        "strategy": "fsdp2", "fsdp": Fsdp(), "layout": Layout(world_size=4, shard=4), "optimizer": ADAMW,
    }  # fmt: skip
    return Plan(**{**base, **options})  # type: ignore[arg-type]


def test_fsdp2_keeps_the_root_and_grad_op_keeps_everything() -> None:
    full = expected(UNITS, sharded(), ALIVE, runtime=NONE)
    kept = expected(UNITS, sharded(fsdp=Fsdp(sharding="grad-op")), ALIVE, runtime=NONE)
    assert full.at("forward_end")["buffers"].bytes == 2 * TABLE
    assert kept.at("forward_end")["buffers"].bytes == SIZE
    assert full.at("step_start")["buffers"].bytes == kept.at("step_start")["buffers"].bytes == 0
    assert not any(part.seen for part in full.at("backward")["buffers"].parts)


def test_fsdp2_resharded_to_a_smaller_group_keeps_that_part() -> None:
    found = expected(UNITS, sharded(fsdp=Fsdp(reshard_after_forward=2)), ALIVE, runtime=NONE)
    assert found.at("forward_end")["buffers"].bytes == 2 * TABLE + MATRIX


def test_fsdp2_without_gradient_sync_waits_with_whole_gradients() -> None:
    plan = sharded(batch=Batch(micro_batch=1, accumulation=2), unsharded_gradients_at=("forward_end", "backward_start"))
    found = expected(UNITS, plan, ALIVE, runtime=NONE)
    assert found.at("backward")["gradients"].bytes == SIZE
    assert found.at("backward_end")["gradients"].bytes == SIZE // 4


def test_offloaded_shards_are_the_hosts() -> None:
    found = expected(UNITS, sharded(fsdp=Fsdp(cpu_offload=True)), ALIVE, runtime=NONE)
    assert sizes(found, "step_end")["parameters"] == 0
    # Parameters, gradients, two states and a counter of 4 bytes for each of 4 parameters.
    assert found.host.bytes == SIZE + 4 * 4
    assert found.at("backward")["buffers"].bytes
    assert expected(UNITS, sharded(), ALIVE, runtime=NONE).host.bytes == 0


def test_hybrid_sharding_holds_what_it_all_reduces_in_another_dtype() -> None:
    layout = Layout(world_size=8, replicate=2, shard=4)
    mixed = sharded(layout=layout, precision=Precision(compute="bfloat16", reduce="bfloat16"))
    alone = replace(mixed, layout=Layout(world_size=4, shard=4))
    both = [expected(UNITS, plan, ALIVE, runtime=NONE).total("backward") or 0 for plan in (alone, mixed)]
    assert both[1] >= both[0]


def test_a_pipeline_stage_has_receive_buffers_and_keeps_gradients() -> None:
    plan = Plan(
        strategy="pp", layout=Layout(world_size=4, pipeline=4, pipeline_rank=1), optimizer=ADAMW,
        pipeline=Pipeline(schedule="1f1b", micro_batches=8),
    )  # fmt: skip
    alive = replace(ALIVE, in_flight=3, logits=0, loss_forward=0, loss_backward=0)
    found = expected(MODEL, plan, alive, runtime=NONE)
    assert found.at("forward_end")["gradients"].bytes == SIZE
    names = {part.name for part in found.at("forward_end")["buffers"].parts}
    assert "receive buffers of activations, one a micro-batch" in names
    assert found.at("forward_end")["activations"].bytes == alive.saved


def test_the_gradients_of_a_running_pipeline_are_where_its_schedule_has_them() -> None:
    """GPipe's forwards all end before the first backward; between those of 1F1B there are gradients."""
    plan = Plan(strategy="pp", layout=Layout(world_size=2, pipeline=2), batch=Batch(accumulation=4), optimizer=ADAMW)
    gpipe = replace(plan, gradients_at=("backward_end", "step_end"))
    alternating = replace(plan, gradients_at=("forward_end", "backward_start", "backward_end", "step_end"))
    for moment in ("forward_end", "backward_start"):
        assert expected(MODEL, gpipe, ALIVE, runtime=NONE).at(moment)["gradients"].bytes == 0
        assert expected(MODEL, alternating, ALIVE, runtime=NONE).at(moment)["gradients"].bytes == SIZE
    assert expected(MODEL, gpipe, ALIVE, runtime=NONE).at("backward_end")["gradients"].bytes == SIZE


def test_without_activations_the_rest_is_known_and_the_total_is_not() -> None:
    found = budget(Plan(optimizer=ADAMW), None)
    assert found.total("backward") is None
    assert found.at("backward")["gradients"].bytes == SIZE
    assert "not known" in found.at("backward")["activations"].rule


def test_an_unknown_strategy_has_no_bytes_but_the_reason() -> None:
    found = budget(Plan(strategy="wild"))
    assert tuple(found.moments) == ALL_MOMENTS
    assert {found.at("backward")[name].bytes for name in BUDGETED if name != "runtime"} == {None}


def test_loading_and_saving_say_what_moves() -> None:
    plan = sharded()
    found = expected(UNITS, plan, ALIVE, runtime=NONE)
    assert found.at("load")["optimizer"].bytes == 0
    assert found.at("load")["buffers"].bytes == MATRIX
    assert found.at("checkpoint_save")["buffers"].bytes == TABLE
    assert found.at("checkpoint_save")["activations"].bytes == 0


def test_runtime_counts_communicators_and_is_a_guess() -> None:
    alone = runtime.runtime(Plan())
    many = runtime.runtime(Plan(strategy="ddp", layout=Layout(world_size=64, replicate=8, tensor=8)))
    assert alone.within is None
    assert (many.bytes or 0) - (alone.bytes or 0) == 2 * runtime.nccl()
    assert runtime.runtime(Plan(host=True)).bytes is None
    assert sum(part.bytes for part in many.parts) == many.bytes
    own = Amount(7, "measured")
    assert expected(MODEL, Plan(), ALIVE, runtime=own).at("step_end")["runtime"] is own


@pytest.mark.parametrize(
    ("name", "cls"),
    [("AdamW", "AdamW"), ("adamw_bnb_8bit", "AdamW8bit"), ("sgdm", "SGD"), ("paged-adamw-8bit", "PagedAdamW8bit"),
     ("Lion", "Lion"), ("adam 8bit", "Adam8bit"), ("none", "")],
)  # fmt: skip
def test_optimizers_by_the_names_of_users(name: str, cls: str) -> None:
    assert by_name(name).name == cls


def test_a_misspelt_optimizer_names_the_closest() -> None:
    with pytest.raises(BadInput, match="did you mean adamw"):
        by_name("adanw")
    with pytest.raises(BadInput, match="there are sgd"):
        by_name("xyzzy")
    assert by_name("adamw", fused=True).options == {"fused": True}
