"""Coefficients by hand: what they say for other plans than the one under which they were read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ranktop.budget.activations.coefficients import Coefficients, Polynomial, Setting, Terms, at
from ranktop.budget.activations.traced import activations_from, measured
from ranktop.budget.model import BadInput, Model, NoRule
from ranktop.budget.plan import Batch, Layout, Pipeline, Plan, Precision

KIB = 1024


def per_token(size: float, square: float = 0.0) -> Polynomial:
    return (0.0, 0.0, 0.0, 0.0, size, square)


TRACE = Coefficients(
    model="mine:Net",
    layers=8,
    setting=Setting(parameters="float32"),
    plain=Terms(
        fixed={
            "saved": per_token(3 * KIB), "after": per_token(KIB), "logits": per_token(10 * KIB),
            "casts": (0.0,) * 6, "inputs": per_token(16), "boundary": per_token(KIB),
            "loss_forward": per_token(5), "loss_backward": per_token(7), "block_forward": per_token(11),
            "block_backward": per_token(13),
        },
        per_layer={"saved": per_token(16 * KIB, 2.0), "casts": (0.0,) * 6},
        stages=((per_token(13), 0), (per_token(9), 100), (per_token(10), 100), (per_token(-4 * KIB), 400)),
    ),
    batch=2,
    sequence=100,
    within=0.002,
    notes=("a note",),
)  # fmt: skip

MASKED = 16 * KIB + 2 * 100
"""Bytes per token of a layer at 100 tokens a sample."""


def test_a_polynomial_counts_what_context_parallel_leaves_on_a_rank() -> None:
    terms = (7.0, 3.0, 0.5, 2.0, 11.0, 0.25)
    assert at(terms, 4, 100) == 7 + 300 + 5000 + 4 * (2 + 1100 + 2500)
    # A rank holds half of the queries, and each of them looks at all the keys.
    assert at(terms, 4, 100, split=2) == 7 + 150 + 2500 + 4 * (2 + 550 + 1250)


def test_json_there_and_back() -> None:
    full = replace(
        TRACE, full=Terms(fixed=TRACE.plain.fixed, per_layer={"saved": per_token(KIB)}, loss=(per_token(9),))
    )
    for coefficients in (TRACE, full, Coefficients()):
        assert Coefficients.from_json(coefficients.to_json()) == coefficients
        assert Coefficients.from_json(coefficients.to_json(indent=2)) == coefficients


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "a trace must be JSON"),
        ("[]", "not a trace of schema 1"),
        (json.dumps({"schema": 2}), "not a trace of schema 1"),
        (json.dumps({"schema": 1}), "lacks what it should have"),
        (json.dumps({**json.loads(TRACE.to_json()), "plain": {"fixed": {"saved": [1, 2]}}}), "lacks"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Coefficients.from_json(text)


def test_the_plan_as_it_was_read() -> None:
    found = activations_from(TRACE, Plan())
    tokens = 2 * 100
    assert (found.layers, found.layer) == (8, MASKED * tokens)
    assert found.blocks == 8 * found.layer
    assert (found.outside, found.after) == (3 * KIB * tokens, KIB * tokens)
    assert (found.logits, found.inputs) == (10 * KIB * tokens, 16 * tokens)
    assert found.saved == found.blocks + (13 * KIB + 16) * tokens == sum(part.bytes for part in found.parts)
    assert found.block_backward == 13 * tokens
    # Of two points with the same gradients the higher one; what is lower with fewer gradients is left out.
    assert found.backward == (
        (found.layer + 13 * tokens, 0),
        (found.layer + 10 * tokens, 100),
        (found.layer - 4 * KIB * tokens, 400),
    )
    assert found.within == 0.01


def test_a_pipelines_stages_share_the_layers_and_have_one_end_each() -> None:
    def stage(rank: int) -> Plan:
        return Plan(layout=Layout(world_size=4, pipeline=4, pipeline_rank=rank), pipeline=Pipeline(micro_batches=8))

    ranks = [activations_from(TRACE, stage(rank)) for rank in range(4)]
    tokens = 2 * 100
    assert [one.layers for one in ranks] == [2, 2, 2, 2]
    assert [one.in_flight for one in ranks] == [4, 3, 2, 1]
    assert [one.logits for one in ranks] == [0, 0, 0, 10 * KIB * tokens]
    assert [one.outside for one in ranks] == [2 * KIB * tokens, KIB * tokens, KIB * tokens, 2 * KIB * tokens]
    assert ranks[0].saved == 4 * (2 * MASKED + 2 * KIB + 16) * tokens


def test_checkpointing_that_was_not_traced_keeps_one_tensor_per_segment() -> None:
    tokens = 2 * 100
    found = activations_from(TRACE, Plan(checkpointing="full"))
    assert (found.blocks, found.recomputed) == (8 * KIB * tokens, (MASKED - KIB) * tokens)
    pairs = activations_from(TRACE, Plan(checkpointing="full", checkpoint_every=3))
    assert (pairs.blocks, pairs.recomputed) == (3 * KIB * tokens, (3 * MASKED - KIB) * tokens)
    selective = activations_from(TRACE, Plan(checkpointing="selective"))
    assert found.blocks < selective.blocks < 8 * MASKED * tokens
    assert selective.within is None


def test_another_precision_is_a_guess_without_a_closed_form() -> None:
    found = activations_from(TRACE, Plan(precision=Precision(parameters="bfloat16")))
    as_read = activations_from(TRACE, Plan())
    assert found.within is None
    assert "rules of thumb" in found.rule
    assert (found.layer, found.logits) == (as_read.layer / 2, as_read.logits / 2)
    assert found.inputs == as_read.inputs


def test_another_layout_is_carried_by_the_closed_form_of_a_known_model() -> None:
    """Of 16 tensors that a block keeps, tensor parallel splits 12 (Korthikanti et al., arXiv:2205.05198)."""
    model = Model(
        family="gpt", layers=8, hidden=256, heads=8, kv_heads=8, head_dim=32, ffn=1024, vocab=1024, positions=512,
        options={"bias": True},
    )  # fmt: skip
    batch = Batch(micro_batch=2, sequence_length=512)
    whole = activations_from(TRACE, Plan(batch=batch), model)
    split = activations_from(TRACE, Plan(batch=batch, layout=Layout(world_size=4, tensor=4)), model)
    assert split.layer / whole.layer == pytest.approx((4 + 12 / 4) / 16, rel=0.02)
    assert split.within == 0.05
    alone = activations_from(TRACE, Plan(batch=batch, layout=Layout(world_size=4, tensor=4)))
    assert alone.layer / whole.layer == pytest.approx((4 + 12 / 4) / 16)
    assert alone.within is None


def test_a_trace_without_a_depth_needs_one() -> None:
    with pytest.raises(NoRule, match="how many layers"):
        activations_from(replace(TRACE, layers=0), Plan())
    assert activations_from(replace(TRACE, layers=0), Plan(), Model(layers=3)).layers == 3


def test_a_measurement_says_nothing_about_what_no_closed_form_carries() -> None:
    source = measured(4_000_000, 5_000_000, Plan(), 4, 2, 100)
    same = activations_from(source, Plan())
    assert (same.blocks, same.logits, same.saved, same.within) == (4_000_000, 1_000_000, 5_000_000, 0.0)
    twice = activations_from(source, Plan(batch=Batch(micro_batch=4)))
    assert (twice.saved, twice.within) == (10_000_000, None)
    with pytest.raises(NoRule, match="other checkpointing, precision or splitting"):
        activations_from(source, Plan(checkpointing="full"))
    with pytest.raises(NoRule, match="no activations"):
        measured(0, None, Plan(), 4, 2, 100)
    with pytest.raises(NoRule, match="pipeline"):
        measured(1, None, Plan(layout=Layout(world_size=2, pipeline=2)), 4, 2, 100)
