"""Which blocks a pipeline stage runs, and which ends of the model lie on it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

from ranktop.budget.model import BadInput, Tensor
from ranktop.budget.models.section import Section
from ranktop.budget.plan import Layout, Plan

V_SHAPED: Final = ("zbv", "dualpipe-v")
"""Schedules of two chunks per rank, the second of which runs back: the first rank has both ends of the model."""


def chunk_layers(layers: int, chunks: int) -> list[range]:
    """Return the blocks of every chunk, in order; what is left over goes one each to the first chunks.

    So does DeepSpeed's uniform partition (deepspeed/runtime/utils.py ``partition_uniform``). Megatron asks for an even
    split unless it is told otherwise; torchtitan counts embedding and head as a block each, so the ends have fewer.
    Raises BadInput when there are more chunks than blocks.
    """
    if chunks > layers:
        raise BadInput(f"a pipeline of {chunks} chunks needs at least {chunks} layers, this model has {layers}")
    size, left = divmod(layers, chunks)
    starts = [i * size + min(i, left) for i in range(chunks + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def chunks_of(plan: Plan) -> tuple[tuple[int, ...], int]:
    """Return (chunks that this rank runs, chunks of the whole pipeline).

    A rank of stage i runs i, i + p, i + 2p ... of v p chunks; under V-shaped schedules i and 2p - 1 - i.
    """
    stages, rank = plan.layout.pipeline, plan.layout.pipeline_rank
    if stages <= 1:
        return (0,), 1
    if not 0 <= rank < stages:
        raise BadInput(f"pipeline stage {rank} is not among {stages}")
    if plan.pipeline is not None and plan.pipeline.schedule in V_SHAPED:
        return (rank, 2 * stages - 1 - rank), 2 * stages
    virtual = max(1, plan.pipeline.virtual) if plan.pipeline is not None else 1
    return tuple(range(rank, stages * virtual, stages)), stages * virtual


def stage_layers(layers: int, plan: Plan) -> tuple[range, ...]:
    """Return the blocks of each of this rank's chunks."""
    chunks, total = chunks_of(plan)
    split = chunk_layers(layers, total)
    return tuple(split[chunk] for chunk in chunks)


def on_stage(sections: tuple[Section, ...], tied: bool, plan: Plan) -> list[list[Section]]:
    """Return the sections of each of this rank's chunks.

    Embeddings lie on the first chunk, final norm and head on the last, what stands between two stacks of blocks with
    the block before it. A tied embedding exists on both ends, and one that a decoder shares where the decoder begins;
    a rank has it once.
    """
    layers = sum(section.count for section in sections if section.first is not None)
    chunks, total = chunks_of(plan)
    if total == 1:
        return [list(sections)]
    split = chunk_layers(layers, total)
    found = [_between(sections, split[chunk], layers) for chunk in chunks]
    if 0 not in chunks:
        table = Section(_embedding(sections))
        decoder = [section.first for section in sections if section.first and section.first == section.numbered_from]
        if decoder and (own := [i for i, chunk in enumerate(chunks) if decoder[0] in split[chunk]]):
            found[own[0]].insert(0, table)
        elif tied and total - 1 in chunks:
            found[-1].append(table)
    return found


def _between(sections: tuple[Section, ...], blocks: range, layers: int) -> list[Section]:
    kept, seen = [], 0
    for section in sections:
        if section.first is None:
            last = max(seen - 1, 0)
            if last in blocks and (seen < layers or blocks.stop == layers):
                kept.append(section)
            continue
        start, stop = max(section.first, blocks.start), min(section.first + section.count, blocks.stop)
        seen = section.first + section.count
        if start < stop:
            kept.append(replace(section, first=start, count=stop - start))
    return kept


def _embedding(sections: tuple[Section, ...]) -> tuple[Tensor, ...]:
    return tuple(t for section in sections for t in section.tensors if t.role == "embedding" and t.first)[:1]


def check_divides(axis: str, size: int, what: int, of: str) -> None:
    """Raise BadInput unless ``size`` ranks divide ``what`` evenly."""
    if size > 1 and what % size:
        raise BadInput(f"{axis} {size} does not divide {what} {of}")


def check_layout(layout: Layout) -> None:
    """Raise BadInput for sizes below one and for places outside of them."""
    for axis in ("replicate", "shard", "tensor", "pipeline", "context", "expert"):
        value = getattr(layout, axis)
        if value < 1:
            raise BadInput(f"{axis} must be at least 1, not {value}")
    if not 0 <= layout.tensor_rank < layout.tensor:
        raise BadInput(f"tensor rank {layout.tensor_rank} is not among {layout.tensor}")
