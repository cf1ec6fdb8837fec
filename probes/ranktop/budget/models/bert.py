"""BERT: an encoder with post-norm blocks and biases everywhere.

Options: ``head`` = ``mlm`` (default), ``pretraining`` (masked words and next sentence), ``classifier`` (of sequences),
``tokens`` (classifier of tokens), ``answers`` (question answering) or ``none``; ``pooler`` (what the head needs);
``labels`` (2) and ``type_vocab`` (2).
"""

from __future__ import annotations

from typing import Final

from ranktop.budget.model import BadInput, Model, Tensor
from ranktop.budget.models.section import Section, embedding, flag, linear, need, norm, size, word

_HEADS: Final = ("mlm", "pretraining", "classifier", "tokens", "answers", "none")

_POOLED: Final = ("pretraining", "classifier", "none")
"""Heads that read the pooler's output."""


def sections(model: Model) -> tuple[Section, ...]:
    """Return embeddings, the blocks, and what the task puts on top."""
    need(model, "layers", "hidden", "heads", "ffn", "vocab", "positions")
    head = word(model, "head", "mlm")
    if head not in _HEADS:
        raise BadInput(f"{model.name or model.family}: head must be one of {', '.join(_HEADS)}, not {head!r}")
    h = model.hidden
    before = (
        embedding("bert.embeddings.word_embeddings.weight", model.vocab, h),
        embedding("bert.embeddings.position_embeddings.weight", model.positions, h, "positions"),
        embedding("bert.embeddings.token_type_embeddings.weight", size(model, "type_vocab", 2), h, "types"),
        *(_first(tensor) for tensor in norm("bert.embeddings.LayerNorm", h, bias=True)),
    )
    after: tuple[Tensor, ...] = ()
    if flag(model, "pooler", head in _POOLED):
        after += linear("bert.pooler.dense", h, h, "dense", None, bias=True)
    if head in ("mlm", "pretraining"):
        after += _words(model)
    if head == "pretraining":
        after += linear("cls.seq_relationship", 2, h, "classifier", None, bias=True)
    elif head in ("classifier", "tokens", "answers"):
        name = "qa_outputs" if head == "answers" else "classifier"
        after += linear(name, size(model, "labels", 2), h, "classifier", None, bias=True)
    # position_ids and token_type_ids are int64.
    return (
        Section(before, buffer_bytes=2 * 8 * model.positions),
        Section(_block(model), 0, model.layers),
        Section(after),
    )


def _block(model: Model) -> tuple[Tensor, ...]:
    h, name = model.hidden, "bert.encoder.layer.{}"
    return (
        *linear(f"{name}.attention.self.query", h, h, "q", 0, bias=True),
        *linear(f"{name}.attention.self.key", h, h, "k", 0, bias=True),
        *linear(f"{name}.attention.self.value", h, h, "v", 0, bias=True),
        *linear(f"{name}.attention.output.dense", h, h, "o", 1, bias=True),
        *norm(f"{name}.attention.output.LayerNorm", h, bias=True),
        *linear(f"{name}.intermediate.dense", model.ffn, h, "up", 0, bias=True),
        *linear(f"{name}.output.dense", h, model.ffn, "down", 1, bias=True),
        *norm(f"{name}.output.LayerNorm", h, bias=True),
    )


def _words(model: Model) -> tuple[Tensor, ...]:
    h = model.hidden
    tensors = (
        Tensor("cls.predictions.bias", (model.vocab,), role="bias", split=0),
        *linear("cls.predictions.transform.dense", h, h, "dense", None, bias=True),
        *norm("cls.predictions.transform.LayerNorm", h, bias=True),
    )
    if model.tied:
        return tensors
    # Without tying, the decoder has a weight and a bias of its own; the predictions' bias is then idle.
    return *tensors, *linear("cls.predictions.decoder", model.vocab, h, "head", 0, bias=True)


def _first(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.shape, role=tensor.role, first=True)
