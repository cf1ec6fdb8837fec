"""Which rank sits where: sizes of the parallel axes, from the wrappers and meshes of a live model."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from ranktop.budget.plan import Layout
from ranktop.probes.buckets import ddp_wrappers
from ranktop.probes.structure import Structure


def world_size() -> int:
    """Return the size of the default process group, 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def size_and_rank(group: Any) -> tuple[int, int]:
    """Return a process group's size and this rank's index in it; (1, 0) when it has no members here."""
    if group is None or not dist.is_initialized():
        return 1, 0
    return max(1, int(group.size())), max(0, int(group.rank()))


def data_axes(structure: Structure) -> dict[str, int]:
    """Return the replicate and shard axes of FSDP2, FSDP1 or DDP, whichever holds the model."""
    if structure.states:
        return _fsdp2_axes(structure.groups)
    for module, handle in structure.handles:
        return _fsdp1_axes(module, handle)
    for wrapper in ddp_wrappers(structure.modules):
        size, rank = size_and_rank(wrapper.process_group)
        return {"replicate": size, "replicate_rank": rank}
    return {}


def _fsdp2_axes(groups: list[Any]) -> dict[str, int]:
    axes = [
        {
            "replicate": getattr(group.mesh_info, "replicate_mesh_size", 1),
            "replicate_rank": getattr(group.mesh_info, "replicate_mesh_rank", 0),
            "shard": getattr(group.mesh_info, "shard_mesh_size", 1),
            "shard_rank": getattr(group.mesh_info, "shard_mesh_rank", 0),
        }
        for group in groups
    ]
    common = Counter(tuple(sorted(each.items())) for each in axes).most_common(1)[0][0]
    return dict(common)


def _fsdp1_axes(wrapper: Any, handle: Any) -> dict[str, int]:
    size, rank = size_and_rank(handle.process_group)
    if not handle.uses_sharded_strategy:
        return {"replicate": size, "replicate_rank": rank}
    replicas, replica = size_and_rank(getattr(wrapper, "_inter_node_pg", None))
    return {"shard": size, "shard_rank": rank, "replicate": replicas, "replicate_rank": replica}


def tensor_axes(structure: Structure) -> dict[str, int]:
    """Return the tensor-parallel axis: the mesh axes along which some parameter is split before any FSDP."""
    if structure.states:
        sharded = [p for group in structure.groups for p in group.fsdp_params]
        specs = [getattr(p, "_unsharded_dtensor_spec", None) or getattr(p, "_tp_spec", None) for p in sharded]
    else:
        specs = [getattr(p, "_spec", None) for _, items in structure.plain() for _, p in items]
    for spec in specs:
        if spec is None:
            continue
        for axis, placement in enumerate(spec.placements):
            if getattr(placement, "dim", None) is not None:
                return {"tensor": spec.mesh.size(axis), "tensor_rank": spec.mesh.get_local_rank(axis)}
    return {}


def pipeline_stages() -> Iterator[Any]:
    """Yield the live pipeline stages of this process; nothing unless the job imported torch's pipelining.

    Goes through the garbage collector's objects: tens of milliseconds in a large process.
    """
    module = sys.modules.get("torch.distributed.pipelining.stage")
    base = getattr(module, "_PipelineStageBase", None)
    if base is None:
        return
    for thing in gc.get_objects():
        if base in type(thing).__mro__:
            yield thing


def pipeline_axes(structure: Structure) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the pipeline axis of the stage that runs ``root``, and what to note about it."""
    stages = list(pipeline_stages())
    root = structure.modules[0]
    inside = {id(module) for module in structure.modules}
    for stage in stages:
        submodule = getattr(stage, "submod", None)
        if submodule is None:
            continue
        if id(submodule) in inside or any(module is root for module in submodule.modules()):
            notes: tuple[str, ...] = ()
            if stage.num_stages > stage.group_size:
                notes = (f"{len(stages)} pipeline stages run here, only stage {stage.stage_index} is counted",)
            return {"pipeline": stage.num_stages, "pipeline_rank": stage.stage_index}, notes
    return {}, ()


def layout_of(structure: Structure) -> tuple[Layout, tuple[str, ...]]:
    """Return the layout of a model and what to note about it."""
    pipeline, notes = pipeline_axes(structure)
    return Layout(world_size=world_size(), **data_axes(structure), **tensor_axes(structure), **pipeline), notes
