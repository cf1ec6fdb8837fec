"""GPT as people write it by hand: learned positions, LayerNorm, fused qkv, GELU.

Options: ``bias`` (True) puts biases on the linear layers and ``head_bias`` (False) on the output head.
LayerNorms have theirs unless ``norm_bias`` is False.
"""

from __future__ import annotations

from ranktop.budget.model import Model, Tensor
from ranktop.budget.models.section import Section, embedding, flag, linear, need, norm


def sections(model: Model) -> tuple[Section, ...]:
    """Return embeddings, the blocks, and final norm with head, under the names of the demo's GPT."""
    need(model, "layers", "hidden", "heads", "vocab", "positions")
    h, ffn = model.hidden, model.ffn or 4 * model.hidden
    bias, norm_bias = flag(model, "bias", True), flag(model, "norm_bias", True)
    block = (
        *norm("blocks.{}.norm1", h, bias=norm_bias),
        *linear("blocks.{}.attention.qkv", 3 * h, h, "qkv", 0, bias=bias),
        *linear("blocks.{}.attention.out", h, h, "o", 1, bias=bias),
        *norm("blocks.{}.norm2", h, bias=norm_bias),
        *linear("blocks.{}.up", ffn, h, "up", 0, bias=bias),
        *linear("blocks.{}.down", h, ffn, "down", 1, bias=bias),
    )
    before = (
        embedding("tokens.weight", model.vocab, h),
        embedding("positions.weight", model.positions, h, "positions"),
    )
    after: tuple[Tensor, ...] = norm("norm", h, bias=norm_bias)
    if not model.tied:
        after += linear("head", model.vocab, h, "head", 0, bias=flag(model, "head_bias"))
    return Section(before), Section(block, 0, model.layers), Section(after)
