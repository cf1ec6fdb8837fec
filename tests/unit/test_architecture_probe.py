"""What a live model's modules and outputs tell of its architecture."""

from __future__ import annotations

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from ranktop.agent.facts import differentiable
from ranktop.budget.plan import Plan
from ranktop.demo.gpt import GPT, GPTConfig
from ranktop.probes.architecture import dropout_of, heads_of, output_sizes, with_architecture

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
