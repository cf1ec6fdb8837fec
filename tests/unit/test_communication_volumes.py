"""Volumes of a step against what papers and documents say of each strategy (2(N-1)/N of an all-reduce and so on)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from ranktop.budget.collective import KINDS, Collective
from ranktop.budget.communication import collectives, left_out, time_at_least
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory as placed
from ranktop.budget.plan import Batch, Ddp, Fsdp, Layout, Pipeline, Plan, Precision, Zero
from ranktop.budget.run import STRATEGIES, Run
from ranktop.budget.strategies import plan_of

LAYERS, HIDDEN, VOCAB, LENGTH = 8, 64, 512, 32
MODEL: Final = Model(name="small", family="llama", layers=LAYERS, hidden=HIDDEN, heads=8, kv_heads=8, head_dim=8,
                     ffn=256, vocab=VOCAB, positions=LENGTH)  # fmt: skip
STREAM: Final = 2 * LENGTH * HIDDEN
"""Elements of the residual stream of two samples: s b h."""

FLAT: Final = Inventory.of([Kind((4096, 256), "bfloat16") for _ in range(12)])
"""A model of equal matrices, larger than ZeRO-3 keeps whole."""

P: Final = 12 * 4096 * 256 * 2
"""Its bytes."""

NOTHING_KEPT: Final = Zero(stage=3, max_reuse_distance=0, prefetch_bucket_size=0)


def step(inventory: Inventory, plan: Plan, model: Model | None = None) -> tuple[Collective, ...]:
    return collectives(inventory, plan, model)


def sent(found: tuple[Collective, ...]) -> int:
    return sum(one.sent for one in found)


def plan(strategy: str, n: int, g: int = 1, **values: Any) -> Plan:
    replicated = strategy in ("ddp", "dp", "ps", "zero-redundancy")
    layout = Layout(world_size=n, replicate=n) if replicated else Layout(world_size=n, shard=n)
    return Plan(strategy=strategy, **{"layout": layout, "batch": Batch(accumulation=g), **values})


@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("g", [1, 4])
class TestDataParallel:
    def test_ddp_reduces_once(self, n: int, g: int) -> None:
        assert sent(step(FLAT, plan("ddp", n, g))) == 2 * P * (n - 1) // n

    def test_zero_redundancy_adds_a_broadcast(self, n: int, g: int) -> None:
        assert sent(step(FLAT, plan("zero-redundancy", n, g))) == 2 * P * (n - 1) // n + P

    def test_parameter_server(self, n: int, g: int) -> None:
        assert [one.kind for one in step(FLAT, plan("ps", n, g))] == ["reduce", "broadcast"]
        assert sent(step(FLAT, plan("ps", n, g))) == 2 * P

    def test_data_parallel_copies_the_model_in_every_forward(self, n: int, g: int) -> None:
        assert [(one.kind, one.bytes) for one in step(FLAT, plan("dp", n, g))] == [
            ("broadcast", g * P),
            ("reduce", g * P),
        ]

    @pytest.mark.parametrize("stage", [1, 2])
    def test_deepspeed_sends_half_as_much_again_as_the_paper(self, n: int, g: int, stage: int) -> None:
        """All-reduce 2P and all-gather P; stage 2 reduces in every micro-batch."""
        found = step(FLAT, plan(f"zero{stage}", n, g, zero=Zero(stage=stage)))
        assert sent(found) == (2 * P * (g if stage == 2 else 1) + P) * (n - 1) // n

    def test_zero_3_sends_three_times(self, n: int, g: int) -> None:
        assert sent(step(FLAT, plan("zero3", n, g, zero=NOTHING_KEPT))) == 3 * g * P * (n - 1) // n

    def test_fsdp_sends_three_times_but_for_the_root(self, n: int, g: int) -> None:
        units = Inventory.of([replace(kind, unit=index) for index, kind in enumerate(FLAT)])
        once = P * (n - 1) // n
        assert sent(step(units, plan("fsdp2", n, g, fsdp=Fsdp()))) == g * (3 * once - once // 12)
        assert sent(step(units, plan("fsdp2", n, g, fsdp=Fsdp(sharding="grad-op")))) == g * 2 * once

    def test_distributed_optimizer(self, n: int, g: int) -> None:
        """fp32 gradients scattered once, 16-bit weights gathered once."""
        found = step(FLAT, plan("3d", n, g, stack="megatron"))
        assert sent(found) == (2 * P + P) * (n - 1) // n


def test_hybrid_reduces_shards_between_nodes() -> None:
    units = Inventory.of([replace(kind, unit=index) for index, kind in enumerate(FLAT)])
    layout = Layout(world_size=16, replicate=2, shard=8)
    found = step(units, plan("fsdp2", 16, layout=layout, fsdp=Fsdp(sharding="hybrid")))
    between = [one for one in found if one.kind == "all_reduce"]
    assert [(one.axis, one.group, one.bytes) for one in between] == [("replicate", 2, P // 8)]


def test_zero_3_keeps_what_is_used_again_soon() -> None:
    """The last matrix is not gathered again; a reuse distance of 4 matrices keeps the last two."""
    matrix = 4096 * 256
    for reuse, kept in ((1, 1), (2 * matrix, 1), (2 * matrix + 1, 2), (10**9, 12)):
        found = step(FLAT, plan("zero3", 8, zero=replace(NOTHING_KEPT, max_reuse_distance=reuse)))
        backward = sum(one.bytes for one in found if one.kind == "all_gather" and one.phase == "backward")
        assert backward == P - kept * P // 12


def test_persistent_parameters_are_gathered_once_a_step() -> None:
    inventory = Inventory.of([*FLAT, Kind((64,), "bfloat16")])
    found = step(inventory, plan("zero3", 8, 3, zero=NOTHING_KEPT))
    assert [(one.bytes, one.calls) for one in found if one.phase == "optimizer"] == [(128, 1)]
    assert sum(one.bytes for one in found if one.phase == "forward") == 3 * P


def model_plan(layout: Layout, **values: Any) -> Plan:
    batch = Batch(micro_batch=2, sequence_length=LENGTH, accumulation=1)
    return Plan(**{"strategy": "tp", "layout": layout, "batch": batch, "precision": Precision(parameters="bfloat16"),
                   "loss": "none", **values})  # fmt: skip


def inside(plan: Plan, axis: str) -> tuple[Collective, ...]:
    return tuple(one for one in step(placed(MODEL, plan), plan, MODEL) if one.axis == axis)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallel_all_reduces_four_times_a_layer(t: int) -> None:
    """8 (t-1)/t s b h bytes-per-element a layer (Megatron-LM, arXiv:1909.08053), one more at each end of the model."""
    found = inside(model_plan(Layout(world_size=t, tensor=t)), "tensor")
    assert sent(found) == (4 * LAYERS + 2) * 2 * (t - 1) * STREAM * 2 // t


def test_sequence_parallel_sends_as_much_and_megatron_gathers_again() -> None:
    """Korthikanti et al., arXiv:2205.05198, section 4.2.2: the same bytes; the kept inputs cost a gather."""
    layout = Layout(world_size=4, tensor=4)
    plain = inside(model_plan(layout), "tensor")
    norms = (2 * LAYERS + 1) * HIDDEN * 2 * 2 * 3 // 4
    dtensor = inside(model_plan(layout, sequence_parallel="dtensor"), "tensor")
    assert sent(dtensor) == sent(plain) + norms
    megatron = inside(model_plan(layout, sequence_parallel="megatron"), "tensor")
    assert sent(megatron) == sent(dtensor) + (2 * LAYERS + 1) * STREAM * 2 * 3 // 4


def test_full_recomputation_repeats_the_forward() -> None:
    layout = Layout(world_size=4, tensor=4)
    more = {
        stack: sent(inside(model_plan(layout, checkpointing="full", stack=stack), "tensor"))
        - sent(inside(model_plan(layout, stack=stack), "tensor"))
        for stack in ("torch", "megatron")
    }
    once = LAYERS * 2 * STREAM * 2 * 3 // 4
    assert more == {"torch": once, "megatron": 2 * once}


def test_cross_attention_is_reduced_too() -> None:
    """An encoder's block has two row-parallel matrices, a decoder's behind an encoder three."""
    t5 = Model(family="t5", layers=2, hidden=HIDDEN, heads=4, kv_heads=4, head_dim=16, ffn=128, vocab=VOCAB, tied=True,
               options={"decoder_layers": 3})  # fmt: skip
    wanted = model_plan(Layout(world_size=2, tensor=2))
    found = collectives(placed(t5, wanted), wanted, t5)
    assert {one.phase: one.calls for one in found} == {"forward": 2 * 2 + 3 * 3 + 1, "backward": 2 * 2 + 3 * 3 + 1}


@pytest.mark.parametrize(("stage", "sends"), [(0, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize("virtual", [1, 2])
def test_pipeline_sends_one_message_per_boundary(stage: int, sends: int, virtual: int) -> None:
    """Outer stages have one neighbour; with chunks the last rank sends on to the first."""
    layout = Layout(world_size=4, pipeline=4, pipeline_rank=stage)
    pipeline = Pipeline(schedule="interleaved" if virtual > 1 else "1f1b", micro_batches=6, virtual=virtual)
    found = inside(model_plan(layout, pipeline=pipeline), "pipeline")
    wanted = 6 * (sends if virtual == 1 else 3 if stage in (0, 3) else 4)
    assert sum(one.calls for one in found) == wanted
    assert sent(found) == wanted * STREAM * 2


def test_v_shaped_schedule_turns_around_on_the_last_rank() -> None:
    layout = Layout(world_size=4, pipeline=4, pipeline_rank=3)
    pipeline = Pipeline(schedule="zbv", micro_batches=1, virtual=2)
    found = inside(model_plan(layout, pipeline=pipeline), "pipeline")
    assert {one.phase: one.calls for one in found} == {"forward": 1, "backward": 1}


def test_tied_embedding_is_summed_between_the_ends() -> None:
    tied = replace(MODEL, tied=True)
    for stage, ends in ((0, 1), (1, 0), (3, 1)):
        layout = Layout(world_size=4, pipeline=4, pipeline_rank=stage)
        wanted = model_plan(layout, pipeline=Pipeline(micro_batches=2))
        found = [one for one in step(placed(tied, wanted), wanted, tied) if one.kind == "all_reduce"]
        assert [one.bytes for one in found] == [VOCAB * HIDDEN * 2] * ends


def test_ring_attention_passes_keys_and_values_around() -> None:
    """2 (c-1)/c s b k d elements forward and twice that backward, per layer; parameters are summed over the ring."""
    wanted = model_plan(Layout(world_size=4, context=4))
    assert sent(inside(wanted, "context")) == LAYERS * 3 * 2 * 3 * STREAM * 2 // 4
    gradients = [one for one in step(placed(MODEL, wanted), wanted, MODEL) if one.axis == "replicate"]
    assert [one.group for one in gradients] == [4]


MIXTURE: Final = replace(MODEL, experts=8, experts_per_token=2)


def test_experts() -> None:
    """Four all-to-alls of the routed tokens a layer; experts are reduced over the ranks that hold the same ones."""
    wanted = model_plan(Layout(world_size=8, replicate=8, expert=4), strategy="ddp", ddp=Ddp())
    found = step(placed(MIXTURE, wanted), wanted, MIXTURE)
    routed = [one for one in found if one.axis == "expert"]
    assert sent(tuple(routed)) == LAYERS * 4 * 2 * STREAM * 2 * 3 // 4
    experts = LAYERS * 8 * 3 * 256 * HIDDEN * 2 // 4
    assert [(one.group, one.bytes) for one in found if one.what == "gradients of the experts"] == [(2, experts)]
    everything = placed(MIXTURE, wanted).numel * 2
    assert [one.bytes for one in found if one.group == 8 and one.kind == "all_reduce"] == [everything - experts]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_rank_is_alone(strategy: str) -> None:
    run = Run(model=MODEL, world_size=1, micro_batch=2, sequence_length=LENGTH)
    wanted = plan_of(run, strategy)
    assert step(placed(MODEL, wanted), wanted, MODEL) == ()


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_every_strategy_says_what_it_sends(strategy: str) -> None:
    run = Run(model=MODEL, world_size=8, micro_batch=2, sequence_length=LENGTH, accumulation=4)
    wanted = plan_of(run, strategy)
    found = step(placed(MODEL, wanted), wanted, MODEL)
    assert found
    phases = [("load", "forward", "backward", "optimizer").index(one.phase) for one in found]
    assert phases == sorted(phases)
    for one in found:
        assert one.kind in KINDS
        assert one.what
        assert one.rule
        assert 1 < one.group <= 8
        assert one.bytes >= one.sent > 0 or one.kind == "all_reduce"
        assert one.calls >= 1


def test_axes_multiply() -> None:
    """dp 2 × tp 2 × pp 2: every axis sends over its own ranks."""
    run = Run(model=MODEL, world_size=8, data=2, tensor=2, pipeline=2, micro_batch=2, sequence_length=LENGTH,
              accumulation=4)  # fmt: skip
    wanted = plan_of(run, "3d")
    found = step(placed(MODEL, wanted), wanted, MODEL)
    assert {one.axis: one.group for one in found} == {"tensor": 2, "pipeline": 2, "shard": 2}


def test_without_a_shape_it_says_what_is_missing() -> None:
    wanted = model_plan(Layout(world_size=4, tensor=2, replicate=2))
    inventory = placed(MODEL, wanted)
    assert {one.axis for one in step(inventory, wanted)} == {"replicate"}
    assert left_out(inventory, wanted) == ("what tensor parallel sends: the model's shape is not known",)
    no_batch = replace(wanted, batch=Batch())
    assert left_out(inventory, no_batch, MODEL) == ("what tensor parallel sends: the batch is not known",)
    assert left_out(inventory, wanted, MODEL) == ()


def test_time() -> None:
    found = step(FLAT, plan("ddp", 2))
    assert time_at_least(found, 1e9) == pytest.approx(P / 1e9)
    assert time_at_least(found, 1e9, {"replicate": 2e9, "tensor": 1.0}) == pytest.approx(P / 2e9)
    assert time_at_least((), 1e9) == 0
    for speed in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="faster"):
            time_at_least(found, speed)
