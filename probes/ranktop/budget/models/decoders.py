"""Configs of Llama and what came after it: where their classes in transformers differ, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ranktop.budget.model import Model
from ranktop.budget.models.fields import Fields

_BOTH: Final = {"qkv_bias": "attention_bias", "o_bias": "attention_bias"}
_WITH_MLP: Final = {**_BOTH, "mlp_bias": "mlp_bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What a config class has by default. Source: transformers 5.24, ``configuration_*.py`` of each model."""

    positions: int = 2048
    kv_heads: int | None = None
    """None = as many as heads."""
    head_dim: int | None = None
    """None = hidden / heads."""
    tied: bool = False
    biases: dict[str, str] = field(default_factory=dict)
    """Option of the family -> key of the config that switches it on (off when the key is missing)."""
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    activation: str = "silu"
    experts: str = ""
    """Key of the number of routed experts; empty for dense models."""
    per_token: int = 0
    expert_ffn: str = ""
    """Key of an expert's width, where that is not ``intermediate_size``."""
    shared_ffn: int = 0
    heads: int | None = None
    vocab: int | None = None
    ffn: int | None = None
    """These three only where published configs leave them out."""


_GEMMA: Final[dict[str, bool | int | float | str]] = {"embedding_scale": True, "unit_offset_norm": True}

DECODERS: Final[dict[str, Decoder]] = {
    "llama": Decoder(biases=_WITH_MLP),
    "mistral": Decoder(positions=131072, kv_heads=8),
    "ministral": Decoder(positions=131072, kv_heads=8),
    "mixtral": Decoder(positions=131072, kv_heads=8, experts="num_local_experts", per_token=2),
    "qwen2": Decoder(positions=32768, kv_heads=32, options={"qkv_bias": True}),
    "qwen2_moe": Decoder(positions=32768, kv_heads=16, experts="num_experts", per_token=4, shared_ffn=5632,
                         expert_ffn="moe_intermediate_size"),
    "qwen3": Decoder(positions=32768, kv_heads=32, head_dim=128, biases=_BOTH, options={"qk_norm": "head"}),
    "qwen3_moe": Decoder(positions=32768, kv_heads=4, biases=_BOTH, per_token=8,
                         options={"qk_norm": "head", "router_last": True}, experts="num_experts",
                         expert_ffn="moe_intermediate_size"),
    "gemma": Decoder(positions=8192, kv_heads=16, head_dim=256, tied=True, biases=_BOTH, options=_GEMMA,
                     activation="gelu_pytorch_tanh"),
    "gemma2": Decoder(positions=8192, kv_heads=4, head_dim=256, tied=True, biases=_BOTH,
                      options={**_GEMMA, "norms": "both"}, activation="gelu_pytorch_tanh"),
    "gemma3_text": Decoder(positions=131072, kv_heads=4, head_dim=256, tied=True, biases=_BOTH, heads=8, vocab=262208,
                           ffn=9216, activation="gelu_pytorch_tanh",
                           options={**_GEMMA, "norms": "both", "qk_norm": "head"}),
    "phi3": Decoder(positions=4096, options={"fused": True}),
    "olmo": Decoder(biases=_BOTH, options={"norms": "none"}),
    "olmo2": Decoder(biases=_BOTH, options={"norms": "post", "qk_norm": "hidden"}),
    "olmoe": Decoder(positions=4096, biases=_BOTH, options={"qk_norm": "hidden"}, experts="num_experts", per_token=8),
    "granite": Decoder(biases=_WITH_MLP),
    "smollm3": Decoder(positions=32768, kv_heads=4, tied=True, biases=_WITH_MLP),
}  # fmt: skip
"""``model_type`` -> what its class assumes."""


def decoder(fields: Fields, kind: str, name: str) -> Model:
    """Return the model of a Llama-like config. Raises BadInput."""
    own = DECODERS[kind]
    hidden = fields.whole("hidden_size")
    heads = fields.layers("num_attention_heads", default=own.heads)
    kv_heads = fields.layers("num_key_value_heads", default=_kv_heads(fields, own, heads))
    if heads % kv_heads:
        raise fields.bad(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    if fields.has("head_dim") or own.head_dim is not None:
        head_dim = fields.whole("head_dim", default=own.head_dim)
    else:
        head_dim = fields.heads_of(hidden, heads, "num_attention_heads", "hidden_size")
    layers = fields.layers("num_hidden_layers")
    experts = fields.whole(own.experts, *_OTHER_NAMES, least=0) if own.experts else 0
    return Model(
        name=name,
        family="llama",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=fields.whole("intermediate_size", default=own.ffn),
        vocab=fields.whole("vocab_size", default=own.vocab),
        positions=fields.whole("max_position_embeddings", default=own.positions),
        tied=fields.flag("tie_word_embeddings", own.tied) and not fields.decoder_head(),
        dropout=fields.share("resid_pdrop") if kind == "phi3" else 0.0,
        experts=experts,
        experts_per_token=fields.whole("num_experts_per_tok", default=own.per_token, least=1) if experts else 0,
        options=_options(fields, kind, own, layers, bool(experts)),
    )


_OTHER_NAMES: Final = ("num_experts", "num_local_experts")
"""transformers reads either; its config classes differ in which one they write."""


def _kv_heads(fields: Fields, own: Decoder, heads: int) -> int:
    # A key that is there and null means "as many as heads"; a key that is not there means the class's default.
    return heads if own.kv_heads is None or "num_key_value_heads" in fields.config else own.kv_heads


def _options(
    fields: Fields, kind: str, own: Decoder, layers: int, experts: bool
) -> dict[str, bool | int | float | str]:
    options: dict[str, bool | int | float | str] = {"model_type": kind, **own.options, **fields.decoder_head()}
    options["activation"] = fields.word("hidden_activation", "hidden_act", default=own.activation)
    for option, key in own.biases.items():
        if fields.flag(key, False):
            options[option] = True
    attention = fields.share("attention_dropout")
    if attention:
        options["attention_dropout"] = attention
    if kind == "qwen2_moe":
        options["qkv_bias"] = fields.flag("qkv_bias", True)
    if kind == "phi3":
        options["rotary"] = _rotary(fields)
    if kind == "gemma3_text":
        options["rotary_tables"] = _attention_types(fields, layers)
    if fields.has("sliding_window") and fields.flag("use_sliding_window", not kind.startswith("qwen")):
        options["window"] = fields.whole("sliding_window")
    if experts:
        options |= _experts(fields, own, layers)
    return options


def _rotary(fields: Fields) -> float:
    nested = fields.config.get("rope_parameters")
    inner = Fields(nested, fields.where) if isinstance(nested, dict) else fields
    return inner.share("partial_rotary_factor", default=fields.share("partial_rotary_factor", default=1.0))


def _attention_types(fields: Fields, layers: int) -> int:
    """Return how many sorts of attention Gemma 3 mixes: every sixth block sees the whole sequence."""
    types = fields.config.get("layer_types")
    if isinstance(types, list) and types:
        return len(set(map(str, types)))
    period = fields.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return 2 if 1 < period <= layers else 1


def _experts(fields: Fields, own: Decoder, layers: int) -> dict[str, bool | int | float | str]:
    options: dict[str, bool | int | float | str] = {}
    if own.expert_ffn:
        options["expert_ffn"] = fields.whole(own.expert_ffn)
    if own.shared_ffn:
        options["shared_ffn"] = fields.whole("shared_expert_intermediate_size", default=own.shared_ffn, least=0)
    step = fields.whole("decoder_sparse_step", default=1) if own.expert_ffn else 1
    only = set(fields.wholes("mlp_only_layers")) if own.expert_ffn else set()
    dense = [layer for layer in range(layers) if layer in only or (layer + 1) % step]
    if dense:
        options["dense_layers"] = ",".join(map(str, dense))
    return options
