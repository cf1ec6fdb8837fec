"""Rules of Megatron's budget that hold whatever the numbers are, and terms counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranktop.budget import context, experts, megatron
from ranktop.budget.activations.megatron import activations
from ranktop.budget.model import Model, NoRule
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Batch, Layout, OptimizerPlan, Pipeline, Plan, Precision
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, Amount

S, B, H, A, L, V = 1024, 2, 512, 8, 8, 51200
GPT = Model(
    family="megatron-gpt", layers=L, hidden=H, heads=A, kv_heads=A, ffn=4 * H, vocab=V, positions=S, tied=True,
    dropout=0.1,
)  # fmt: skip
LLAMA = Model(family="llama", layers=L, hidden=H, heads=A, kv_heads=2, head_dim=64, ffn=1536, vocab=V, positions=S)
MOE = replace(GPT, experts=8, experts_per_token=2)
ADAM = OptimizerPlan(name="AdamW", count=1)


def plan(**layout: int) -> Plan:
    sizes = {"replicate": 1, "shard": 1, "tensor": 1, "pipeline": 1, "context": 1, **layout}
    world = sizes["replicate"] * sizes["shard"] * sizes["tensor"] * sizes["pipeline"] * sizes["context"]
    return Plan(
        strategy="3d",
        stack="megatron",
        layout=Layout(world_size=world, **sizes),
        precision=Precision(parameters="bfloat16", master="float32"),
        optimizer=ADAM,
        batch=Batch(micro_batch=B, sequence_length=S, accumulation=8),
        loss="megatron",
        pipeline=Pipeline(micro_batches=8) if sizes["pipeline"] > 1 else None,
    )


def budget(model: Model, of: Plan, first_step: bool = False) -> dict[str, dict[str, Amount]]:
    return megatron.moments(inventory(model, of), of, activations(model, of), first_step)


def states(model: Model, of: Plan) -> int:
    at = budget(model, of)["step_end"]
    return sum(at[name].bytes or 0 for name in ("parameters", "gradients", "optimizer"))


def peak(model: Model, of: Plan) -> int:
    return max(sum(amount.bytes or 0 for amount in table.values()) for table in budget(model, of).values())


def test_korthikanti_per_layer_with_statistics() -> None:
    sbh, statistics = S * B * H, 2 * 8 * S * B
    fused = activations(GPT, plan()).layer
    assert fused == 34 * sbh + statistics + 4 * A * S * B
    eager = activations(GPT, replace(plan(), attention="eager")).layer
    assert eager == 34 * sbh + 5 * A * S * S * B + statistics
    half = plan(tensor=2)
    assert activations(GPT, half).layer == (10 + 12) * sbh + statistics + 2 * A * S * B
    shared = replace(half, sequence_parallel="megatron")
    assert activations(GPT, shared).layer == 17 * sbh + statistics // 2 + 2 * A * S * B


def test_full_recomputation_keeps_one_input_per_segment() -> None:
    full = activations(GPT, replace(plan(), checkpointing="full"))
    assert full.blocks == L * 2 * S * B * H
    assert full.recomputed == activations(GPT, plan()).layer
    pairs = activations(GPT, replace(plan(), checkpointing="full", checkpoint_every=2))
    assert pairs.blocks == full.blocks // 2
    assert pairs.recomputed == 2 * full.recomputed


def test_selective_recomputation_drops_the_scores() -> None:
    eager = replace(plan(), attention="eager")
    selective = activations(GPT, replace(eager, checkpointing="selective"))
    assert selective.blocks == L * (34 * S * B * H + 16 * S * B)
    assert selective.recomputed == 5 * A * S * S * B


def test_llama_without_dropout_counts_its_own_widths() -> None:
    n, kv = S * B, 2 * 64
    expected = n * (8 * H + 2 * (H + 2 * kv) + 2 * H + 2 * 3 * 1536) + 2 * 4 * n + 4 * A * n
    assert activations(LLAMA, plan()).layer == expected


def test_eighteen_bytes_a_parameter_and_six_with_the_distributed_optimizer() -> None:
    numel = inventory(GPT, plan()).numel
    assert states(GPT, plan(replicate=4)) == 18 * numel
    assert states(GPT, plan(shard=4)) == pytest.approx((6 + 3) * numel, abs=8)
    assert states(GPT, plan(shard=2, context=2)) == pytest.approx((6 + 3) * numel, abs=8)
    assert states(GPT, plan(replicate=2, shard=2)) == pytest.approx((6 + 6) * numel, abs=8)


def test_experts_are_split_over_fewer_ranks() -> None:
    of = plan(shard=4, expert=4)
    kinds = [(kind.numel, len(kind.shape) == 3) for kind in inventory(MOE, of)]
    routed = sum(numel for numel, expert in kinds if expert)
    others = sum(numel for numel, expert in kinds if not expert)
    assert routed == L * 2 * 4 * H * H * 8 // 4
    assert states(MOE, of) == pytest.approx(9 * others + 18 * routed, abs=8)


def test_every_moment_has_every_category_and_parts_add_up() -> None:
    for model in (GPT, LLAMA, MOE):
        for of in (plan(), plan(shard=2, tensor=2, pipeline=2), replace(plan(pipeline=2), checkpointing="full")):
            found = budget(model, of)
            assert tuple(found) == ALL_MOMENTS
            for table in found.values():
                assert set(table) == set(BUDGETED) - {"runtime"}
                for amount in table.values():
                    assert amount.bytes is not None
                    assert amount.bytes >= 0
                    assert not amount.parts or sum(part.bytes for part in amount.parts) == amount.bytes


def test_adam_has_no_states_before_the_first_step() -> None:
    numel = inventory(GPT, plan()).numel
    first = budget(GPT, plan(), first_step=True)
    assert first["backward"]["optimizer"].bytes == 4 * numel
    assert first["step_end"]["optimizer"].bytes == 12 * numel
    assert budget(GPT, plan())["load"]["optimizer"].bytes == 4 * numel


def test_fp16_gradients_have_fp32_copies_until_they_are_zeroed() -> None:
    half = replace(plan(), precision=Precision(parameters="float16", master="float32", gradients="float16"))
    numel = inventory(GPT, half).numel
    found = budget(GPT, half)
    assert found["backward"]["gradients"].bytes == 2 * numel
    assert found["step_end"]["gradients"].bytes == 6 * numel


def test_no_axis_ever_costs_a_rank_more() -> None:
    alone = peak(GPT, plan())
    for axis in ("shard", "tensor", "context"):
        sizes = [peak(GPT, plan(**{axis: size})) for size in (1, 2, 4)]
        assert sizes == sorted(sizes, reverse=True), axis
    for stage in range(4):
        of = plan(pipeline=4)
        assert peak(GPT, replace(of, layout=replace(of.layout, pipeline_rank=stage))) < alone


def test_checkpointing_never_adds_to_what_is_saved() -> None:
    for attention in ("eager", "sdpa", "flash"):
        saved = [
            activations(GPT, replace(plan(), attention=attention, checkpointing=mode)).saved
            for mode in ("full", "selective", "none")
        ]
        assert saved == sorted(saved)


def test_stages_hold_as_many_micro_batches_as_the_schedule_says() -> None:
    of = plan(pipeline=4)
    flying = [activations(GPT, replace(of, layout=replace(of.layout, pipeline_rank=i))).in_flight for i in range(4)]
    assert flying == [4, 3, 2, 1]
    first = activations(GPT, of)
    assert first.logits == 0
    assert first.blocks == L // 4 * first.layer
    virtual = replace(of, pipeline=Pipeline(schedule="interleaved", micro_batches=8, virtual=2))
    chunk = activations(GPT, virtual)
    assert (chunk.in_flight, chunk.layers) == (11, 1)


def test_gpipe_holds_the_logits_of_every_micro_batch() -> None:
    of = plan(pipeline=2)
    last = replace(of, layout=replace(of.layout, pipeline_rank=1))
    gpipe = replace(last, pipeline=Pipeline(schedule="gpipe", micro_batches=8))
    assert activations(GPT, gpipe).logits == 8 * activations(GPT, last).logits


def test_logits_are_six_bytes_around_the_loss_and_ten_fused() -> None:
    scores = S * B * V
    for loss, wanted in (("megatron", 6), ("megatron-fused", 10)):
        found = activations(GPT, replace(plan(), loss=loss))
        assert (found.logits + found.loss_forward) / scores == pytest.approx(wanted, rel=0.03)


def test_other_families_and_missing_shapes_have_no_rule() -> None:
    with pytest.raises(NoRule):
        activations(replace(GPT, family="t5"), plan())
    with pytest.raises(NoRule):
        activations(GPT, replace(plan(), batch=Batch()))


def test_ring_of_context_parallel() -> None:
    # Two chunks of keys and values of 1000 tokens, 64 columns, 2 bytes.
    assert context.ring_bytes(1000, 64, 2, 4) == 512_000
    assert context.ring_bytes(1000, 64, 2, 1) == 0
    assert context.accumulation_bytes(1000, 512, 8, 2) == 4 * 1000 * 520


def test_routed_experts_by_hand() -> None:
    routing = experts.Routing(tokens=100, hidden=16, ffn=64, experts=8, per_token=2)
    parts = {part.name: part.bytes for part in experts.routed_bytes(routing)}
    assert parts["tokens dispatched to the experts"] == 200 * 16 * 2
    assert parts["inside of the experts"] == 200 * 3 * 64 * 2
    fused = replace(routing, gated=True, fused=True)
    assert {part.name: part.bytes for part in experts.routed_bytes(fused)}["inside of the experts"] == 200 * 3 * 64 * 2
    assert experts.routed_rows(replace(routing, load=1.5)) == 300


def test_workspaces_by_architecture() -> None:
    assert megatron.workspaces(9).bytes == 96 << 20
    assert megatron.workspaces(8, cublas_config=":4096:8").bytes == 68 << 20
    assert megatron.workspaces(9, grouped_gemm=True).bytes == 224 << 20
    assert megatron.workspaces(9, transformer_engine=False).bytes == 64 << 20
