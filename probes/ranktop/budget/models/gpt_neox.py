"""GPT-NeoX and Pythia: rotary positions, LayerNorm, fused qkv, attention and MLP side by side.

Options: ``bias`` (True) for the linear layers of attention (the MLP's always have theirs), ``rotary`` (0.25), the share
of a head's dimensions that is rotated; ``head`` = ``lm`` (default), ``classifier`` (with ``labels``) or ``none``.
"""

from __future__ import annotations

from ranktop.budget.model import Model, Tensor
from ranktop.budget.models.section import Section, embedding, flag, head, linear, need, norm, rotary_bytes


def sections(model: Model) -> tuple[Section, ...]:
    """Return the embedding, the blocks, and final norm with head."""
    need(model, "layers", "hidden", "heads", "ffn", "vocab")
    h, ffn, name, bias = model.hidden, model.ffn, "gpt_neox.layers.{}", flag(model, "bias", True)
    block = (
        *norm(f"{name}.input_layernorm", h, bias=True),
        *norm(f"{name}.post_attention_layernorm", h, bias=True),
        *linear(f"{name}.attention.query_key_value", 3 * h, h, "qkv", 0, bias=bias),
        *linear(f"{name}.attention.dense", h, h, "o", 1, bias=bias),
        *linear(f"{name}.mlp.dense_h_to_4h", ffn, h, "up", 0, bias=True),
        *linear(f"{name}.mlp.dense_4h_to_h", h, ffn, "down", 1, bias=True),
    )
    after: tuple[Tensor, ...] = norm("gpt_neox.final_layer_norm", h, bias=True)
    after += head(model, "lm_head", "score")
    return (
        Section((embedding("gpt_neox.embed_in.weight", model.vocab, h),)),
        Section(block, 0, model.layers),
        Section(after, buffer_bytes=rotary_bytes(h // model.heads, model, 0.25)),
    )
