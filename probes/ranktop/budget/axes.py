"""How the ranks of a run are dealt out over the parallel axes, for each strategy."""

from __future__ import annotations

from typing import Final

from ranktop.budget.model import BadInput, Model, NoRule
from ranktop.budget.plan import Layout
from ranktop.budget.run import Run

WHOLE: Final = ("single", "dp", "ps")
"""Strategies that know no other axis than data parallel."""

PIPELINES: Final = ("pp-gpipe", "pp-1f1b", "3d")


def check(run: Run) -> None:
    """Raise BadInput when the sizes of the axes cannot be meant."""
    sizes = {"world size": run.world_size, "dp": run.data, "tp": run.tensor, "pp": run.pipeline,
             "cp": run.context, "ep": run.expert}  # fmt: skip
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise BadInput(f"{name} must be at least 1, not {size}")
    given = [(name, size) for name, size in list(sizes.items())[1:5] if size is not None and (size > 1 or name == "dp")]
    product = 1
    for _, size in given:
        product *= size
    words = " × ".join(f"{name} {size}" for name, size in given) + f" = {product}" * (len(given) > 1)
    if run.world_size % product:
        raise BadInput(f"{words} does not divide the world size {run.world_size}; change one of them")
    if run.data is not None and run.tensor is not None and run.pipeline is not None and product != run.world_size:
        raise BadInput(f"{words} is not the world size {run.world_size}; change one of them")
    if run.expert > 1 and not run.model.experts:
        raise BadInput(f"ep {run.expert}: {run.model.name or 'the model'} has no experts; leave ep out")
    if run.expert > 1 and run.model.experts % run.expert:
        raise BadInput(f"ep {run.expert} does not divide the {run.model.experts} experts{_take(run.model.experts)}")
    if (run.tensor or 1) > 1:
        split_heads(run.model, run.tensor or 1)
    if run.model.layers and (run.pipeline or 1) > run.model.layers:
        raise BadInput(f"pp {run.pipeline} is more than the {run.model.layers} layers; take at most as many")


def split_heads(model: Model, tensor: int) -> None:
    """Raise BadInput when tensor parallel cannot deal out the heads."""
    if model.heads and model.heads % tensor:
        raise BadInput(f"tp {tensor} does not divide the {model.heads} heads{_take(model.heads)}")
    if model.kv_heads and model.kv_heads % tensor and tensor % model.kv_heads:
        raise BadInput(f"tp {tensor} does not divide the {model.kv_heads} key/value heads{_take(model.kv_heads)}")


def _take(number: int) -> str:
    """Return what could be taken instead: the sizes that divide a number."""
    sizes = [str(size) for size in range(2, number + 1) if number % size == 0]
    if not sizes:
        return "; leave it out"
    return f"; take {', '.join(sizes)}" if len(sizes) < 10 else "; take a divisor"


def layout(run: Run, strategy: str) -> tuple[Layout, tuple[str, ...]]:
    """Return the first rank's layout and what was chosen because nobody said it. Raises NoRule, BadInput."""
    check(run)
    said: list[str] = []
    tensor, pipeline, context = run.tensor or 1, run.pipeline or 1, run.context
    if strategy in WHOLE:
        _only_data(run, strategy)
        world = 1 if strategy == "single" else run.world_size
        return Layout(world_size=world, replicate=world), ()
    if strategy == "tp" and run.tensor is None:
        tensor = _most_tensor(run, run.world_size // (pipeline * context))
        most = "as many ranks of one node as the heads allow" if run.model.heads else "within one node; heads not known"
        said.append(f"tp {tensor}: {most}")
    if strategy == "3d" and run.tensor is None:
        tensor = _most_tensor(run, max(1, run.world_size // (max(2, pipeline) * context * 2)))
        said.append(f"tp {tensor}: within one node, so that pp and dp are left")
    if strategy in PIPELINES and run.pipeline is None:
        left = run.world_size // (tensor * context)
        pipeline = _most_pipeline(run, max(2, left // 2) if strategy == "3d" and left >= 4 else left)
        most = (
            "the most stages of equal layers" if run.model.layers else "as if the layers, which are not known, allow it"
        )
        said.append(f"pp {pipeline}: {most}")
    data = run.world_size // (tensor * pipeline * context)
    if data * tensor * pipeline * context != run.world_size or (run.data is not None and data != run.data):
        raise NoRule(_left_over(run, tensor, pipeline, context))
    if strategy == "tp" and tensor == 1 < run.world_size:
        raise NoRule("tensor parallel needs a size that divides the heads and the world size")
    if strategy in PIPELINES[:2] and pipeline == 1 < run.world_size:
        raise NoRule("no number of stages divides both the world size and the layers; give --pp")
    replicate, shard = _data_axes(run, strategy, data, said)
    return Layout(world_size=run.world_size, replicate=replicate, shard=shard, tensor=tensor, pipeline=pipeline,
                  context=context, expert=run.expert), tuple(said)  # fmt: skip


def _data_axes(run: Run, strategy: str, data: int, said: list[str]) -> tuple[int, int]:
    """Return (replicas, shards)."""
    if strategy == "fsdp-hybrid":
        on_node = max(1, run.gpus_per_node // (run.tensor or 1))
        if data > on_node and data % on_node == 0:
            return data // on_node, on_node
        said.append(f"all {data} data-parallel ranks fit on one node: hybrid is the same as full sharding")
        return 1, data
    if strategy.startswith(("zero", "fsdp")) or strategy == "3d":
        return 1, data
    return data, 1


def _only_data(run: Run, strategy: str) -> None:
    if max(run.tensor or 1, run.pipeline or 1, run.context) > 1:
        raise NoRule("works on whole models: no tensor, pipeline or context parallel beside it")
    if strategy == "dp" and run.world_size > run.gpus_per_node:
        raise NoRule(f"DataParallel is one process on one node: {run.gpus_per_node} GPUs, not {run.world_size}")


def _left_over(run: Run, tensor: int, pipeline: int, context: int) -> str:
    data = f"dp {run.data} × " if run.data is not None else ""
    return f"{data}tp {tensor} × pp {pipeline} × cp {context} does not make {run.world_size} ranks"


def _divisors(number: int) -> list[int]:
    return [n for n in range(number, 0, -1) if number % n == 0]


def _most_tensor(run: Run, limit: int) -> int:
    """Return the largest tensor-parallel size on one node that deals out the heads evenly."""
    for size in _divisors(run.world_size):
        if size > min(limit, run.gpus_per_node) or limit % size:
            continue
        heads, groups = run.model.heads, run.model.kv_heads
        if not (heads % size if heads else 0) and not (groups % size if groups else 0):
            return size
    return 1


def _most_pipeline(run: Run, limit: int) -> int:
    """Return the largest number of stages up to ``limit`` that divides both it and the layers."""
    layers = run.model.layers
    return next(n for n in _divisors(limit) if not layers or (layers % n == 0 and n <= layers))
