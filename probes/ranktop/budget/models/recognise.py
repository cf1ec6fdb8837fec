"""Which model a running job trains, told from the shapes of its parameters alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Final

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import BadInput, Model
from ranktop.budget.models.adapters import adapters
from ranktop.budget.models.tensors import sections, tensors
from ranktop.budget.plan import Lora, Plan

Shape = tuple[int, ...]

_NARROW: Final = 2048
"""Up to this width heads are of 64 by convention, of 128 above it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The shapes of a model's parameters."""

    order: tuple[Shape, ...]
    counts: Counter[Shape]

    def widths(self) -> list[int]:
        """Return what may be the hidden size, the likeliest first: norms are the most common vectors."""
        return [shape[0] for shape, _ in Counter(s for s in self.order if len(s) == 1).most_common(4)]


def recognise(inventory: Inventory, plan: Plan, heads: int | None = None) -> Model | None:
    """Return the model whose parameters have exactly these shapes, None when no family's has.

    Known are hand-written GPTs, GPT-2, GPT-NeoX and the Llama-like, dense or with experts in every block. ``heads``
    are the attention heads when somebody knows them; else they follow from the q/k norms where there are such and are
    guessed elsewhere (64 wide up to 2048, then 128; less where tensor parallel ranks share them evenly only then), with
    ``options["heads_guessed"]``. A pipeline stage and a part of
    the experts are never recognised, a model with adapters when ``plan.lora`` names just those.
    """
    layout = plan.layout
    if not len(inventory) or layout.pipeline > 1 or layout.expert > 1:
        return None
    if plan.lora is not None:
        return _with_adapters(inventory, plan, plan.lora, heads)
    whole = tuple(_whole(kind, layout.tensor) for kind in inventory.kinds)
    order = tuple(whole[i] for i in inventory.order)
    seen = Seen(order, Counter(order))
    found = [model for model in _hypotheses(seen, heads) if _fits(model, seen)]
    if not found:
        return None
    exact = (model for model in found if tuple(tensor.shape for tensor in tensors(model)) == order)
    model = _dealt_out(next(exact, found[0]), layout.tensor)
    return model if model.positions else replace(model, positions=plan.batch.sequence_length or 0)


def _with_adapters(inventory: Inventory, plan: Plan, lora: Lora, heads: int | None) -> Model | None:
    """Recognise the frozen base, whose adapters must be what is trained, no more and no less."""
    base = Inventory.of([kind for kind in inventory if not kind.trainable])
    model = recognise(base, replace(plan, lora=None), heads)
    if model is None:
        return None
    wanted: Counter[Shape] = Counter()
    for section in sections(model):
        for tensor in section.tensors:
            for adapter in adapters(tensor, lora, model.family == "gpt2"):
                wanted[adapter.shape] += section.count
    trained = Counter(_whole(kind, plan.layout.tensor) for kind in inventory if kind.trainable)
    return model if wanted == trained else None


def _whole(kind: Kind, ranks: int) -> Shape:
    """Return the shape before tensor parallel split it."""
    split = re.fullmatch(r"S\((\d+)\)", kind.tensor_parallel)
    if split is None or ranks <= 1:
        return kind.shape
    dim = int(split.group(1))
    size = kind.split_size if kind.split_size is not None else kind.shape[dim] * ranks
    return (*kind.shape[:dim], size, *kind.shape[dim + 1 :])


def _fits(model: Model, seen: Seen) -> bool:
    counts: Counter[Shape] = Counter()
    try:
        for section in sections(model):
            for tensor in section.tensors:
                counts[tensor.shape] += section.count
    except BadInput:
        return False
    return counts == seen.counts


def _hypotheses(seen: Seen, heads: int | None) -> Iterator[Model]:
    for hidden in seen.widths():
        yield from _gpts(seen, hidden, heads)
        yield from _llamas(seen, hidden, heads)


def _gpts(seen: Seen, h: int, heads: int | None) -> Iterator[Model]:
    """Yield models with a fused qkv of ``[3h, h]``, or ``[h, 3h]`` as GPT-2 stores it."""
    counts = seen.counts
    for turned, tables_alike in product((False, True), range(4)):
        qkv = (h, 3 * h) if turned else (3 * h, h)
        # An embedding, or three with the head, may have the shape of qkv.
        layers = counts[qkv] - tables_alike
        if layers < 1:
            continue
        for f in _partners(counts, h, layers):
            block = _times(layers, (h, f), (f, h), (h, h), qkv)
            tables = _tables(seen, h, block)
            for model in _with_heads(Model(layers=layers, hidden=h, ffn=f), h, h, heads):
                yield from _named_gpts(replace(model, kv_heads=model.heads), tables, turned)


def _named_gpts(model: Model, tables: list[int], turned: bool) -> Iterator[Model]:
    """Yield the families by what is left: [vocab, positions, vocab], [vocab, positions] when tied, [vocab, vocab]."""
    if len(tables) == 3:
        vocab = next((n for n in tables if tables.count(n) > 1), tables[0])
        rest = list(tables)
        rest.remove(vocab)
        rest.remove(vocab) if vocab in rest else rest.pop()
        model = replace(model, vocab=vocab, positions=rest[0])
    elif len(tables) == 2:
        model = replace(model, vocab=tables[0], positions=tables[1], tied=True)
    else:
        return
    if turned:
        yield replace(model, family="gpt2")
        return
    for flags in ({}, {"bias": False}, {"bias": False, "norm_bias": False}, {"head_bias": True}):
        yield replace(model, family="gpt", options={**model.options, **flags})
    if len(tables) == 2 and tables[0] == tables[1]:
        for flags in ({}, {"bias": False}):
            options = {**model.options, **flags}
            yield replace(model, family="gpt-neox", positions=0, tied=False, options=options)


def _llamas(seen: Seen, h: int, heads: int | None) -> Iterator[Model]:
    """Yield models with q, k, v apart and a gated MLP, or experts in its place."""
    counts = seen.counts
    for layers, ffn, experts in chain(_gated(counts, h), _expert_shapes(counts, h)):
        for q, kv in _projections(counts, h, layers):
            mlp = [(experts, h)] if experts else [(ffn, h), (ffn, h), (h, ffn)]
            tables = _tables(seen, h, _times(layers, (q, h), (kv, h), (kv, h), (h, q), *mlp))
            if len(tables) not in (1, 2) or len(set(tables)) > 1:
                continue
            base = Model(family="llama", layers=layers, hidden=h, ffn=ffn, vocab=tables[0], tied=len(tables) == 1,
                         experts=experts)  # fmt: skip
            yield from _llama_options(base, seen, q, kv, heads)


def _llama_options(base: Model, seen: Seen, q: int, kv: int, heads: int | None) -> Iterator[Model]:
    vectors = sum(n for shape, n in seen.counts.items() if len(shape) == 1)
    per_head = {s[0] for s in seen.counts if len(s) == 1 and q % s[0] == 0 and kv % s[0] == 0}
    kinds: list[tuple[str, int]] = [("", 0), ("hidden", 0), *(("head", width) for width in sorted(per_head))]
    for (qk_norm, width), norms in product(kinds, ("pre", "both", "post")):
        for qkv_bias, o_bias, mlp_bias in product((False, True), repeat=3):
            in_block = (4 if norms == "both" else 2) + 2 * bool(qk_norm) + 3 * qkv_bias + o_bias + 3 * mlp_bias
            if base.layers * in_block + 1 != vectors:
                continue
            options: dict[str, bool | int | float | str] = {
                "qk_norm": qk_norm, "norms": norms, "qkv_bias": qkv_bias, "o_bias": o_bias, "mlp_bias": mlp_bias,
            }  # fmt: skip
            # Defaults are left out, so that the model is the one that a config gives.
            kept = {key: value for key, value in options.items() if value and value != "pre"}
            known = q // width if width and heads in (None, q // width) else heads
            if width and known != q // width:
                continue
            for model in _with_heads(replace(base, options=kept), q, kv, known):
                yield replace(model, kv_heads=kv // model.head_dim)


def _dealt_out(model: Model, tensor: int) -> Model:
    """Return the model with narrower heads where those that were guessed cannot be dealt out to so many ranks.

    The job deals them out, so that the guess is known to be wrong.
    """
    if not model.options.get("heads_guessed") or model.heads % tensor == 0:
        return model
    q, kv = model.heads * model.head_dim, (model.kv_heads or model.heads) * model.head_dim
    widths = (width for width in (64, 32, 16, 8, 4, 2, 1) if kv % width == 0 and q % (width * tensor) == 0)
    width = next(widths, None)
    return model if width is None else replace(model, heads=q // width, kv_heads=kv // width, head_dim=width)


def _with_heads(model: Model, q: int, kv: int, heads: int | None) -> Iterator[Model]:
    """Yield the model with its heads: those that are known, or the convention's."""
    if heads is not None:
        if heads > 0 and q % heads == 0 and kv % (q // heads) == 0:
            yield replace(model, heads=heads, head_dim=q // heads)
        return
    usual = 64 if q <= _NARROW else 128
    fitting = (width for width in (usual, 64, 128, 96, 80, 32, 16, 8, 4, 2, 1) if q % width == 0 and kv % width == 0)
    width = next(fitting)
    yield replace(model, heads=q // width, head_dim=width, options={**model.options, "heads_guessed": True})


def _times(layers: int, *shapes: Shape) -> Counter[Shape]:
    return Counter({shape: n * layers for shape, n in Counter(shapes).items()})


def _partners(counts: Counter[Shape], h: int, layers: int) -> list[int]:
    """Return the widths f of which there are ``layers`` ``[f, h]`` and ``[h, f]``."""
    widths = [s[0] for s in counts if len(s) == 2 and s[1] == h and counts[s] >= layers and counts[h, s[0]] >= layers]
    return sorted(widths, key=lambda f: (f != 4 * h, -f))


def _gated(counts: Counter[Shape], h: int) -> Iterator[tuple[int, int, int]]:
    """Yield (layers, ffn, 0) for widths of which there are twice as many ``[f, h]`` as ``[h, f]``."""
    for shape, layers in counts.items():
        if len(shape) == 2 and shape[0] == h and counts[shape[1], h] >= 2 * layers:
            yield layers, shape[1], 0


def _expert_shapes(counts: Counter[Shape], h: int) -> Iterator[tuple[int, int, int]]:
    """Yield (layers, ffn, experts) for fused experts ``[e, 2 ffn, h]`` and ``[e, h, ffn]``."""
    for shape, layers in counts.items():
        if len(shape) == 3 and shape[1] == h and counts[shape[0], 2 * shape[2], h] >= layers:
            yield layers, shape[2], shape[0]


def _projections(counts: Counter[Shape], h: int, layers: int) -> Iterator[tuple[int, int]]:
    """Yield (width of q, width of k): o is ``[h, q]``, k and v are two ``[kv, h]`` a block."""
    wide = [s[1] for s, n in counts.items() if len(s) == 2 and s[0] == h and n >= layers and counts[s[1], h] >= layers]
    narrow = [s[0] for s, n in counts.items() if len(s) == 2 and s[1] == h and n >= 2 * layers]
    for q, kv in product(wide, narrow):
        if kv <= q and q % kv == 0:
            yield q, kv


def _tables(seen: Seen, h: int, block: Counter[Shape]) -> list[int]:
    """Return the rows of the ``[n, h]`` tables that are left when the blocks are taken away, in order; [] if wrong."""
    left: Counter[Shape] = Counter({shape: n for shape, n in seen.counts.items() if len(shape) == 2})
    left.subtract(block)
    if any(n < 0 for n in left.values()) or any(n > 0 and shape[1] != h for shape, n in left.items()):
        return []
    return _in_order(seen.order, {shape for shape, n in left.items() if n > 0}, left)


def _in_order(order: Iterable[Shape], shapes: set[Shape], left: Counter[Shape]) -> list[int]:
    # Where a table has the shape of a block's weight, the first of that shape stands for it.
    found, taken = [], Counter[Shape]()
    for shape in order:
        if shape in shapes and taken[shape] < left[shape]:
            taken[shape] += 1
            found.append(shape[0])
    return found
