"""Vision transformer: patches and a class token in front of pre-norm blocks, a classifier behind them.

``positions`` follow from the picture. Options: ``image`` (224) and ``patch`` (16), or ``image_height``,
``image_width``, ``patch_height`` and ``patch_width``; ``channels`` (3), ``labels`` (2; 0 = no classifier), ``qkv_bias``
(True), ``pooler`` (False; the bare ``ViTModel`` has one and no classifier).
"""

from __future__ import annotations

from ranktop.budget.model import BadInput, Model, Tensor
from ranktop.budget.models.section import Section, flag, linear, need, norm, size


def sections(model: Model) -> tuple[Section, ...]:
    """Return the embedding of patches, the blocks, and final norm with pooler or classifier."""
    need(model, "layers", "hidden", "heads", "ffn")
    h, labels = model.hidden, size(model, "labels", 2)
    patch = tuple(size(model, f"patch_{side}") or size(model, "patch", 16) for side in ("height", "width"))
    name = "vit.embeddings"
    before = (
        Tensor(f"{name}.cls_token", (1, 1, h), role="class", first=True),
        Tensor(f"{name}.position_embeddings", (1, patches(model) + 1, h), role="positions", first=True),
        Tensor(
            f"{name}.patch_embeddings.projection.weight",
            (h, size(model, "channels", 3), *patch),
            role="patches",
            first=True,
        ),
        Tensor(f"{name}.patch_embeddings.projection.bias", (h,), role="bias", first=True),
    )
    after: tuple[Tensor, ...] = norm("vit.layernorm", h, bias=True)
    if flag(model, "pooler"):
        after += linear("vit.pooler.dense", h, h, "dense", None, bias=True)
    if labels:
        after += linear("classifier", labels, h, "classifier", None, bias=True)
    return Section(before), Section(_block(model), 0, model.layers), Section(after)


def patches(model: Model) -> int:
    """Return the number of patches of one picture: the tokens beside the class token."""
    count = 1
    for side in ("height", "width"):
        image = size(model, f"image_{side}") or size(model, "image", 224)
        patch = size(model, f"patch_{side}") or size(model, "patch", 16)
        if patch < 1 or image < patch:
            raise BadInput(f"{model.name or model.family}: patches of {patch} do not fit into a picture of {image}")
        count *= image // patch
    return count


def _block(model: Model) -> tuple[Tensor, ...]:
    h, bias, name = model.hidden, flag(model, "qkv_bias", True), "vit.layers.{}"
    return (
        *linear(f"{name}.attention.q_proj", h, h, "q", 0, bias=bias),
        *linear(f"{name}.attention.k_proj", h, h, "k", 0, bias=bias),
        *linear(f"{name}.attention.v_proj", h, h, "v", 0, bias=bias),
        *linear(f"{name}.attention.o_proj", h, h, "o", 1, bias=True),
        *norm(f"{name}.layernorm_before", h, bias=True),
        *norm(f"{name}.layernorm_after", h, bias=True),
        *linear(f"{name}.mlp.fc1", model.ffn, h, "up", 0, bias=True),
        *linear(f"{name}.mlp.fc2", h, model.ffn, "down", 1, bias=True),
    )
