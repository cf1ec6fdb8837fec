"""GPT as Megatron Core builds it (``GPTModel``), with its defaults where a script's flags say nothing.

Options: ``norm`` = ``layernorm`` (default) or ``rmsnorm``; ``bias`` (True; ``--disable-bias-linear`` clears it) for the
linear layers, ``qkv_bias`` (as ``bias``); ``swiglu`` (False), ``rope`` (False: learned positions), ``qk_norm`` (False);
``pad_to`` (128): the vocabulary is padded to a multiple of it times the tensor-parallel size; mixture of experts:
``expert_ffn`` (0 = ``ffn``), ``shared_ffn`` (0), ``dense_layers`` as for Llama. The experts of a layer stand as one
tensor per linear layer. Names are those of the local layer spec; TransformerEngine keeps a norm inside of the linear
layer behind it. Source: megatron/core/models/gpt/gpt_layer_specs.py, megatron/core/transformer/attention.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from ranktop.budget.model import BadInput, Model, Tensor
from ranktop.budget.models.section import Section, dense_layers, embedding, flag, linear, need, norm, size, word

_BLOCK = "decoder.layers.{}"


def padded(model: Model, tensor: int) -> Model:
    """Return the model with the vocabulary that ``tensor`` ranks share: padded to ``pad_to`` times their number.

    Source: megatron/training/tokenizer/tokenizer.py ``_vocab_size_with_padding``.
    """
    unit = size(model, "pad_to", 128) * tensor
    return model if unit < 1 else replace(model, vocab=-(-model.vocab // unit) * unit)


def sections(model: Model) -> tuple[Section, ...]:
    """Return embeddings, runs of equal blocks, and final norm with head, for the vocabulary as it is given."""
    need(model, "layers", "hidden", "heads", "vocab")
    h, rope = model.hidden, flag(model, "rope")
    before: tuple[Tensor, ...] = (embedding("embedding.word_embeddings.weight", model.vocab, h),)
    if not rope:
        need(model, "positions")
        before += (embedding("embedding.position_embeddings.weight", model.positions, h, "positions"),)
    after = _norm(model, "decoder.final_layernorm", h)
    if not model.tied:
        after += linear("output_layer", model.vocab, h, "head", 0)
    dense = dense_layers(model)
    blocks = []
    for is_dense, run in groupby(range(model.layers), key=lambda layer: not model.experts or layer in dense):
        layers = list(run)
        blocks.append(Section(_block(model, is_dense), layers[0], len(layers)))
    return Section(before), *blocks, Section(after)


def _block(model: Model, dense: bool) -> tuple[Tensor, ...]:
    name, h, bias = f"{_BLOCK}.self_attention", model.hidden, flag(model, "bias", True)
    head_dim = model.head_dim or h // model.heads
    q, kv = model.heads * head_dim, (model.kv_heads or model.heads) * head_dim
    norms: tuple[Tensor, ...] = ()
    if flag(model, "qk_norm"):
        norms = (*_norm(model, f"{name}.q_layernorm", head_dim), *_norm(model, f"{name}.k_layernorm", head_dim))
    return (
        *_norm(model, f"{_BLOCK}.input_layernorm", h),
        *linear(f"{name}.linear_proj", h, q, "o", 1, bias=bias),
        *linear(f"{name}.linear_qkv", q + 2 * kv, h, "qkv", 0, bias=flag(model, "qkv_bias", bias)),
        *norms,
        *_norm(model, f"{_BLOCK}.pre_mlp_layernorm", h),
        *(_mlp(model, f"{_BLOCK}.mlp", model.ffn or 4 * h) if dense else _experts(model)),
    )


def _mlp(model: Model, name: str, ffn: int) -> tuple[Tensor, ...]:
    bias, gated = flag(model, "bias", True), flag(model, "swiglu")
    up = linear(
        f"{name}.linear_fc1", 2 * ffn if gated else ffn, model.hidden, "gate_up" if gated else "up", 0, bias=bias
    )
    return *up, *linear(f"{name}.linear_fc2", model.hidden, ffn, "down", 1, bias=bias)


def _experts(model: Model) -> tuple[Tensor, ...]:
    name, h, count = f"{_BLOCK}.mlp", model.hidden, model.experts
    ffn, shared = size(model, "expert_ffn") or model.ffn or 4 * h, size(model, "shared_ffn")
    up = 2 * ffn if flag(model, "swiglu") else ffn
    bias = flag(model, "bias", True)
    tensors: tuple[Tensor, ...] = (
        Tensor(f"{name}.router.weight", (count, h), role="router"),
        Tensor(f"{name}.experts.linear_fc1.weight", (count, up, h), role="gate_up", split=1, expert=True),
        Tensor(f"{name}.experts.linear_fc2.weight", (count, h, ffn), role="down", split=2, expert=True),
    )
    if bias:
        tensors += (
            Tensor(f"{name}.experts.linear_fc1.bias", (count, up), role="bias", split=1, expert=True),
            Tensor(f"{name}.experts.linear_fc2.bias", (count, h), role="bias", expert=True),
        )
    return (*tensors, *_mlp(model, f"{name}.shared_experts", shared)) if shared else tensors


def _norm(model: Model, name: str, width: int) -> tuple[Tensor, ...]:
    kind = word(model, "norm", "layernorm")
    if kind not in ("layernorm", "rmsnorm"):
        raise BadInput(f"{model.name or model.family}: norm must be layernorm or rmsnorm, not {kind!r}")
    return norm(name, width, bias=kind == "layernorm")
