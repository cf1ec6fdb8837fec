"""A model's tensors in runs: what stands outside of the blocks, and blocks that are alike, described once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.model import BadInput, Model, Tensor

_MOST_LAYERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Section:
    """Tensors that follow each other in ``model.parameters()``."""

    tensors: tuple[Tensor, ...]
    """Of one block, or of what stands outside; ``{}`` in a name is the block's number."""
    first: int | None = None
    """Index of the first block, counted over all blocks; None outside of the blocks."""
    count: int = 1
    """Blocks that are alike."""
    numbered_from: int = 0
    """Index of the block that its own stack calls 0 (a decoder behind an encoder)."""
    buffer_bytes: int = 0
    """Module buffers that one copy registers, bytes."""

    def expand(self) -> Iterable[Tensor]:
        """Yield every tensor with its block's index and number."""
        if self.first is None:
            yield from self.tensors
            return
        for layer in range(self.first, self.first + self.count):
            number = str(layer - self.numbered_from)
            for tensor in self.tensors:
                name = tensor.name.replace("{}", number)
                yield Tensor(name, tensor.shape, layer, tensor.role, tensor.split, tensor.expert, tensor.first)


def linear(
    name: str, out: int, into: int, role: str, split: int | None, *, bias: bool = False, stored: str = "out-in"
) -> tuple[Tensor, ...]:
    """Return weight ``[out, into]`` and bias of a linear layer that tensor parallel splits.

    ``split`` counts as in ``[out, into]``: 0 splits what comes out (the bias with it), 1 what goes in (the bias is
    whole). ``stored`` = ``in-out`` is GPT-2's transposed ``Conv1D``.
    """
    turned = stored == "in-out"
    dim = split if split is None or not turned else 1 - split
    shape = (into, out) if turned else (out, into)
    weight = Tensor(f"{name}.weight", shape, role=role, split=dim)
    if not bias:
        return (weight,)
    return weight, Tensor(f"{name}.bias", (out,), role="bias", split=0 if split == 0 else None)


def norm(name: str, width: int, *, bias: bool = False) -> tuple[Tensor, ...]:
    """Return the scale of a normalisation, and its shift for LayerNorm."""
    weight = Tensor(f"{name}.weight", (width,), role="norm")
    return (weight, Tensor(f"{name}.bias", (width,), role="norm")) if bias else (weight,)


def embedding(name: str, rows: int, width: int, role: str = "embedding", *, split: int | None = 0) -> Tensor:
    """Return a table of ``rows`` vectors, on the first stage; the vocabulary's is split by rows."""
    return Tensor(name, (rows, width), role=role, split=split if role == "embedding" else None, first=True)


def head(model: Model, name: str, classifier: str) -> tuple[Tensor, ...]:
    """Return what a decoder has behind its final norm, by ``options["head"]``.

    ``lm`` (default): logits over the vocabulary, nothing of its own when tied; ``classifier``: one score for each of
    ``labels`` (2), without bias; ``none``: the bare model. Raises BadInput for anything else.
    """
    kind = word(model, "head", "lm")
    if kind == "lm":
        return () if model.tied else linear(name, model.vocab, model.hidden, "head", 0)
    if kind == "classifier":
        return linear(classifier, size(model, "labels", 2), model.hidden, "classifier", None)
    if kind != "none":
        raise BadInput(f"{model.name or model.family}: head must be lm, classifier or none, not {kind!r}")
    return ()


def need(model: Model, *fields: str) -> None:
    """Raise BadInput when a size that the family needs is missing or below 1, and for absurdly many layers."""
    if model.layers > _MOST_LAYERS:
        raise BadInput(f"{model.name or model.family}: layers must be at most {_MOST_LAYERS}, not {model.layers}")
    for name in fields:
        value = getattr(model, name)
        if value < 1:
            raise BadInput(f"{model.name or model.family}: {name} must be at least 1, not {value}")


def completed(model: Model) -> Model:
    """Return the model with what follows from its other sizes: key/value heads as heads, and the heads' dimension.

    Raises BadInput when the heads do not divide what they have to share.
    """
    heads, kv_heads = model.heads, model.kv_heads or model.heads
    if heads > 0 and heads % kv_heads:
        raise BadInput(f"{model.name or model.family}: {kv_heads} key/value heads do not divide {heads} heads")
    head_dim = model.head_dim
    if heads > 0 and not head_dim:
        if model.hidden % heads:
            raise BadInput(f"{model.name or model.family}: {heads} heads do not divide the hidden size {model.hidden}")
        head_dim = model.hidden // heads
    return replace(model, kv_heads=kv_heads, head_dim=head_dim)


def flag(model: Model, name: str, default: bool = False) -> bool:
    """Return a yes-or-no option."""
    return bool(model.options.get(name, default))


def size(model: Model, name: str, default: int = 0) -> int:
    """Return a whole-number option; BadInput for anything else."""
    value = model.options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{model.name or model.family}: {name} must be a whole number, not {value!r}")
    return value


def word(model: Model, name: str, default: str = "") -> str:
    """Return a word option."""
    return str(model.options.get(name, default))


def dense_layers(model: Model) -> frozenset[int]:
    """Return the layers that have an ordinary MLP although the model has experts."""
    text = word(model, "dense_layers")
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadInput(f"{model.name or model.family}: dense_layers must be numbers by commas, not {text!r}") from None


def rotary_bytes(head_dim: int, model: Model, share: float) -> int:
    """Return the bytes of the rotary embedding's buffers: fp32 inverse frequencies, and their original values."""
    rotated = int(head_dim * float(model.options.get("rotary", share)))
    return 2 * 4 * -(-rotated // 2)
