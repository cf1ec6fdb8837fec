"""Decoders with rotary positions, RMSNorm and a gated MLP: Llama and those that came after it.

Names and order are those of transformers 5, which stores the routed experts of a layer as two fused tensors
``[experts, 2 ffn, hidden]`` and ``[experts, hidden, ffn]``, not as a module for each expert.

Options: ``head`` = ``lm`` (default), ``classifier`` (of sequences, with ``labels``) or ``none``; ``qkv_bias``,
``o_bias``, ``mlp_bias`` (False); ``qk_norm`` = ``head`` (one scale per head dimension: Qwen3, Gemma 3) or ``hidden``
(over all heads: OLMo 2); ``norms`` = ``pre``, ``both`` (also behind attention and MLP: Gemma 2 and 3), ``post`` (only
there: OLMo 2) or ``none`` (norms without weights: OLMo); ``fused`` (q, k, v in one layer, gate and up in one: Phi-3).
Mixture of experts: ``expert_ffn`` (0 = ``ffn``), ``shared_ffn`` (0 = no shared expert), ``dense_layers`` (indexes of
layers without experts, by commas), ``router_last`` (the router behind the experts: Qwen3). Buffers: ``rotary`` (1.0,
the share of a head that is rotated), ``rotary_tables`` (1; Gemma 3 has one for local and one for global attention),
``embedding_scale`` (False).
"""

from __future__ import annotations

from itertools import groupby

from ranktop.budget.model import BadInput, Model, Tensor
from ranktop.budget.models.section import (
    Section,
    dense_layers,
    embedding,
    flag,
    head,
    linear,
    need,
    norm,
    rotary_bytes,
    size,
    word,
)

_BLOCK = "model.layers.{}"


def sections(model: Model) -> tuple[Section, ...]:
    """Return the embedding, runs of equal blocks, and final norm with head."""
    need(model, "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "ffn")
    before = (embedding("model.embed_tokens.weight", model.vocab, model.hidden),)
    after: tuple[Tensor, ...] = () if word(model, "norms", "pre") == "none" else norm("model.norm", model.hidden)
    after += head(model, "lm_head", "score")
    dense = dense_layers(model)
    blocks = []
    for is_dense, run in groupby(range(model.layers), key=lambda layer: not model.experts or layer in dense):
        layers = list(run)
        blocks.append(Section(_block(model, is_dense), layers[0], len(layers)))
    tables = size(model, "rotary_tables", 1)
    rotary = tables * rotary_bytes(model.head_dim, model, 1.0) + (4 if flag(model, "embedding_scale") else 0)
    return Section(before), *blocks, Section(after, buffer_bytes=rotary)


def _block(model: Model, dense: bool) -> tuple[Tensor, ...]:
    mlp = _mlp(model, model.ffn) if dense else _experts(model)
    return *_attention(model), *mlp, *_norms(model)


def _attention(model: Model) -> tuple[Tensor, ...]:
    name, h = f"{_BLOCK}.self_attn", model.hidden
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    bias = flag(model, "qkv_bias")
    out = linear(f"{name}.o_proj", h, q, "o", 1, bias=flag(model, "o_bias"))
    if flag(model, "fused"):
        return *out, *linear(f"{name}.qkv_proj", q + 2 * kv, h, "qkv", 0, bias=bias)
    tensors = (
        *linear(f"{name}.q_proj", q, h, "q", 0, bias=bias),
        *linear(f"{name}.k_proj", kv, h, "k", 0, bias=bias),
        *linear(f"{name}.v_proj", kv, h, "v", 0, bias=bias),
        *out,
    )
    kind = word(model, "qk_norm")
    if kind == "head":
        tensors += (*norm(f"{name}.q_norm", model.head_dim), *norm(f"{name}.k_norm", model.head_dim))
    elif kind == "hidden":
        tensors += (*norm(f"{name}.q_norm", q), *norm(f"{name}.k_norm", kv))
    return tensors


def _mlp(model: Model, ffn: int, name: str = "mlp") -> tuple[Tensor, ...]:
    where, h, bias = f"{_BLOCK}.{name}", model.hidden, flag(model, "mlp_bias")
    if flag(model, "fused"):
        up = linear(f"{where}.gate_up_proj", 2 * ffn, h, "gate_up", 0, bias=bias)
    else:
        up = (
            *linear(f"{where}.gate_proj", ffn, h, "gate", 0, bias=bias),
            *linear(f"{where}.up_proj", ffn, h, "up", 0, bias=bias),
        )
    return *up, *linear(f"{where}.down_proj", h, ffn, "down", 1, bias=bias)


def _experts(model: Model) -> tuple[Tensor, ...]:
    h, count = model.hidden, model.experts
    ffn, shared = size(model, "expert_ffn") or model.ffn, size(model, "shared_ffn")
    router = (Tensor(f"{_BLOCK}.mlp.gate.weight", (count, h), role="router"),)
    routed = (
        Tensor(f"{_BLOCK}.mlp.experts.gate_up_proj", (count, 2 * ffn, h), role="gate_up", split=1, expert=True),
        Tensor(f"{_BLOCK}.mlp.experts.down_proj", (count, h, ffn), role="down", split=2, expert=True),
    )
    tensors: tuple[Tensor, ...] = (*routed, *router) if flag(model, "router_last") else (*router, *routed)
    if shared:
        tensors += _mlp(model, shared, "mlp.shared_expert")
        tensors += (Tensor(f"{_BLOCK}.mlp.shared_expert_gate.weight", (1, h), role="shared_gate"),)
    return tensors


def _norms(model: Model) -> tuple[Tensor, ...]:
    names = {
        "pre": ("input_layernorm", "post_attention_layernorm"),
        "post": ("post_attention_layernorm", "post_feedforward_layernorm"),
        "both": (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        "none": (),
    }
    kind = word(model, "norms", "pre")
    if kind not in names:
        raise BadInput(f"{model.name or model.family}: norms must be one of {', '.join(names)}, not {kind!r}")
    return tuple(tensor for name in names[kind] for tensor in norm(f"{_BLOCK}.{name}", model.hidden))
