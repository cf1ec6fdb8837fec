"""What one rank of a layout holds of a model."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.budget.inventory import Inventory
from ranktop.budget.model import BadInput, Model, NoRule
from ranktop.budget.models.catalogue import find
from ranktop.budget.models.place import inventory
from ranktop.budget.models.stages import chunk_layers, stage_layers
from ranktop.budget.models.tensors import count, tensors
from ranktop.budget.plan import Layout, Lora, Pipeline, Plan, Precision, Zero

REFERENCE = Model(family="gpt", layers=4, hidden=256, heads=4, vocab=1024, positions=128)
LLAMA = Model(family="llama", layers=5, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=500)
MOE = replace(LLAMA, experts=8, experts_per_token=2)


def shapes(found: Inventory) -> list[tuple[int, ...]]:
    return [kind.shape for kind in found]


def stage(model: Model, stages: int, rank: int, pipeline: Pipeline | None = None) -> Inventory:
    layout = Layout(world_size=stages, pipeline=stages, pipeline_rank=rank)
    return inventory(model, Plan(layout=layout, pipeline=pipeline))


def split(model: Model, ranks: int, rank: int = 0, lora: Lora | None = None) -> Inventory:
    return inventory(model, Plan(layout=Layout(world_size=ranks, tensor=ranks, tensor_rank=rank), lora=lora))


def test_the_reference_model_has_its_known_number_of_parameters() -> None:
    assert inventory(REFERENCE, Plan()).numel == count(REFERENCE) == 3_716_608


def test_what_layers_leave_over_goes_to_the_first_stages() -> None:
    assert [len(layers) for layers in chunk_layers(10, 4)] == [3, 3, 2, 2]
    block = inventory(replace(LLAMA, layers=1), Plan()).numel - 2 * 500 * 64 - 64
    assert [stage(LLAMA, 3, rank).numel for rank in range(3)] == [
        2 * block + 500 * 64,
        2 * block,
        block + 500 * 64 + 64,
    ]


def test_a_tied_embedding_lies_on_both_ends_and_on_a_rank_with_both_once() -> None:
    tied = replace(LLAMA, layers=4, tied=True)
    table = 500 * 64
    assert sum(stage(tied, 4, rank).numel for rank in range(4)) == count(tied) + table
    v_shaped = Pipeline(schedule="zbv", virtual=2)
    assert sum(stage(tied, 2, rank, pipeline=v_shaped).numel for rank in range(2)) == count(tied)
    assert shapes(stage(tied, 2, 0, pipeline=v_shaped)).count((500, 64)) == 1


def test_chunks_are_dealt_out_in_turn_and_back_again_under_v_shaped_schedules() -> None:
    def layers(schedule: str, virtual: int, rank: int) -> list[int]:
        layout = Layout(world_size=2, pipeline=2, pipeline_rank=rank)
        plan = Plan(layout=layout, pipeline=Pipeline(schedule=schedule, virtual=virtual))
        return [layer for chunk in stage_layers(8, plan) for layer in chunk]

    assert [layers("interleaved", 2, rank) for rank in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [layers("dualpipe-v", 2, rank) for rank in (0, 1)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert [layers("1f1b", 1, rank) for rank in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_stands_between_two_stacks_stays_behind_the_first() -> None:
    t5 = find("t5-small")
    halves = [stage(t5, 2, rank) for rank in (0, 1)]
    table = 32128 * 512
    # The decoder's side reads the embedding too, and has its head from it.
    assert sum(half.numel for half in halves) == count(t5) + table
    assert sum(stage(t5, 4, rank).numel for rank in range(4)) == count(t5) + 2 * table
    # Six encoder blocks, their final norm and the embedding; relative bias is in both halves once.
    assert len(halves[0]) == 1 + 6 * 8 + 1 + 1
    assert all(shapes(half).count((32, 8)) == 1 for half in halves)


def test_tensor_parallel_splits_what_comes_out_and_what_goes_in() -> None:
    block = shapes(split(REFERENCE, 4))[2:14]
    assert block == [
        (256,), (256,), (192, 256), (192,), (256, 64), (256,), (256,), (256,), (256, 256), (256,), (256, 256), (256,),
    ]  # fmt: skip
    placed = [kind.tensor_parallel for kind in split(REFERENCE, 4)][2:14]
    assert placed == ["", "", "S(0)", "S(0)", "S(1)", "R", "", "", "S(0)", "S(0)", "S(1)", "R"]


def test_a_vocabulary_that_does_not_divide_leaves_a_short_last_part() -> None:
    odd = replace(LLAMA, vocab=501)
    rows = [next(iter(split(odd, 4, rank))) for rank in range(4)]
    assert [kind.shape[0] for kind in rows] == [126, 126, 126, 123]
    assert {kind.split_size for kind in rows} == {501}
    assert next(iter(split(LLAMA, 4))).split_size is None


def test_more_ranks_than_key_value_heads_hold_copies_of_them() -> None:
    # 4 key/value heads of 8 over 8 ranks: each has one whole head.
    assert shapes(split(LLAMA, 8))[1:4] == [(8, 64), (8, 64), (8, 64)]


def test_conv1d_is_split_on_its_other_side() -> None:
    gpt2 = Model(family="gpt2", layers=1, hidden=48, heads=3, vocab=99, positions=32, tied=True)
    weights = [shape for shape in shapes(split(gpt2, 3)) if len(shape) == 2][2:]
    assert weights == [(48, 48), (16, 48), (48, 64), (64, 48)]


def test_megatron_pads_the_vocabulary_to_128_for_every_tensor_parallel_rank() -> None:
    model = Model(family="megatron-gpt", layers=1, hidden=64, heads=8, vocab=50257, positions=32, tied=True)
    assert tensors(model)[0].shape == (50304, 64)
    assert shapes(split(model, 8))[0] == (51200 // 8, 64)
    exact = replace(model, options={"pad_to": 1})
    assert tensors(exact)[0].shape == (50257, 64)


def test_megatron_with_the_options_of_llama_has_llamas_parameters() -> None:
    llama = find("llama-3-8b")
    same: dict[str, bool | int | float | str] = {"norm": "rmsnorm", "bias": False, "swiglu": True, "rope": True}
    assert count(replace(llama, family="megatron-gpt", options=same)) == count(llama)
    mixtral = find("mixtral-8x7b")
    padded = -(-mixtral.vocab // 128) * 128 - mixtral.vocab
    assert count(replace(mixtral, family="megatron-gpt", options=same)) == count(mixtral) + 2 * padded * 4096


def test_experts_are_dealt_out_whole() -> None:
    found = inventory(MOE, Plan(layout=Layout(world_size=4, replicate=4, expert=4)))
    assert {shape for shape in shapes(found) if len(shape) == 3} == {(2, 192, 64), (2, 64, 96)}
    assert (8, 64) in shapes(found)


def test_ranks_with_other_experts_share_the_sharding_of_everything_else() -> None:
    inside = inventory(MOE, Plan(strategy="fsdp2", layout=Layout(world_size=8, shard=8, shard_rank=5, expert=4)))
    outside = inventory(MOE, Plan(strategy="fsdp2", layout=Layout(world_size=8, shard=2, shard_rank=1, expert=4)))
    assert {(kind.shards, kind.shard_rank) for kind in inside if len(kind.shape) == 3} == {(2, 1)}
    assert {kind.shards for kind in inside if len(kind.shape) < 3} == {None}
    assert {kind.shards for kind in outside if len(kind.shape) == 3} == {None}
    assert {kind.shards for kind in outside if len(kind.shape) < 3} == {8}


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (Layout(tensor=3), "tp 3 does not divide 8 heads"),
        (Layout(tensor=16), "tp 16 does not divide 8 heads"),
        (Layout(expert=3), "ep 3 does not divide 8 experts"),
        (Layout(pipeline=6), "a pipeline of 6 chunks needs at least 6 layers, this model has 5"),
        (Layout(pipeline=2, pipeline_rank=2), "pipeline stage 2 is not among 2"),
        (Layout(tensor=2, tensor_rank=-1), "tensor rank -1 is not among 2"),
        (Layout(tensor=0), "tensor must be at least 1, not 0"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused(layout: Layout, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        inventory(MOE, Plan(layout=layout))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (replace(LLAMA, hidden=0), "hidden must be at least 1"),
        (replace(LLAMA, layers=10**9), "layers must be at most"),
        (replace(LLAMA, heads=7), "4 key/value heads do not divide 7 heads"),
        (replace(LLAMA, heads=12), "12 heads do not divide the hidden size 64"),
        (replace(LLAMA, options={"expert_ffn": "wide"}, experts=2), "expert_ffn must be a whole number"),
        (replace(LLAMA, options={"norms": "sandwich"}), "norms must be one of"),
        (replace(LLAMA, options={"dense_layers": "a,b"}), "dense_layers must be numbers"),
    ],
)
def test_a_model_that_cannot_be_is_refused(model: Model, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        inventory(model, Plan())


def test_experts_need_a_model_that_has_them() -> None:
    with pytest.raises(BadInput, match="ep 2 needs a model with experts"):
        inventory(LLAMA, Plan(layout=Layout(expert=2)))


def test_a_block_is_a_sharding_unit_and_the_rest_the_roots() -> None:
    found = inventory(REFERENCE, Plan(strategy="fsdp2"))
    units = [kind.unit for kind in found]
    assert units == [0, 0, *[unit for block in (1, 2, 3, 4) for unit in [block] * 12], 0, 0, 0]
    assert {kind.unit for kind in inventory(REFERENCE, Plan(strategy="ddp"))} == {0}


def test_every_chunk_of_a_pipeline_has_a_root_of_its_own() -> None:
    layout = Layout(world_size=2, pipeline=2)
    found = inventory(REFERENCE, Plan(strategy="fsdp2", layout=layout, pipeline=Pipeline(schedule="zbv")))
    # Blocks 0 and 3: the first chunk's root is 0, its block 1; the last chunk's root is 2, its block 3.
    assert [kind.unit for kind in found] == [0, 0, *[1] * 12, *[3] * 12, 2, 2, 2]


def test_dtype_and_optimizer_group_follow_the_precision() -> None:
    def kinds(precision: Precision, zero: Zero | None = None) -> set[tuple[str, int]]:
        return {(kind.dtype, kind.group) for kind in inventory(LLAMA, Plan(precision=precision, zero=zero))}

    bf16 = Precision(parameters="bfloat16")
    assert kinds(Precision()) == {("float32", 0)}
    assert kinds(bf16) == {("bfloat16", 0)}
    assert kinds(replace(bf16, master="float32")) == {("bfloat16", -1)}
    assert kinds(replace(bf16, master="float32"), Zero(stage=2)) == {("bfloat16", 0)}


def test_a_bare_count_is_flat_tensors_that_parallel_axes_divide_rounding_up() -> None:
    seven = Model(count=7_500_000_001)
    whole = inventory(seven, Plan())
    assert whole.numel == 7_500_000_001
    assert {(len(kind.shape), kind.dtype) for kind in whole.kinds} == {(1, "float32")}
    assert inventory(Model(count=5), Plan()).numel == 5
    eighth = inventory(seven, Plan(layout=Layout(world_size=8, tensor=4, pipeline=2)))
    assert eighth.numel == 937_500_001
    with pytest.raises(NoRule, match="only the number of parameters is known"):
        tensors(seven)
    with pytest.raises(NoRule, match="adapters need the shapes"):
        inventory(seven, Plan(lora=Lora()))
    with pytest.raises(BadInput, match="must be at least 1"):
        inventory(Model(count=-3), Plan())


def trainable(model: Model, lora: Lora, ranks: int = 1) -> list[tuple[int, ...]]:
    return [kind.shape for kind in split(model, ranks, lora=lora) if kind.trainable]


def test_adapters_stand_beside_every_linear_layer_of_the_blocks() -> None:
    one = replace(LLAMA, layers=1)
    assert trainable(one, Lora(rank=2)) == [
        (2, 64), (64, 2), (2, 64), (32, 2), (2, 64), (32, 2), (2, 64), (64, 2),
        (2, 64), (96, 2), (2, 64), (96, 2), (2, 96), (64, 2),
    ]  # fmt: skip
    found = inventory(one, Plan(lora=Lora(rank=2), precision=Precision(parameters="bfloat16")))
    assert {(kind.dtype, kind.trainable, kind.group) for kind in found} == {
        ("bfloat16", False, -1),
        ("float32", True, 0),
    }


def test_named_targets_get_adapters_alone_and_unknown_ones_are_refused() -> None:
    one = replace(LLAMA, layers=1)
    assert trainable(one, Lora(rank=4, targets=("q", "v"))) == [(4, 64), (64, 4), (4, 64), (32, 4)]
    assert trainable(one, Lora(rank=4, targets=("head",))) == [(4, 64), (500, 4)]
    with pytest.raises(BadInput, match="no linear layer has the role 'qkv'; this model has down, gate, head, k, o, q"):
        inventory(one, Plan(lora=Lora(targets=("qkv",))))
    with pytest.raises(BadInput, match="rank must be at least 1"):
        inventory(one, Plan(lora=Lora(rank=0)))
    with pytest.raises(BadInput, match="unknown quantization 'fp3'"):
        inventory(one, Plan(lora=Lora(quantized="fp3")))


def test_an_adapter_is_split_where_its_layer_is() -> None:
    one = replace(LLAMA, layers=1)
    assert trainable(one, Lora(rank=4, targets=("up", "down")), 4) == [(4, 64), (24, 4), (4, 24), (64, 4)]
    gpt2 = Model(family="gpt2", layers=1, hidden=48, heads=3, vocab=99, positions=32, tied=True)
    assert trainable(gpt2, Lora(rank=4, targets=("up",))) == [(4, 48), (192, 4)]
    assert trainable(gpt2, Lora(rank=4, targets=("up", "down")), 3) == [(4, 48), (64, 4), (4, 64), (48, 4)]


@pytest.mark.parametrize(("form", "size"), [("nf4", 9_437_248), ("nf4-double", 8_655_940), ("int8", 16_793_600)])
def test_a_quantized_weight_has_the_bytes_of_bitsandbytes(form: str, size: int) -> None:
    # 4096 x 4096, counted with bitsandbytes: packed elements, scales and tables.
    model = Model(family="llama", layers=1, hidden=4096, heads=32, ffn=11008, vocab=32000)
    plan = Plan(lora=Lora(targets=("q",), quantized=form), precision=Precision(parameters="bfloat16"))
    order = list(inventory(model, plan))
    weight = order[1 : 1 + {"nf4": 2, "nf4-double": 3, "int8": 2}[form]]
    assert sum(kind.numel * kind.itemsize for kind in weight) == size
    assert not any(kind.trainable for kind in weight)
    assert (order[0].dtype, order[-1].dtype) == ("bfloat16", "bfloat16")


@st.composite
def models(draw: st.DrawFn) -> Model:
    family = draw(st.sampled_from(["gpt", "gpt2", "gpt-neox", "llama", "bert", "t5", "vit", "megatron-gpt"]))
    heads = draw(st.sampled_from([2, 4, 6]))
    hidden = heads * draw(st.sampled_from([4, 8]))
    moe = family in ("llama", "megatron-gpt") and draw(st.booleans())
    return Model(
        family=family,
        layers=draw(st.integers(3, 7)),
        hidden=hidden,
        heads=heads,
        kv_heads=draw(st.sampled_from([heads, 2])) if family == "llama" else heads,
        ffn=draw(st.integers(2, 9)) * 4,
        vocab=draw(st.integers(10, 99)),
        positions=16,
        tied=draw(st.booleans()),
        experts=4 if moe else 0,
        options={"pad_to": 2, "shared_ffn": 8 if moe else 0, "dense_layers": "1" if moe else ""},
    )


def owner(layer: int, blocks: int, stages: int, pipeline: Pipeline) -> int:
    """Return the stage that runs a block."""
    plans = [Plan(layout=Layout(pipeline=stages, pipeline_rank=rank), pipeline=pipeline) for rank in range(stages)]
    return next(rank for rank, of in enumerate(plans) if any(layer in chunk for chunk in stage_layers(blocks, of)))


@settings(max_examples=60, deadline=None)
@given(models(), st.integers(2, 3), st.sampled_from(["1f1b", "interleaved", "zbv"]))
def test_the_stages_of_a_pipeline_add_up_to_the_model(model: Model, stages: int, schedule: str) -> None:
    model = replace(model, layers=model.layers + 4)
    pipeline = Pipeline(schedule=schedule, virtual=1 if schedule == "1f1b" else 2)
    found = [stage(model, stages, rank, pipeline) for rank in range(stages)]
    every = tensors(model)
    blocks = 1 + max(tensor.layer for tensor in every if tensor.layer is not None)
    # The exceptions: a tied embedding is also where the last block is, a T5 decoder's where its first block is.
    readers = {0} | ({blocks - 1} if model.tied else set()) | ({model.layers} if model.family == "t5" else set())
    with_table = {owner(layer, blocks, stages, pipeline) for layer in readers}
    extra = 0 if model.family == "vit" else (len(with_table) - 1) * every[0].numel
    assert sum(part.numel for part in found) == count(model) + extra
    assert sum(part.buffer_bytes for part in found) == inventory(model, Plan()).buffer_bytes


@settings(max_examples=60, deadline=None)
@given(models())
def test_the_parts_of_tensor_parallel_add_up_to_the_model(model: Model) -> None:
    parts = [list(split(model, 2, rank)) for rank in range(2)]
    whole = inventory(replace(model, options={**model.options, "pad_to": 4}), Plan())
    for kind, *own in zip(whole, *parts, strict=True):
        # The one exception: what is not split is on every rank.
        copies = 1 if own[0].tensor_parallel.startswith("S") else 2
        assert sum(part.numel for part in own) == copies * kind.numel


@settings(max_examples=40, deadline=None)
@given(models(), st.sampled_from([2, 4]))
def test_the_experts_of_all_ranks_add_up_to_the_model(model: Model, ranks: int) -> None:
    if not model.experts:
        return
    own = inventory(model, Plan(layout=Layout(world_size=ranks, replicate=ranks, expert=ranks)))
    routed = sum(tensor.numel for tensor in tensors(model) if tensor.expert)
    assert routed > 0
    assert own.numel == count(model) - routed + routed // ranks


@settings(max_examples=40, deadline=None)
@given(models())
def test_the_single_rank_holds_the_models_tensors_in_order(model: Model) -> None:
    assert shapes(inventory(model, Plan())) == [tensor.shape for tensor in tensors(model)]
    assert count(model) == sum(prod(tensor.shape) for tensor in tensors(model))
    blocks = {tensor.layer for tensor in tensors(model)} - {None}
    assert blocks == set(range(len(blocks)))
    assert len({tensor.name for tensor in tensors(model)}) == len(tensors(model))


def test_a_rank_of_a_70b_model_costs_milliseconds() -> None:
    model = find("llama-3-70b")
    plans = [
        Plan(layout=Layout(world_size=8, replicate=8)),
        Plan(strategy="fsdp2", layout=Layout(world_size=8, shard=8)),
        Plan(layout=Layout(world_size=16, tensor=8, pipeline=2, pipeline_rank=1)),
    ]

    def seconds(plan: Plan) -> float:
        start = perf_counter()
        inventory(model, plan)
        return perf_counter() - start

    # 0.1 to 1.5 ms on an idle core; the bound leaves room for a busy one.
    assert all(min(seconds(plan) for _ in range(10)) < 0.008 for plan in plans)
