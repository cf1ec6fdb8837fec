"""A plan as lines to put into a config or a script, and what no config says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.configs.lines import config_lines, kinds_for
from ranktop.budget.fitting.candidate import Candidate
from ranktop.budget.plan import Plan
from ranktop.budget.strategies import plan_of

KINDS: Final = {
    "deepspeed": "DeepSpeed's JSON", "accelerate": "Accelerate's YAML", "code": "the script",
    "megatron": "Megatron-LM's arguments",
}  # fmt: skip
"""What a plan can be written as, in words."""

_MEGATRON_PRECISION: Final = {"bfloat16": "--bf16", "float16": "--fp16"}

_SCHEDULES: Final = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}
"""Classes of torch.distributed.pipelining."""


def lines_of(one: Candidate) -> dict[str, list[str]]:
    """Return the lines of every form that can ask for a plan, the most direct first: one of KINDS -> lines."""
    plan = plan_of(one.run, one.strategy)
    if plan.stack == "megatron" and plan.fsdp is None and plan.zero is None:
        return {"megatron": list(_megatron(plan))}
    found = {kind: config_lines(plan, kind) for kind in kinds_for(plan)}
    code = [] if found else list(_axes(plan))
    return {"code": code} if code else found


def beside(one: Candidate, kind: str) -> list[str]:
    """Return what has to be said elsewhere than in the lines of one kind, in words."""
    plan = plan_of(one.run, one.strategy)
    axes, batch = plan.layout, plan.batch
    told = []
    if kind == "code":
        forwards = plan.micro_batches
        often = "1 forward" if forwards == 1 else f"{forwards} forwards"
        told.append(f"micro-batches of {batch.micro_batch}, {often} per optimizer step")
    if kind == "deepspeed" and axes.tensor > 1:
        told.append(f'tensor parallel: "tensor_parallel": {{"autotp_size": {axes.tensor}}} in the JSON')
    if kind == "deepspeed" and axes.pipeline > 1:
        told.append(f"pipeline: deepspeed.pipe.PipelineModule(..., num_stages={axes.pipeline}) in the script")
    if kind == "accelerate":
        told.append(f"micro-batches of {batch.micro_batch} in the script")
    if kind == "megatron" and one.run.model.layers % (axes.pipeline * one.run.virtual):
        layers = f"{one.run.model.layers} layers do not divide evenly"
        told.append(f"{layers}: --pipeline-model-parallel-layout says which stages have one more")
    told += _checkpointing(plan, kind)
    return told


def _checkpointing(plan: Plan, kind: str) -> Iterator[str]:
    inside = kind == "megatron" or (plan.fsdp is not None and kind in ("code", "accelerate"))
    if plan.checkpointing == "full" and not inside:
        yield "full checkpointing: model.gradient_checkpointing_enable(), or torch.utils.checkpoint around every block"
    if plan.checkpointing == "selective" and kind != "megatron":
        yield (
            "selective checkpointing: torch.utils.checkpoint around every block, with create_selective_checkpoint_"
            "contexts that keep matrix products and attention"
        )


def _megatron(plan: Plan) -> Iterator[str]:
    """Source: Megatron-LM megatron/training/arguments.py."""
    axes, batch = plan.layout, plan.batch
    micro = plan.micro_batches
    yield f"--tensor-model-parallel-size {axes.tensor}"
    yield f"--pipeline-model-parallel-size {axes.pipeline}"
    if axes.context > 1:
        yield f"--context-parallel-size {axes.context}"
    if axes.expert > 1:
        yield f"--expert-model-parallel-size {axes.expert}"
    if plan.sequence_parallel:
        yield "--sequence-parallel"
    yield f"--micro-batch-size {batch.micro_batch}"
    yield f"--global-batch-size {(batch.micro_batch or 1) * micro * axes.data}"
    if axes.shard > 1:
        yield "--use-distributed-optimizer"
    if plan.precision.parameters in _MEGATRON_PRECISION:
        yield _MEGATRON_PRECISION[plan.precision.parameters]
    if plan.checkpointing == "selective":
        yield "--recompute-granularity selective"
    if plan.checkpointing == "full":
        yield "--recompute-granularity full"
        yield "--recompute-method uniform"
        yield f"--recompute-num-layers {plan.checkpoint_every}"


def _axes(plan: Plan) -> Iterator[str]:
    """Code for tensor parallel and for pipelines: the mesh and what runs over each of its axes."""
    axes = plan.layout
    sizes = {"pp": axes.pipeline, "dp": axes.data, "cp": axes.context, "tp": axes.tensor}
    kept = {name: size for name, size in sizes.items() if size > 1}
    if not kept or plan.fsdp is not None or plan.strategy in ("dp", "ps"):
        return
    names = ", ".join(f'"{name}"' for name in kept) + ("," if len(kept) == 1 else "")
    shape = ", ".join(map(str, kept.values())) + ("," if len(kept) == 1 else "")
    yield "from torch.distributed.device_mesh import init_device_mesh"
    if plan.pipeline is not None:
        schedule = _SCHEDULES.get(plan.pipeline.schedule, "Schedule1F1B")
        yield f"from torch.distributed.pipelining import PipelineStage, {schedule}"
    if axes.tensor > 1:
        yield "from torch.distributed.tensor.parallel import parallelize_module"
    if axes.data > 1:
        yield "from torch.nn.parallel import DistributedDataParallel"
    yield f'mesh = init_device_mesh("cuda", ({shape}), mesh_dim_names=({names}))'
    if axes.tensor > 1:
        yield 'parallelize_module(model, mesh["tp"], tp_plan)'
    if axes.data > 1:
        yield 'model = DistributedDataParallel(model, process_group=mesh["dp"].get_group())'
    if plan.pipeline is not None:
        yield f'stage = PipelineStage(model, mesh["pp"].get_local_rank(), {axes.pipeline}, device)'
        yield f"schedule = {schedule}(stage, n_microbatches={plan.pipeline.micro_batches}, loss_fn=loss)"
