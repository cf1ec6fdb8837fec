"""T5: an encoder and a decoder, RMSNorm, relative position bias in the first block of each, no other biases.

``layers`` are the encoder's blocks. Options: ``decoder_layers`` (as many as the encoder's), ``gated`` (False; T5 v1.1
and Flan), ``buckets`` (32). transformers 5 ties the output head always, whatever a v1.1 config says; before it,
``tie_word_embeddings`` = false gave v1.1 a head of its own.
"""

from __future__ import annotations

from ranktop.budget.model import BadInput, Model, Tensor
from ranktop.budget.models.section import Section, embedding, flag, linear, need, norm, size


def sections(model: Model) -> tuple[Section, ...]:
    """Return the shared embedding, both stacks with their final norms, and a head when it is not tied."""
    need(model, "layers", "hidden", "heads", "head_dim", "ffn", "vocab")
    decoder = decoder_layers(model)
    found = [Section((embedding("shared.weight", model.vocab, model.hidden),))]
    found += _stack(model, "encoder", 0, model.layers)
    found += _stack(model, "decoder", model.layers, decoder)
    if not model.tied:
        found.append(Section(linear("lm_head", model.vocab, model.hidden, "head", 0)))
    return tuple(found)


def decoder_layers(model: Model) -> int:
    """Return the number of the decoder's blocks."""
    found = size(model, "decoder_layers", model.layers)
    if found < 1:
        raise BadInput(f"{model.name or model.family}: decoder_layers must be at least 1, not {found}")
    return found


def _stack(model: Model, stack: str, first: int, layers: int) -> list[Section]:
    found = [Section(_block(model, stack, True), first, 1, first)]
    if layers > 1:
        found.append(Section(_block(model, stack, False), first + 1, layers - 1, first))
    return [*found, Section(norm(f"{stack}.final_layer_norm", model.hidden))]


def _block(model: Model, stack: str, positions: bool) -> tuple[Tensor, ...]:
    name, h, ffn = f"{stack}.block.{{}}.layer", model.hidden, model.ffn
    tensors = _attention(model, f"{name}.0.SelfAttention")
    if positions:
        table = f"{name}.0.SelfAttention.relative_attention_bias.weight"
        tensors += (Tensor(table, (size(model, "buckets", 32), model.heads), role="positions", split=1),)
    tensors += norm(f"{name}.0.layer_norm", h)
    if stack == "decoder":
        tensors += (*_attention(model, f"{name}.1.EncDecAttention"), *norm(f"{name}.1.layer_norm", h))
    last = f"{name}.{2 if stack == 'decoder' else 1}"
    if flag(model, "gated"):
        tensors += linear(f"{last}.DenseReluDense.wi_0", ffn, h, "gate", 0)
        tensors += linear(f"{last}.DenseReluDense.wi_1", ffn, h, "up", 0)
    else:
        tensors += linear(f"{last}.DenseReluDense.wi", ffn, h, "up", 0)
    return *tensors, *linear(f"{last}.DenseReluDense.wo", h, ffn, "down", 1), *norm(f"{last}.layer_norm", h)


def _attention(model: Model, name: str) -> tuple[Tensor, ...]:
    h, inner = model.hidden, model.heads * model.head_dim
    return (
        *linear(f"{name}.q", inner, h, "q", 0),
        *linear(f"{name}.k", inner, h, "k", 0),
        *linear(f"{name}.v", inner, h, "v", 0),
        *linear(f"{name}.o", h, inner, "o", 1),
    )
