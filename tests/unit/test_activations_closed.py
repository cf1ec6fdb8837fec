"""Closed forms of activations against numbers that papers print and that can be counted on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ranktop.budget.activations import published
from ranktop.budget.activations.closed import activations
from ranktop.budget.model import Model, NoRule
from ranktop.budget.models.section import word
from ranktop.budget.plan import Batch, Layout, Lora, Pipeline, Plan, Precision

B, S, H, A, L, V = 2, 512, 1024, 16, 6, 32000
SBH = S * B * H
BF16 = Precision(parameters="bfloat16")

GPT = Model(
    family="gpt", layers=L, hidden=H, heads=A, kv_heads=A, head_dim=H // A, ffn=4 * H, vocab=V, positions=S
)  # fmt: skip
LLAMA = replace(GPT, family="llama", kv_heads=4, ffn=2816)


def plan(**more: Any) -> Plan:
    fields: dict[str, Any] = {"precision": BF16, "batch": Batch(micro_batch=B, sequence_length=S)}
    return Plan(**{**fields, **more})


def split(ranks: int, **more: Any) -> Plan:
    return plan(strategy="tp", layout=Layout(world_size=ranks, tensor=ranks), **more)


def small(size: int) -> float:
    """Statistics of norms and the softmax's logsumexp are far below this share of a block."""
    return 0.01 * size


def test_a_fused_gpt_block_keeps_16_elements_per_token_and_channel() -> None:
    layer = activations(GPT, plan()).layer
    assert layer == 16 * SBH * 2 + 4 * (2 * 2 * B * S) + 4 * A * B * S


def test_a_block_with_dropout_and_unfused_attention_keeps_what_korthikanti_print() -> None:
    model = replace(GPT, dropout=0.1)
    for ranks in (1, 2, 8):
        eager = split(ranks, attention="eager")
        found = activations(model, eager).layer
        # Left out in the paper: mean and 1/std of two norms in fp32, and the causal mask that this block rebuilds.
        left_out = 16 * B * S + S * S
        assert found == published.layer(model, eager) + left_out


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("sequence", "elements"),
    [
        ("", lambda t: 4 + 12 / t),
        ("dtensor", lambda t: 2 + 14 / t),
        ("megatron", lambda t: 16 / t),
    ],
)
def test_tensor_parallel_keeps_the_gathered_inputs_or_their_slices(ranks: int, sequence: str, elements: Any) -> None:
    layer = activations(GPT, split(ranks, sequence_parallel=sequence)).layer
    assert layer == pytest.approx(elements(ranks) * SBH * 2, abs=small(layer))


def test_separate_projections_that_each_gather_keep_four_inputs() -> None:
    model = replace(GPT, options={"separate_qkv": True})
    layer = activations(model, split(4, sequence_parallel="dtensor-each")).layer
    assert layer == pytest.approx((4 + 14 / 4) * SBH * 2, abs=small(layer))


@pytest.mark.parametrize(("precision", "bytes_each"), [(BF16, (16, 4, 4, 8)), (Precision(), (24, 8, 8, 16))])
def test_a_llama_block_of_transformers_keeps_fp32_copies_in_its_norms(
    precision: Precision, bytes_each: tuple[int, int, int, int]
) -> None:
    layer = activations(LLAMA, plan(precision=precision)).layer
    norms, query, keys, feed_forward = bytes_each
    per_token = norms * H + query * H + keys * LLAMA.kv_heads * H // A + feed_forward * LLAMA.ffn
    assert layer == pytest.approx(per_token * B * S, abs=small(layer))


@pytest.mark.parametrize(
    ("family", "kind", "precision", "saved", "peak"),
    [
        ("gpt", "upcast", BF16, 4, 12),
        ("gpt", "plain", BF16, 2, 6),
        ("gpt", "plain", Precision(), 4, 12),
        ("llama", "hf", BF16, 6, 14),
        ("llama", "hf", Precision(), 8, 16),
    ],
)
def test_bytes_per_logit_of_the_losses(family: str, kind: str, precision: Precision, saved: int, peak: int) -> None:
    model = GPT if family == "gpt" else LLAMA
    found = activations(model, plan(precision=precision, loss=kind))
    none = activations(model, plan(precision=precision, loss="none"))
    logits = B * S * V
    kept = found.saved - none.saved
    assert kept == pytest.approx(saved * logits, rel=0.02)
    assert kept + found.loss_backward == pytest.approx(peak * logits, rel=0.02)


def test_checkpointing_keeps_inputs_and_brings_the_rest_back() -> None:
    none, full = activations(GPT, plan()), activations(GPT, plan(checkpointing="full"))
    assert full.blocks == L * SBH * 2
    assert full.recomputed == none.layer - SBH * 2
    assert none.recomputed == 0
    selective = activations(GPT, plan(checkpointing="selective"))
    assert full.blocks < selective.blocks < none.blocks


def test_segments_of_several_blocks_keep_fewer_inputs_and_recompute_more() -> None:
    one, three = (activations(GPT, plan(checkpointing="full", checkpoint_every=every)) for every in (1, 3))
    assert three.blocks == one.blocks // 3
    assert three.recomputed == one.recomputed + 2 * one.layer
    four = activations(GPT, plan(checkpointing="full", checkpoint_every=4))
    assert four.blocks == 2 * SBH * 2


def test_autocast_keeps_the_stream_in_fp32_and_casts_of_the_weights() -> None:
    found = activations(GPT, plan(precision=Precision(autocast="bfloat16")))
    assert found.boundary == SBH * 4
    assert found.casts == 2 * (L * 12 * H * H + V * H)
    assert found.layer == pytest.approx(36 * SBH, rel=0.01)


def test_mixed_precision_of_fsdp_computes_in_16_bit() -> None:
    mixed = activations(GPT, plan(precision=Precision(compute="bfloat16", reduce="float32")))
    assert mixed.saved == activations(GPT, plan()).saved


def test_cpu_kernels_keep_other_masks_and_statistics() -> None:
    model = replace(GPT, dropout=0.1)
    gpu, host = (activations(model, plan(attention="eager", host=on)).layer for on in (False, True))
    masks = SBH * 2 + A * S * S * B
    assert host - gpu == masks - 2 * 2 * B * S * 2


def test_adapters_on_every_layer_cost_more_than_full_training() -> None:
    full = activations(GPT, plan()).saved
    every = activations(GPT, plan(lora=Lora(rank=8))).saved
    one = activations(GPT, plan(lora=Lora(rank=8, targets=("qkv",)))).saved
    assert one < full < every


def test_a_context_parallel_rank_keeps_its_part_of_the_sequence() -> None:
    half = plan(layout=Layout(world_size=2, context=2))
    assert activations(LLAMA, half).blocks * 2 == pytest.approx(activations(LLAMA, plan()).blocks, rel=1e-4)
    assert activations(LLAMA, half).block_backward > activations(LLAMA, plan()).block_backward / 2


def test_stages_of_a_pipeline_have_the_ends_and_the_micro_batches_in_flight() -> None:
    def stage(rank: int) -> Any:
        layout = Layout(world_size=3, pipeline=3, pipeline_rank=rank)
        return activations(GPT, plan(layout=layout, pipeline=Pipeline(schedule="1f1b", micro_batches=8)))

    first, middle, last = (stage(rank) for rank in range(3))
    assert [one.layers for one in (first, middle, last)] == [2, 2, 2]
    assert [one.in_flight for one in (first, middle, last)] == [3, 2, 1]
    assert first.logits == middle.logits == 0 < last.logits
    assert first.outside > middle.outside
    for one in (first, middle, last):
        assert sum(part.bytes for part in one.parts) == one.saved


def test_routed_experts_keep_rows_for_every_choice() -> None:
    dense = replace(LLAMA, ffn=1024)
    sparse = replace(dense, experts=8, experts_per_token=2)
    per_token = 2 * (H + 2 * 1024 + 1024 + 1024 + H) - 4 * 1024
    difference = activations(sparse, plan()).layer - activations(dense, plan()).layer
    assert difference == pytest.approx(2 * per_token * B * S, rel=0.03)
    assert word(sparse, "activation", "silu") == "silu"


@pytest.mark.parametrize("family", ["gpt", "gpt2", "gpt-neox", "llama", "bert", "t5", "vit"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_parts_add_up_for_every_family(family: str, checkpointing: str) -> None:
    found = activations(replace(GPT, family=family), plan(checkpointing=checkpointing, loss="hf"))
    assert sum(part.bytes for part in found.parts) == found.saved
    assert all(part.name and part.bytes > 0 for part in found.parts)
    assert found.within is not None
    assert found.rule


def test_what_has_no_rule_says_so() -> None:
    with pytest.raises(NoRule, match="number of parameters"):
        activations(Model(count=7_000_000_000), plan())
    with pytest.raises(NoRule, match="mamba"):
        activations(replace(GPT, family="mamba"), plan())
    with pytest.raises(NoRule, match="sequence length"):
        activations(GPT, Plan())
    with pytest.raises(NoRule, match="focal"):
        activations(GPT, plan(loss="focal"))
    with pytest.raises(NoRule, match="sometimes"):
        activations(GPT, plan(checkpointing="sometimes"))
