"""Laws of activations that hold for every shape."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.budget.activations.closed import activations
from ranktop.budget.model import Model
from ranktop.budget.plan import Batch, Layout, Plan, Precision

PRECISIONS = (Precision(), Precision(parameters="bfloat16"), Precision(autocast="bfloat16"))


@st.composite
def models(draw: st.DrawFn) -> Model:
    """A small model of any family; sizes are multiples of what tensor parallel splits here."""
    heads = draw(st.sampled_from([4, 8]))
    hidden = heads * draw(st.sampled_from([32, 64]))
    return Model(
        family=draw(st.sampled_from(["gpt", "gpt2", "gpt-neox", "llama", "bert"])),
        layers=draw(st.integers(1, 6)),
        hidden=hidden,
        heads=heads,
        kv_heads=draw(st.sampled_from([4, heads])),
        head_dim=hidden // heads,
        ffn=draw(st.sampled_from([2, 3, 4])) * hidden,
        vocab=draw(st.sampled_from([512, 4096])),
        positions=256,
        dropout=draw(st.sampled_from([0.0, 0.1])),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return Plan(
        precision=draw(st.sampled_from(PRECISIONS)),
        batch=Batch(micro_batch=draw(st.integers(1, 4)), sequence_length=256),
        checkpointing=draw(st.sampled_from(["none", "selective", "full"])),
        attention=draw(st.sampled_from(["sdpa", "eager"])),
        loss=draw(st.sampled_from(["upcast", "plain", "hf"])),
        host=draw(st.booleans()),
    )


@settings(max_examples=40, deadline=None)
@given(models(), plans())
def test_twice_the_batch_keeps_twice_as_much_but_for_what_has_no_batch(model: Model, plan: Plan) -> None:
    def blocks(times: int) -> int:
        size = (plan.batch.micro_batch or 1) * times
        return activations(model, replace(plan, batch=replace(plan.batch, micro_batch=size))).blocks

    once, twice, thrice = blocks(1), blocks(2), blocks(3)
    assert thrice - twice == twice - once
    assert once <= twice <= 2 * once


@settings(max_examples=40, deadline=None)
@given(models(), plans())
def test_checkpointing_never_adds_to_what_forward_leaves(model: Model, plan: Plan) -> None:
    def blocks(mode: str) -> int:
        return activations(model, replace(plan, checkpointing=mode)).blocks

    assert blocks("full") <= blocks("selective") <= max(blocks("none"), blocks("selective"))
    assert blocks("full") <= blocks("none")


@settings(max_examples=40, deadline=None)
@given(models(), plans())
def test_every_further_layer_keeps_as_much_as_the_one_before(model: Model, plan: Plan) -> None:
    sizes = [activations(replace(model, layers=count), plan).saved for count in (2, 3, 4)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 0


@settings(max_examples=40, deadline=None)
@given(models(), plans(), st.sampled_from(["", "dtensor", "megatron"]))
def test_more_tensor_parallel_ranks_never_keep_more(model: Model, plan: Plan, sequence: str) -> None:
    def split(ranks: int) -> Plan:
        return replace(plan, layout=Layout(world_size=ranks, tensor=ranks), sequence_parallel=sequence)

    one, two, four = (activations(model, split(ranks)) for ranks in (1, 2, 4))
    assert four.layer <= two.layer <= one.layer
    assert four.layer * 4 >= one.layer * 0.99
    assert four.logits <= two.logits <= one.logits


@settings(max_examples=40, deadline=None)
@given(models(), plans())
def test_parts_add_up_and_nothing_is_negative(model: Model, plan: Plan) -> None:
    found = activations(model, plan)
    assert sum(part.bytes for part in found.parts) == found.saved
    assert min(found.recomputed, found.loss_forward, found.loss_backward, found.block_backward, found.boundary) >= 0
    assert found.after <= found.outside
    alive = [bytes_alive for bytes_alive, _ in found.backward]
    made = [gradients for _, gradients in found.backward]
    assert alive == sorted(alive, reverse=True)
    assert made == sorted(made)
