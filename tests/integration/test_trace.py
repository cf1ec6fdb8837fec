"""A trace at one and two layers against training steps of six layers that were really counted."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_models import Gpt, ReferenceGpt, measure
from live_storages import LiveStorages
from torch import nn

from ranktop.budget.activations.saved import Activations
from ranktop.budget.activations.traced import activations_from, measured
from ranktop.budget.model import Model
from ranktop.budget.plan import Batch, Plan, Precision
from ranktop.probes import trace_huggingface
from ranktop.probes.trace_feed import Feed
from ranktop.probes.trace_model import Recipe
from ranktop.probes.trace_run import Request, run

LAYERS, BATCH, SEQUENCE = 6, 3, 192
"""What is predicted; read are one and two layers, batches 2 and 4, sequences up to a third of this."""


def gpt(layers: int, **options: Any) -> ReferenceGpt:
    return ReferenceGpt(Gpt(layers=layers, hidden=128, vocab=512, positions=1024, **options))


def predicted(
    recipe: Recipe,
    *,
    parameters: str | None = None,
    autocast: str | None = None,
    full: bool = False,
    attention: str = "sdpa",
) -> Activations:
    """Trace on the CPU's kernels and extrapolate."""
    third = SEQUENCE // 3
    request = Request(
        batch=2, sequence=third, parameters=parameters, autocast=autocast, checkpointing=full, gpu=False,
        # Without scores of attention nothing grows with the square: two lengths do.
        sequences=(third, third // 2, third // 4) if attention == "eager" else (third, third // 2),
    )  # fmt: skip
    coefficients = run(recipe, Feed(config=recipe.config), request)
    assert coefficients.notes == ()
    assert coefficients.within <= 0.001
    plan = Plan(
        precision=Precision(parameters=parameters or "float32", autocast=autocast),
        batch=Batch(micro_batch=BATCH, sequence_length=SEQUENCE),
        checkpointing="full" if full else "none",
        attention=attention,
        host=True,
    )
    found = activations_from(coefficients, plan)
    assert found.layers == LAYERS
    assert found.within is not None
    assert found.within <= 0.01
    return found


@pytest.mark.parametrize(
    ("options", "parameters", "autocast"),
    [
        ({}, "bfloat16", None),
        ({}, None, "bfloat16"),
        ({"attention": "eager", "dropout": 0.1}, None, None),
        ({"checkpointing": "full"}, None, "bfloat16"),
    ],
    ids=["bf16", "amp", "eager with dropout", "checkpointed amp"],
)
def test_two_depths_tell_a_deeper_gpt_at_another_batch_and_sequence(
    options: dict[str, Any], parameters: str | None, autocast: str | None
) -> None:
    full = options.get("checkpointing") == "full"
    traced = {name: value for name, value in options.items() if name != "checkpointing"}
    found = predicted(
        Recipe("gpt", lambda n: gpt(n, **traced), LAYERS),
        parameters=parameters,
        autocast=autocast,
        full=full,
        attention=options.get("attention", "sdpa"),
    )
    truth = measure(
        lambda: gpt(LAYERS, **options),
        batch=BATCH,
        sequence=SEQUENCE,
        dtype=getattr(torch, parameters or "float32"),
        autocast=getattr(torch, autocast) if autocast else None,
        steps=1,
    )
    states = truth.moments["step_start"]["total"]  # tokens and labels among them
    assert found.saved - found.inputs == pytest.approx(truth.activations, rel=0.005)
    assert found.inputs == truth.inputs
    forward = states + found.saved - found.inputs + max(found.loss_forward, _in_last_block(found))
    assert forward == pytest.approx(truth.peaks["forward"], rel=0.005)
    assert _backward_peak(found, states) == pytest.approx(truth.peaks["backward"], rel=0.01)


def _in_last_block(found: Activations) -> int:
    return found.block_forward - found.after - found.logits


def _backward_peak(found: Activations, states: int) -> int:
    """At the loss, or inside the last or the first block, with the gradients that exist by then."""
    sizes = [found.saved - found.inputs + found.loss_backward]
    head, block = 512 * 128 * 4, found.backward[-1][1]
    for left in (found.layers, 1):
        others = found.blocks * (left - 1) // found.layers + found.outside - found.after
        others += found.casts * left // found.layers + head + (found.layers - left) * block
        sizes += [others + alive + made for alive, made in found.backward]
    return states + max(sizes)


def alive_before_backward(model: nn.Module, inputs: dict[str, torch.Tensor]) -> int:
    """Bytes of floating-point storages that a real forward leaves, its output held as in a training loop."""
    live = LiveStorages()
    with live:
        for state in (*model.parameters(), *model.buffers()):
            live.note(state)
        states = live.total()
        output = model(**inputs)
        total = live.total()
    assert output.loss.requires_grad
    return total - states


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    },
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": LAYERS, "n_head": 4,
        "vocab_size": 256, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": 0,
        "eos_token_id": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "attention"), [("llama", "sdpa"), ("gpt2", "eager")])
def test_a_huggingface_config_is_traced_as_its_model_really_runs(name: str, attention: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS[name]))
    found = predicted(trace_huggingface.recipe(file, {}, None, attention), attention=attention)
    config = transformers.AutoConfig.for_model(**CONFIGS[name])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()
    model.config.use_cache = False
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    alive = alive_before_backward(model, {"input_ids": tokens, "labels": tokens})
    assert found.saved - found.inputs == pytest.approx(alive, rel=0.005)


def test_masks_and_statistics_have_the_size_that_cuda_gives_them() -> None:
    """Korthikanti et al.: one byte per element for each of a block's two dropouts; SDPA keeps no mask at all.

    LayerNorm's mean and reciprocal deviation are in fp32 on CUDA, in bf16 on the CPU: 2 norms x 2 x 2 bytes a token.
    """
    per_layer = {}
    for dropout in (0.0, 0.1):
        for gpu in (True, False):
            request = Request(batch=1, sequence=64, sequences=(64,), parameters="bfloat16", gpu=gpu)
            recipe = Recipe("gpt", functools.partial(gpt, dropout=dropout), LAYERS)
            per_layer[dropout, gpu] = run(recipe, Feed(), request).plain.per_layer["saved"][3] / 64
    assert per_layer[0.1, True] - per_layer[0.0, True] == 2 * 128
    assert per_layer[0.0, True] - per_layer[0.0, False] == 8
    # The CPU has no fused attention with dropout and keeps masks in bf16.
    assert per_layer[0.1, False] - per_layer[0.0, False] > 2 * 2 * 128


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter in fp32, as PEFT computes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.base(x) + self.up(self.down(x)))


class Frozen(nn.Module):
    """Frozen and tied embedding and head around adapted layers."""

    def __init__(self, depth: int = LAYERS, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width).requires_grad_(False)
        self.layers = nn.Sequential(*(Adapted(width) for _ in range(depth)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.layers(self.embed(tokens)), self.embed.weight)


def test_frozen_and_tied_weights_are_traced() -> None:
    found = predicted(Recipe("frozen", lambda n: Frozen(n), LAYERS))
    model, live = Frozen(), LiveStorages()
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    with live:
        for parameter in model.parameters():
            live.note(parameter)
        states = live.total()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.reshape(-1, 256), tokens.reshape(-1))
        alive = live.total() - states
    assert loss.requires_grad
    assert found.saved - found.inputs == pytest.approx(alive, rel=0.005)


class Looking(nn.Module):
    """Takes a decision by the value of a tensor, which fake tensors do not have."""

    def __init__(self, depth: int, width: int = 32) -> None:
        super().__init__()
        self.rates = [float(rate) for rate in torch.linspace(0, 0.1, depth)]
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = torch.tanh(block(x)) if x.mean().item() < 1e9 else x
        assert isinstance(x, torch.Tensor)
        return x


class Stochastic(Looking):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block, rate in zip(self.blocks, self.rates, strict=True):
            x = torch.tanh(block(x)) * (1 - rate)
        assert isinstance(x, torch.Tensor)
        return x


@pytest.mark.parametrize(("kind", "tensors", "kept"), [(Looking, "real", 1), (Stochastic, "fake", 2)])
def test_what_fake_tensors_cannot_do_is_done_with_real_ones(
    kind: Callable[..., nn.Module], tensors: str, kept: int
) -> None:
    """Reading a number in the constructor is no reason to compute; reading one in forward is, and is said."""
    coefficients = run(Recipe("looking", lambda n: kind(n), 5), Feed(), Request(batch=2, sequence=4096))
    assert coefficients.tensors == tensors
    assert max(coefficients.sequences) == (64 if tensors == "real" else 4096)
    assert [note for note in coefficients.notes if "real tensors: Data" in note] == list(coefficients.notes)
    assert len(coefficients.notes) == (1 if tensors == "real" else 0)
    found = activations_from(coefficients, Plan(batch=Batch(micro_batch=2, sequence_length=4096)))
    # tanh keeps its result, the next linear layer its input: the same tensor, unless a factor stands between them.
    assert found.layer == kept * 2 * 4096 * 32 * 4
    assert coefficients.parameters == (256 * 32, 32 * 32 + 32)


class Uneven(nn.Module):
    """Every further block is wider than the one before."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(32, 64 * (n + 1)) for n in range(depth)])
        self.embed = nn.Embedding(256, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + torch.tanh(block(x)).mean(-1, keepdim=True)
        assert isinstance(x, torch.Tensor)
        return x


def test_a_model_that_is_not_linear_in_depth_is_said_to_be_so() -> None:
    coefficients = run(Recipe("uneven", Uneven, 9), Feed(), Request(batch=1, sequence=64))
    assert coefficients.within > 0.01
    assert any(note.startswith("not linear in depth") for note in coefficients.notes)
    found = activations_from(coefficients, Plan())
    assert found.within == coefficients.within


def test_what_a_job_has_shown_is_carried_over_to_another_batch_sequence_and_checkpointing() -> None:
    """The job's own reading is met exactly; the closed form carries it, and per token alone is called a guess."""
    model = Model(
        family="gpt", layers=4, hidden=128, heads=4, kv_heads=4, head_dim=32, ffn=512, vocab=512, positions=1024,
        options={"bias": True},
    )  # fmt: skip
    plan = Plan(checkpointing="none", host=True)
    here = measure(lambda: gpt(4), batch=2, sequence=64, steps=1)
    seen = here.activations + here.inputs  # an allocator does not tell tokens from activations
    source = measured(seen, None, plan, 4, 2, 64)
    at_home = activations_from(source, plan, model)
    assert at_home.saved == pytest.approx(seen, abs=16)
    assert at_home.within == 0.0
    for asked, options in (
        (Plan(batch=Batch(micro_batch=3, sequence_length=160), checkpointing="none", host=True), {}),
        (
            Plan(batch=Batch(micro_batch=2, sequence_length=128), checkpointing="full", host=True),
            {"checkpointing": "full"},
        ),
    ):
        batch, sequence = asked.batch.micro_batch or 0, asked.batch.sequence_length or 0
        truth = measure(functools.partial(gpt, 4, **options), batch=batch, sequence=sequence, steps=1).activations
        found = activations_from(source, asked, model)
        assert found.saved - found.inputs == pytest.approx(truth, rel=0.02)
        assert found.within == 0.05
        if not options:
            alone = activations_from(source, asked)
            assert alone.saved == pytest.approx(truth, rel=0.02)
            assert alone.within is None
