"""GPT-2 as transformers has it (``GPT2LMHeadModel``, and GPT-3's shape): ``Conv1D`` stores its weights ``[in, out]``.

Options: ``head`` = ``lm`` (default), ``classifier`` (with ``labels``) or ``none``. ``ffn`` 0 means four times
``hidden``.
"""

from __future__ import annotations

from ranktop.budget.model import Model, Tensor
from ranktop.budget.models.section import Section, embedding, head, linear, need, norm


def sections(model: Model) -> tuple[Section, ...]:
    """Return embeddings, the blocks, and final norm (with a head of its own when it is not tied)."""
    need(model, "layers", "hidden", "heads", "vocab", "positions")
    h, ffn, name = model.hidden, model.ffn or 4 * model.hidden, "transformer.h.{}"
    block = (
        *norm(f"{name}.ln_1", h, bias=True),
        *linear(f"{name}.attn.c_attn", 3 * h, h, "qkv", 0, bias=True, stored="in-out"),
        *linear(f"{name}.attn.c_proj", h, h, "o", 1, bias=True, stored="in-out"),
        *norm(f"{name}.ln_2", h, bias=True),
        *linear(f"{name}.mlp.c_fc", ffn, h, "up", 0, bias=True, stored="in-out"),
        *linear(f"{name}.mlp.c_proj", h, ffn, "down", 1, bias=True, stored="in-out"),
    )
    before = (
        embedding("transformer.wte.weight", model.vocab, h),
        embedding("transformer.wpe.weight", model.positions, h, "positions"),
    )
    after: tuple[Tensor, ...] = norm("transformer.ln_f", h, bias=True)
    after += head(model, "lm_head", "score")
    return Section(before), Section(block, 0, model.layers), Section(after)
