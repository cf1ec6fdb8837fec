"""Models read from Hugging Face configs against the same models built by transformers on the meta device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.budget.model import BadInput, Model
from ranktop.budget.models import huggingface
from ranktop.budget.models.huggingface import model_of
from ranktop.budget.models.place import inventory
from ranktop.budget.models.tensors import count, tensors
from ranktop.budget.plan import Plan

CONFIGS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "model_configs.json").read_text())

LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

# Class of transformers -> keys that leave its defaults, a list of them for each case.
SMALL: dict[str, list[dict[str, Any]]] = {
    "LlamaForCausalLM": [{}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 24, "tie_word_embeddings": True}],
    "MistralForCausalLM": [{}],
    "MinistralForCausalLM": [{"head_dim": 16}],
    "MixtralForCausalLM": [{"num_local_experts": 3}],
    "Qwen2ForCausalLM": [{"tie_word_embeddings": True}],
    "Qwen2MoeForCausalLM": [MOE, {**MOE, "mlp_only_layers": [1], "shared_expert_intermediate_size": 40},
                            {**MOE, "decoder_sparse_step": 2, "qkv_bias": False}],
    "Qwen3ForCausalLM": [{}, {"head_dim": 32, "attention_bias": True}],
    "Qwen3MoeForCausalLM": [MOE, {**MOE, "mlp_only_layers": [0, 2], "head_dim": 8}],
    "GemmaForCausalLM": [{"head_dim": 32}],
    "Gemma2ForCausalLM": [{}, {"head_dim": 8, "attention_bias": True}],
    "Gemma3ForCausalLM": [{"head_dim": 8}, {"head_dim": 8, "num_hidden_layers": 7}],
    "Phi3ForCausalLM": [{"pad_token_id": None}],
    "OlmoForCausalLM": [{}],
    "Olmo2ForCausalLM": [{}],
    "OlmoeForCausalLM": [{"num_experts": 5, "num_experts_per_tok": 2}],
    "GraniteForCausalLM": [{"mlp_bias": True}],
    "SmolLM3ForCausalLM": [{"pad_token_id": None}, {"tie_word_embeddings": False, "pad_token_id": None}],
    "GPTNeoXForCausalLM": [{}, {"attention_bias": False, "rotary_pct": 1.0, "tie_word_embeddings": True}],
    "LlamaForSequenceClassification": [{"num_labels": 1}, {"tie_word_embeddings": True}],
    "GPTNeoXForSequenceClassification": [{}],
    "Gemma2Model": [{}],
    "BertForMaskedLM": [{}, {"tie_word_embeddings": False}],
    "BertForPreTraining": [{"type_vocab_size": 3}],
    "BertForSequenceClassification": [{"num_labels": 7}],
    "BertForTokenClassification": [{"num_labels": 7}],
    "BertForQuestionAnswering": [{}],
    "BertModel": [{"max_position_embeddings": 64}],
}  # fmt: skip
SIZES = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 96, "vocab_size": 500}  # fmt: skip

OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("GPT2LMHeadModel", {"n_layer": 2, "n_embd": 48, "n_head": 3, "vocab_size": 99, "n_positions": 32}),
    ("GPT2LMHeadModel", {"n_layer": 2, "n_embd": 48, "n_head": 3, "n_inner": 20, "tie_word_embeddings": False}),
    ("GPT2ForSequenceClassification", {"n_layer": 2, "n_embd": 48, "n_head": 3, "num_labels": 4}),
    ("T5ForConditionalGeneration", {"num_layers": 3, "d_model": 32, "num_heads": 2, "d_kv": 8, "d_ff": 50}),
    ("T5ForConditionalGeneration", {"num_layers": 1, "num_decoder_layers": 3, "feed_forward_proj": "gated-gelu",
                                    "tie_word_embeddings": False, "relative_attention_num_buckets": 16}),
    ("MT5ForConditionalGeneration", {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_kv": 8, "d_ff": 50}),
    ("ViTForImageClassification", {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 3,
                                   "image_size": [32, 64], "patch_size": [8, 16], "num_channels": 1, "num_labels": 9}),
    ("ViTForImageClassification", {"num_hidden_layers": 2, "qkv_bias": False, "image_size": 30, "num_labels": 1}),
    ("ViTModel", {"num_hidden_layers": 1}),
]  # fmt: skip


def cases() -> list[tuple[str, dict[str, Any]]]:
    return [(cls, {**SIZES, **keys}) for cls, variants in SMALL.items() for keys in variants] + OTHERS


def saved(config: Any, cls: str) -> dict[str, Any]:
    """Return the keys that transformers writes into a config.json."""
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return {**found, "architectures": [cls]}


def build(cls: Any, config: Any) -> torch.nn.Module:
    with torch.device("meta"):
        module: torch.nn.Module = cls(config)
    return module


def names_and_shapes(module: torch.nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    # A bare encoder has no prefix of its own in front of its parameters.
    prefix = {"BertModel": "bert.", "ViTModel": "vit.", "Gemma2Model": "model."}.get(type(module).__name__, "")
    return [(prefix + name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]


@pytest.mark.parametrize(("cls", "keys"), cases(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_parameter_is_that_of_transformers_by_name_shape_and_order(cls: str, keys: dict[str, Any]) -> None:
    architecture = getattr(transformers, cls)
    config = architecture.config_class(**keys)
    module = build(architecture, config)
    model = model_of(saved(config, cls))

    assert [(tensor.name, tensor.shape) for tensor in tensors(model)] == names_and_shapes(module)
    assert [kind.shape for kind in inventory(model, Plan())] == [tuple(p.shape) for p in module.parameters()]
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
    assert inventory(model, Plan()).buffer_bytes == buffers


def shallow(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, **{key: 2 for key in LAYER_KEYS if key in config}}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_of_full_width_gives_the_parameters_of_transformers(name: str) -> None:
    config = shallow(CONFIGS[name]["config"])
    if CONFIGS[name].get("text_only"):
        config = shallow(config["text_config"])
        config["architectures"] = ["Gemma3ForCausalLM"]
    # transformers changes the config that it is given.
    loaded = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    module = build(getattr(transformers, config["architectures"][0]), loaded)
    assert [(tensor.name, tensor.shape) for tensor in tensors(model_of(config))] == names_and_shapes(module)


@pytest.mark.parametrize("name", [name for name, entry in CONFIGS.items() if entry["parameters"]])
def test_a_published_config_has_the_published_number_of_parameters(name: str) -> None:
    model = huggingface.read(json.dumps(CONFIGS[name]["config"]), name)
    assert count(model) == CONFIGS[name]["parameters"]
    assert bool(model.options.get("text_only")) == bool(CONFIGS[name].get("text_only"))


def test_keys_that_a_config_leaves_out_are_the_defaults_of_its_class() -> None:
    text = model_of(CONFIGS["gemma-3-4b"]["config"])
    assert (text.heads, text.kv_heads, text.head_dim, text.vocab, text.tied) == (8, 4, 256, 262208, True)
    llama = model_of({key: CONFIGS["Meta-Llama-3-8B"]["config"][key] for key in ("model_type", *NEEDED)})
    assert (llama.kv_heads, llama.head_dim, llama.positions, llama.tied) == (32, 128, 2048, False)


def test_dropout_is_read_where_a_family_keeps_it() -> None:
    gpt2 = model_of({**CONFIGS["gpt2"]["config"], "resid_pdrop": 0.2})
    assert gpt2.dropout == 0.2
    assert (gpt2.options["attention_dropout"], gpt2.options["embedding_dropout"]) == (0.1, 0.1)
    assert model_of(CONFIGS["bert-base-uncased"]["config"]).dropout == 0.1
    llama = model_of({**CONFIGS["Meta-Llama-3-8B"]["config"], "attention_dropout": 0.3})
    assert (llama.dropout, llama.options["attention_dropout"]) == (0.0, 0.3)


NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


@pytest.mark.parametrize("key", NEEDED)
def test_a_config_that_lacks_a_size_is_refused_by_that_size(key: str) -> None:
    config = dict(CONFIGS["Meta-Llama-3-8B"]["config"])
    del config[key]
    with pytest.raises(BadInput, match=f"^mine: {key} is missing$"):
        model_of(config, "mine")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("hidden_size", -4096, "hidden_size must be 1 to"),
        ("hidden_size", 0, "hidden_size must be 1 to"),
        ("hidden_size", 4096.5, "hidden_size must be a whole number"),
        ("hidden_size", "4096", "hidden_size must be a whole number"),
        ("hidden_size", True, "hidden_size must be a whole number"),
        ("hidden_size", 10**30, "hidden_size must be 1 to"),
        ("num_hidden_layers", 10**8, "num_hidden_layers must be 1 to"),
        ("num_attention_heads", 33, "num_key_value_heads 8 does not divide num_attention_heads 33"),
        ("hidden_size", 4100, "num_attention_heads 32 does not divide hidden_size 4100"),
        ("num_key_value_heads", 5, "num_key_value_heads 5 does not divide num_attention_heads 32"),
        ("tie_word_embeddings", "yes", "tie_word_embeddings must be true or false"),
        ("attention_dropout", 1.5, "attention_dropout must be from 0 to 1"),
        ("model_type", "gpt5", "unknown model_type 'gpt5'; known are bert, gemma, "),
        ("model_type", 7, "model_type must be a text"),
        ("hidden_act", 7, "hidden_act must be a text"),
    ],
)
def test_nonsense_in_a_config_is_refused_in_one_line(key: str, value: Any, says: str) -> None:
    config = {**CONFIGS["Meta-Llama-3-8B"]["config"], key: value}
    with pytest.raises(BadInput) as refused:
        model_of(config, "config.json")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_config_without_model_type_is_known_by_its_architecture() -> None:
    config = dict(CONFIGS["Qwen3-30B-A3B"]["config"])
    del config["model_type"]
    assert model_of(config) == model_of(CONFIGS["Qwen3-30B-A3B"]["config"])
    with pytest.raises(BadInput, match="model_type is missing"):
        model_of({**config, "architectures": ["Unheard"]})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"model_type": "llama",\n "hidden_size" 4096}', "c.json: line 2, column 16: "),
        ("", "c.json: line 1, column 1: "),
        ("[1, 2]", "c.json: a config must be an object with model_type, not a list"),
        ("[" * 100_000, "c.json: "),
    ],
)
def test_invalid_json_is_named_with_line_and_column(text: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        huggingface.read(text, "c.json")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_model_of_an_unknown_family_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BadInput, match="known are gpt, gpt2, gpt-neox, llama"):
        tensors(Model(family="rwkv", layers=1))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats(allow_nan=True) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_stands_in_a_config_it_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    config = dict(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]["config"])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        config[key] = data.draw(values)
    said = ""
    try:
        model = model_of(config, "c.json")
        assert inventory(replace(model, layers=min(model.layers, 50)), Plan()).numel > 0
    except BadInput as refused:
        said = str(refused)
    assert "\n" not in said
    assert len(said) < 400
