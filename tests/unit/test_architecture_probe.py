"""What a live model's modules and outputs tell of its architecture."""

from __future__ import annotations

import logging
from types import MethodType

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from ranktop.agent.facts import differentiable
from ranktop.budget.plan import Forward, Plan, Precision
from ranktop.demo.gpt import GPT, GPTConfig
from ranktop.probes.architecture import Holding, autocast_inside, dropout_of, heads_of, output_sizes, with_architecture

TOKENS = torch.zeros(2, 8, dtype=torch.long)


def test_a_model_that_returns_logits() -> None:
    model = GPT(GPTConfig(vocabulary=32, context=8, layers=1, heads=4, hidden=16))
    plan = with_architecture(Plan(), model, output_sizes(differentiable(model(TOKENS))))
    assert plan.forward is not None
    assert (plan.forward.heads, plan.forward.output_bytes, plan.forward.loss_inside) == (4, 2 * 8 * 32 * 4, False)
    assert plan.loss == "upcast"


def test_a_hugging_face_model_with_its_loss_inside() -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8)
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config).eval()
    output = model(input_ids=TOKENS, labels=TOKENS)
    plan = with_architecture(Plan(), model, output_sizes(differentiable(output)))
    assert plan.forward is not None
    assert (plan.forward.heads, plan.forward.loss_inside, plan.attention, plan.loss) == (2, True, "eager", "hf")
    assert plan.forward.dropout == 0.0, "the model came in eval mode"
    assert dropout_of(model.train()) == 0.1


def test_an_autocast_around_a_models_forward_is_seen_where_hooks_are_not_inside_of_it() -> None:
    convert_outputs_to_fp32 = pytest.importorskip("accelerate.utils").convert_outputs_to_fp32
    model = GPT(GPTConfig(vocabulary=32, context=8, layers=1, heads=4, hidden=16))
    assert autocast_inside(model) is None
    plain = with_architecture(Plan(), model, None)
    assert (plain.precision.autocast, plain.forward) == (None, Forward(heads=4))
    forward = torch.autocast("cpu", torch.bfloat16)(GPT.forward)
    model.forward = MethodType(convert_outputs_to_fp32(forward), model)  # type: ignore[method-assign,unused-ignore]
    plan = with_architecture(Plan(), model, None)
    assert (plan.precision.autocast, plan.forward) == ("bfloat16", Forward(heads=4, autocast_inside=True))
    outer = with_architecture(Plan(precision=Precision(autocast="float16")), model, None)
    assert outer.precision.autocast == "float16"
    model.forward = torch.autocast("cpu", torch.bfloat16, enabled=False)(GPT.forward)  # type: ignore[method-assign]
    assert autocast_inside(model) is None


def test_outputs_that_a_script_still_holds_are_counted_and_not_held_for_it() -> None:
    holding = Holding()
    holding.look()
    assert holding.held is None
    kept, dropped = torch.ones(10, requires_grad=True) * 2, torch.ones(30, requires_grad=True) * 2
    holding.returned([kept, dropped], None)
    del dropped
    holding.look()
    assert holding.held == 40
    del kept
    holding.look()
    assert holding.held == 40, "each forward's outputs are looked at once"


def test_a_key_value_cache_among_the_outputs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    config = GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=32, n_positions=8)
    model = GPT2LMHeadModel(config)
    output = model(input_ids=TOKENS, labels=TOKENS)
    assert output_sizes([], output).cache == 3 * 2 * (2 * 8 * 16) * 4
    assert output_sizes([], model(input_ids=TOKENS, use_cache=False)).cache == 0
    assert output_sizes([], {"past_key_values": 3}).cache == 0
    plan = with_architecture(Plan(), model, output_sizes(differentiable(output), output))
    assert plan.forward is not None
    assert (plan.forward.cache_bytes, plan.forward.held_bytes) == (6144, None)
    assert "deprecated" not in caplog.text, "the user must not be warned of what the agent asks"


def test_heads_that_modules_do_not_agree_on_are_unknown() -> None:
    model = nn.ModuleList([nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 4)])
    assert heads_of(model) is None
    assert heads_of(nn.MultiheadAttention(8, 2)) == 2


def test_an_attribute_that_raises_costs_a_note_only() -> None:
    class Odd(nn.Module):
        @property
        def config(self) -> object:
            raise ValueError("not now")

    plan = with_architecture(Plan(notes=("a",)), Odd(), None)
    assert plan.notes == ("a", "could not tell the architecture: ValueError: not now")
