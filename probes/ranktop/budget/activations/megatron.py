"""Activations of Megatron Core with TransformerEngine: what its layers save, term by term.

Korthikanti et al. (arXiv:2205.05198): sbh (10 + 24/t) bytes per layer, 34/t with sequence parallel, in 16 bit with
dropout; 5 a s^2 b / t more where attention is not fused. What that leaves out and the allocator shows (published peaks
of 47 dense jobs on A100 and H100 within 1.2 %, most within 0.1 %): statistics of norms and softmax, the attention
mask of the data loader, final norm and head, 6 bytes per logit around the loss (10 when "fused").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget import context, experts, pipeline
from ranktop.budget.activations.saved import Activations
from ranktop.budget.activations.shape import Shape, local
from ranktop.budget.model import Model, NoRule
from ranktop.budget.models.megatron import padded
from ranktop.budget.models.section import dense_layers, flag, size, word
from ranktop.budget.models.stages import stage_layers
from ranktop.budget.plan import Plan
from ranktop.budget.terms import Part

FAMILIES: Final = ("megatron-gpt", "gpt", "gpt2", "gpt-neox", "llama")
"""Families whose blocks Megatron Core has layers for."""

_LOSS: Final = {"megatron-fused": (4, 6), "chunked": (0, 0), "none": (0, 0)}
"""Loss -> bytes per logit that are saved, and that forward needs on top; by default 4 (softmax in fp32, in place of the
logits' fp32 copy) and 2 (the 16-bit logits). megatron/core/tensor_parallel/cross_entropy.py, fusions/."""

_PER_TOKEN: Final = 32
"""Bytes per token of the loss beside the logits: maximum, sum, target's logit, mask and index, loss in fp32."""

_BATCH_PER_TOKEN: Final = 28
"""Tokens, labels and positions in int64, loss mask in fp32."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The layer, as far as bytes go."""

    shape: Shape
    length: int
    """Whole sequence: attention's keys."""
    shared: int
    """Ranks that share what is neither split by heads nor by columns: t with sequence parallel, else 1."""
    gated: bool
    rms: bool
    qk_norm: bool
    attention: str
    softmax: int
    """Bytes per score of the softmax that is saved; fp32 without the fused kernel."""

    @property
    def statistics(self) -> int:
        """Bytes per row that a norm saves: mean and 1/deviation in fp32, RMSNorm the latter only."""
        return 4 if self.rms else 8

    @property
    def scores(self) -> int:
        """Attention scores of one layer on this rank."""
        return self.shape.batch * self.shape.heads * self.shape.sequence * self.length


def activations(model: Model, plan: Plan) -> Activations:
    """Return the activations of one micro-batch on the rank that ``plan.layout`` names; NoRule without a rule.

    ``plan.attention``: ``sdpa`` is TransformerEngine's fused kernel, ``flash`` the FlashAttention library, ``eager``
    unfused. Options of the model: ``fused_softmax`` (True), ``local_layers`` (False: Megatron's own attention instead
    of TransformerEngine's), ``dispatcher`` (``alltoall`` or ``allgather``: how tokens reach their experts).
    """
    if not model.family:
        raise NoRule("no closed form for the activations of a bare number of parameters")
    if model.family not in FAMILIES:
        raise NoRule(f"Megatron Core has no layers for the family {model.family!r}")
    block = _block(model, plan)
    chunks = stage_layers(model.layers, plan)
    layers = [layer for chunk in chunks for layer in chunk]
    first, last = pipeline.ends(plan)
    dense = set(dense_layers(model)) if model.experts else set(layers)
    kept, whole = _rank(model, plan, block, layers, dense)
    recomputed = _recomputed(plan, kept, whole, len(layers))
    virtual = len(chunks)
    flying = pipeline.alive(plan)
    shape = block.shape
    stream = shape.tokens * shape.hidden * shape.width // block.shared
    masks = shape.tokens * shape.hidden // block.shared if first and model.dropout else 0
    inputs = _BATCH_PER_TOKEN * shape.tokens if first or last else 0
    head, logits, loss_forward, loss_backward = _head(model, plan, block, stream) if last else (0, 0, 0, 0)
    loader = shape.batch * shape.sequence * block.length if first or last else 0
    kept = {name: value // virtual for name, value in kept.items()}
    total, outside, inputs = sum(kept.values()), masks // virtual, inputs // virtual
    parts = [Part(name, flying * value) for name, value in kept.items()]
    parts += [
        Part("dropout of the embedding", flying * outside),
        Part("tokens, labels, positions", flying * inputs),
        Part("final norm and head's input", head),
        Part("logits and loss", logits),
    ]
    return Activations(
        layers=-(-len(layers) // virtual),
        layer=sum(whole.values()) // max(1, len(layers)),
        blocks=total,
        recomputed=recomputed,
        outside=outside,
        logits=head + logits,
        inputs=inputs,
        loss_forward=loss_forward + loader,
        loss_backward=loss_backward,
        block_backward=_backward(block, plan),
        boundary=stream,
        in_flight=flying,
        within=0.2 if model.experts else 0.01,
        rule="Megatron Core, TransformerEngine: Korthikanti et al. (arXiv:2205.05198), corrected",
        parts=tuple(part for part in parts if part.bytes),
        workspace=_workspace(model, plan, block),
    )


def _workspace(model: Model, plan: Plan, block: _Block) -> int:
    """Return the bytes of the buffers that layers share and never free (``GlobalMemoryBuffer``)."""
    shape = block.shape
    scores = block.scores * shape.width if flag(model, "local_layers") and plan.attention == "eager" else 0
    gathered = 0
    if model.experts and word(model, "dispatcher", "alltoall") == "allgather":
        gathered = shape.tokens * shape.hidden * shape.width * plan.layout.expert
    return scores + gathered


def gated(model: Model) -> bool:
    """Return whether the feed-forward network has a gate (SwiGLU)."""
    return flag(model, "swiglu") if model.family == "megatron-gpt" else model.family == "llama"


def rms_norm(model: Model) -> bool:
    """Return whether norms have neither mean nor bias."""
    if model.family == "megatron-gpt":
        return word(model, "norm", "layernorm") == "rmsnorm"
    return model.family == "llama"


def _block(model: Model, plan: Plan) -> _Block:
    shape = local(model, plan)
    return _Block(
        shape=shape,
        length=plan.batch.sequence_length or 0,
        shared=shape.tensor if plan.sequence_parallel and shape.tensor > 1 else 1,
        gated=gated(model),
        rms=rms_norm(model),
        qk_norm=bool(model.options.get("qk_norm")),
        attention=plan.attention,
        softmax=shape.width if flag(model, "fused_softmax", True) else 4,
    )


def _rank(
    model: Model, plan: Plan, block: _Block, layers: list[int], dense: set[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return what all layers of the rank keep for one micro-batch, and what they save before checkpointing drops it."""
    counts = (sum(layer in dense for layer in layers), sum(layer not in dense for layer in layers))
    whole: dict[str, int] = {}
    for count, sparse in zip(counts, (False, True), strict=True):
        for name, value in _layer(model, plan, block, sparse).items() if count else ():
            whole[name] = whole.get(name, 0) + count * value
    mode = plan.checkpointing or "none"
    if mode == "full":
        every = max(1, plan.checkpoint_every)
        stream = block.shape.tokens * block.shape.hidden * block.shape.width // block.shared
        return {"inputs of the checkpointed layers": -(-len(layers) // every) * stream}, whole
    if mode == "selective":
        return {name: value for name, value in whole.items() if name != "core attention"}, whole
    return whole, whole


def _layer(model: Model, plan: Plan, block: _Block, sparse: bool) -> dict[str, int]:
    shape, n, w = block.shape, block.shape.tokens, block.shape.width
    columns = shape.query + 2 * shape.key
    found = {
        "norms and residual stream": n * (4 * shape.hidden * w + 2 * block.statistics) // block.shared,
        "attention": n * w * (columns + shape.query),
        "core attention": _core(block, bool(model.dropout)),
    }
    if block.qk_norm:
        # The norms' inputs keep the fused projection alive, and attention gets queries, keys and values of their own.
        found["attention"] += n * (w * columns + block.statistics * (shape.heads + shape.kv_heads))
    if model.dropout:
        found["dropout masks"] = 2 * n * shape.hidden // block.shared
    if sparse:
        for part in experts.routed_bytes(_routing(model, plan, block)):
            found[part.name] = part.bytes
        shared = -(-size(model, "shared_ffn") // shape.tensor)
        if shared:
            found["shared expert"] = n * w * shared * (3 if block.gated else 2)
        return found
    found["feed-forward"] = n * w * shape.ffn * (3 if block.gated else 2)
    return found


def _core(block: _Block, dropout: bool) -> int:
    """Softmax, dropout's mask and its result; fused: logsumexp in fp32.

    FlashAttention wants batch before sequence: its output is kept beside the copy that the next layer reads, unless
    the batch is of one and the copy a view.
    """
    shape = block.shape
    if block.attention == "eager":
        return block.scores * (block.softmax + (1 + shape.width if dropout else 0))
    copied = block.attention == "flash" and shape.batch > 1
    own = shape.tokens * shape.query * shape.width if copied else 0
    return 4 * shape.heads * shape.tokens + own


def _routing(model: Model, plan: Plan, block: _Block) -> experts.Routing:
    shape = block.shape
    ffn = size(model, "expert_ffn") or model.ffn or 4 * model.hidden
    return experts.Routing(
        tokens=shape.tokens,
        hidden=shape.hidden,
        ffn=-(-ffn // shape.tensor),
        experts=model.experts,
        per_token=model.experts_per_token or 1,
        gated=block.gated,
        fused=block.gated,
        width=shape.width,
    )


def _head(model: Model, plan: Plan, block: _Block, stream: int) -> tuple[int, int, int, int]:
    """Return (final norm and head's input, logits and loss, on top in forward, on top in backward).

    GPipe and breadth-first schedules have run every micro-batch's loss before the first backward.
    """
    shape = block.shape
    scores = shape.tokens * (padded(model, shape.tensor).vocab // shape.tensor)
    saved, more = _LOSS.get(plan.loss, (4, shape.width))
    at_once = 1
    if plan.pipeline is not None and plan.pipeline.schedule in ("gpipe", "looped-bfs") and plan.layout.pipeline > 1:
        at_once = plan.pipeline.micro_batches
    head = 2 * stream + shape.tokens * block.statistics // block.shared
    backward = shape.width if saved else 0
    return at_once * head, at_once * (saved * scores + _PER_TOKEN * shape.tokens), more * scores, backward * scores


def _recomputed(plan: Plan, kept: dict[str, int], whole: dict[str, int], layers: int) -> int:
    if plan.checkpointing not in ("full", "selective") or not layers:
        return 0
    every = max(1, plan.checkpoint_every) if plan.checkpointing == "full" else 1
    dropped = sum(value for name, value in whole.items() if name not in kept)
    return dropped * min(every, layers) // layers


def _backward(block: _Block, plan: Plan) -> int:
    """Return gradients alive while one layer runs backward: of the widest activation and the stream, or of the scores.

    With context parallel the ring's chunks are alive beside attention's.
    """
    shape = block.shape
    n, w = shape.tokens, shape.width
    mlp = n * w * (2 * shape.hidden + shape.ffn * (3 if block.gated else 2))
    core = 2 * block.scores * w if block.attention == "eager" else 0
    attention = n * w * (2 * shape.query + 2 * shape.key + shape.hidden) + core
    c = plan.layout.context
    attention += context.ring_bytes(n, shape.key, w, c) + context.accumulation_bytes(n, shape.query, shape.heads, c)
    return max(mlp, attention)
