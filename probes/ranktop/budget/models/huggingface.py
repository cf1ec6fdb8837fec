"""Hugging Face's ``config.json``, as users have it, to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as shown
from typing import Any, Final

from ranktop.budget.model import BadInput, Model
from ranktop.budget.models.decoders import DECODERS, decoder
from ranktop.budget.models.fields import Fields

_CLASSES: Final = {
    "Llama": "llama", "Mistral": "mistral", "Ministral": "ministral", "Mixtral": "mixtral", "Qwen2": "qwen2",
    "Qwen2Moe": "qwen2_moe", "Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe", "Gemma": "gemma", "Gemma2": "gemma2",
    "Gemma3": "gemma3_text", "Phi3": "phi3", "Olmo": "olmo", "Olmo2": "olmo2", "Olmoe": "olmoe", "Granite": "granite",
    "SmolLM3": "smollm3", "GPT2": "gpt2", "GPTNeoX": "gpt_neox", "Bert": "bert", "T5": "t5", "MT5": "mt5", "ViT": "vit",
}  # fmt: skip
"""First part of a class's name in ``architectures`` -> ``model_type``, for configs that leave the latter out."""

_TEXT_OF: Final = {"gemma3": "gemma3_text", "mistral3": "mistral", "llava": "llama", "llava_next": "llama"}
"""Models of pictures and text -> type of their ``text_config`` when that does not say it."""

_BERT_HEADS: Final = {
    "MaskedLM": "mlm", "LMHeadModel": "mlm", "PreTraining": "pretraining", "SequenceClassification": "classifier",
    "MultipleChoice": "classifier", "TokenClassification": "tokens", "QuestionAnswering": "answers", "Model": "none",
}  # fmt: skip


def read(text: str, where: str) -> Model:
    """Return the model of a config's JSON text; BadInput names ``where``, and for bad JSON the line and column."""
    import json

    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise BadInput(f"{where}: nested too deeply for a config") from None
    if not isinstance(config, Mapping):
        raise BadInput(f"{where}: a config must be an object with model_type, not a {type(config).__name__}")
    return model_of(config, where)


def model_of(config: Mapping[str, Any], name: str = "") -> Model:
    """Return the model that a config describes.

    Keys that published configs leave out have the defaults of transformers 5's config classes; hidden size, layers,
    heads, feed-forward width and vocabulary must be there. ``architectures`` says what is on top of a decoder or BERT.
    A model of pictures and text is taken by its text part (``options["text_only"]``). Raises BadInput.
    """
    kind = _kind(config, name or "config")
    fields = Fields(config, name or kind)
    text = config.get("text_config")
    if kind not in _READERS and isinstance(text, Mapping):
        inner = text.get("model_type") or _TEXT_OF.get(kind)
        own = {key: value for key, value in text.items() if key != "text_config"}
        model = model_of({**own, "model_type": inner}, name)
        model.options["text_only"] = True
        return model
    reader = _READERS.get(kind)
    if reader is None:
        raise fields.bad(f"unknown model_type {shown(kind)}; known are {', '.join(sorted(_READERS))}")
    return reader(fields, kind, name)


def known() -> tuple[str, ...]:
    """Return every ``model_type`` that can be read."""
    return tuple(sorted(_READERS))


def _kind(config: Mapping[str, Any], where: str) -> str:
    kind = config.get("model_type")
    if kind is None:
        for one in _architectures(config):
            prefix = one.split("For")[0].removesuffix("LMHeadModel").removesuffix("Model")
            kind = kind or _CLASSES.get(prefix)
    if kind is None:
        raise BadInput(f"{where}: model_type is missing; known are {', '.join(sorted(_READERS))}")
    if not isinstance(kind, str):
        raise BadInput(f"{where}: model_type must be a text, not {shown(kind)}")
    return kind


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _gpt2(fields: Fields, kind: str, name: str) -> Model:
    hidden, heads = fields.whole("n_embd", "hidden_size"), fields.layers("n_head", "num_attention_heads")
    dropout = fields.share("resid_pdrop", default=0.1)
    return Model(
        name=name,
        family="gpt2",
        layers=fields.layers("n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.heads_of(hidden, heads, "n_head", "n_embd"),
        ffn=fields.whole("n_inner", default=4 * hidden),
        vocab=fields.whole("vocab_size"),
        positions=fields.whole("n_positions", "max_position_embeddings", "n_ctx", default=1024),
        tied=fields.flag("tie_word_embeddings", True) and not fields.decoder_head(),
        dropout=dropout,
        options={
            "model_type": kind,
            **fields.decoder_head(),
            "activation": fields.word("activation_function", default="gelu_new"),
            **_dropouts(dropout, fields.share("attn_pdrop", default=0.1), fields.share("embd_pdrop", default=0.1)),
        },
    )


def _gpt_neox(fields: Fields, kind: str, name: str) -> Model:
    hidden, heads = fields.whole("hidden_size"), fields.layers("num_attention_heads")
    dropout = fields.share("hidden_dropout")
    rope = fields.config.get("rope_parameters")
    inner = Fields(rope, fields.where) if isinstance(rope, Mapping) else fields
    rotary = inner.share("partial_rotary_factor", default=fields.share("rotary_pct", default=0.25))
    return Model(
        name=name,
        family="gpt-neox",
        layers=fields.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.heads_of(hidden, heads, "num_attention_heads", "hidden_size"),
        ffn=fields.whole("intermediate_size"),
        vocab=fields.whole("vocab_size"),
        positions=fields.whole("max_position_embeddings", default=2048),
        tied=fields.flag("tie_word_embeddings", False) and not fields.decoder_head(),
        dropout=dropout,
        options={
            "model_type": kind,
            **fields.decoder_head(),
            "activation": fields.word("hidden_act", default="gelu"),
            "bias": fields.flag("attention_bias", True),
            "parallel": fields.flag("use_parallel_residual", True),
            "rotary": rotary,
            **_dropouts(dropout, fields.share("attention_dropout"), dropout),
        },
    )


def _bert(fields: Fields, kind: str, name: str) -> Model:
    hidden, heads = fields.whole("hidden_size"), fields.layers("num_attention_heads")
    dropout = fields.share("hidden_dropout_prob", default=0.1)
    head = "mlm"
    for one in _architectures(fields.config):
        head = next((found for end, found in _BERT_HEADS.items() if one.endswith(end)), head)
    options: dict[str, bool | int | float | str] = {
        "model_type": kind,
        "activation": fields.word("hidden_act", default="gelu"),
        "head": head,
        "type_vocab": fields.whole("type_vocab_size", default=2),
        **_dropouts(dropout, fields.share("attention_probs_dropout_prob", default=0.1), dropout),
    }
    if head in ("classifier", "tokens", "answers"):
        options["labels"] = fields.labels()
    return Model(
        name=name,
        family="bert",
        layers=fields.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.heads_of(hidden, heads, "num_attention_heads", "hidden_size"),
        ffn=fields.whole("intermediate_size"),
        vocab=fields.whole("vocab_size"),
        positions=fields.whole("max_position_embeddings", default=512),
        tied=fields.flag("tie_word_embeddings", True),
        dropout=dropout,
        options=options,
    )


def _t5(fields: Fields, kind: str, name: str) -> Model:
    layers = fields.layers("num_layers", "num_hidden_layers")
    heads = fields.layers("num_heads", "num_attention_heads")
    act = fields.word("feed_forward_proj", default="gated-gelu" if kind == "mt5" else "relu")
    return Model(
        name=name,
        family="t5",
        layers=layers,
        hidden=fields.whole("d_model", "hidden_size"),
        heads=heads,
        kv_heads=heads,
        head_dim=fields.whole("d_kv", "head_dim", default=64),
        ffn=fields.whole("d_ff"),
        vocab=fields.whole("vocab_size"),
        positions=fields.whole("n_positions", default=512),
        tied=True,
        dropout=fields.share("dropout_rate", default=0.1),
        options={
            "model_type": kind,
            "activation": act.removeprefix("gated-"),
            "gated": act.startswith("gated-"),
            "decoder_layers": fields.layers("num_decoder_layers", default=layers),
            "buckets": fields.whole("relative_attention_num_buckets", default=32),
        },
    )


def _vit(fields: Fields, kind: str, name: str) -> Model:
    hidden, heads = fields.whole("hidden_size"), fields.layers("num_attention_heads")
    dropout = fields.share("hidden_dropout_prob")
    (high, wide), (tall, broad) = fields.pair("image_size", 224), fields.pair("patch_size", 16)
    if tall > high or broad > wide:
        raise fields.bad(f"patch_size {tall}x{broad} is larger than image_size {high}x{wide}")
    bare = _architectures(fields.config)[:1] == ["ViTModel"]
    return Model(
        name=name,
        family="vit",
        layers=fields.layers("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.heads_of(hidden, heads, "num_attention_heads", "hidden_size"),
        ffn=fields.whole("intermediate_size"),
        positions=(high // tall) * (wide // broad) + 1,
        dropout=dropout,
        options={
            "model_type": kind,
            "activation": fields.word("hidden_act", default="gelu"),
            "image_height": high,
            "image_width": wide,
            "patch_height": tall,
            "patch_width": broad,
            "channels": fields.whole("num_channels", default=3),
            "labels": 0 if bare else fields.labels(),
            "pooler": bare,
            "qkv_bias": fields.flag("qkv_bias", True),
            **_dropouts(dropout, fields.share("attention_probs_dropout_prob"), dropout),
        },
    )


def _dropouts(hidden: float, attention: float, embedding: float) -> dict[str, float]:
    """Return the probabilities that differ from the one on hidden states."""
    found = {"attention_dropout": attention, "embedding_dropout": embedding}
    return {key: value for key, value in found.items() if value != hidden}


_READERS: Final[dict[str, Callable[[Fields, str, str], Model]]] = {
    **dict.fromkeys(DECODERS, decoder),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "bert": _bert,
    "t5": _t5,
    "mt5": _t5,
    "vit": _vit,
}
