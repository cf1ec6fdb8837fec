"""Which layouts a search looks at: a strategy with the sizes of its axes and whether FSDP's states are offloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.axes import WHOLE, split_heads
from ranktop.budget.model import BadInput
from ranktop.budget.plan import Fsdp, Layout, Plan
from ranktop.budget.run import STRATEGIES, Run

MOST_STAGES: Final = 64

LEAST_UNEVEN: Final = 4
"""Layers of a stage from which it may be that others have one more."""

_WITH_TENSOR: Final = ("zero1", "zero3", "fsdp-full")
"""Strategies that are looked at with tensor parallel beside them: DeepSpeed's AutoTP, FSDP2 on a mesh of two axes."""

_WITH_PIPELINE: Final = ("zero1",)
"""Strategies that are looked at with a pipeline around them: DeepSpeed's pipeline engine."""

_SIZED: Final = ("tp", "pp-gpipe", "pp-1f1b", "3d")
"""Strategies whose name is one of their axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A layout under a strategy."""

    strategy: str
    """One of STRATEGIES."""
    tensor: int | None = None
    """None = as the run says."""
    pipeline: int | None = None
    offload: bool | None = None
    """FSDP's states on the CPU; None for other strategies."""

    @property
    def row(self) -> tuple[str, bool, bool]:
        """What has one best plan: offloading and the sizes of the axes are variants of the same."""
        base = {"zero-infinity": "zero3"}.get(self.strategy, self.strategy.removesuffix("-offload"))
        return base, (self.tensor or 1) > 1, (self.pipeline or 1) > 1

    @property
    def offloads(self) -> bool:
        """Whether states leave the device."""
        return self.offload is True or self.strategy.endswith(("-offload", "-infinity"))

    def apply(self, run: Run) -> Run:
        """Return the run with this shape's sizes."""
        fsdp = run.fsdp
        if self.offload is not None:
            fsdp = replace(fsdp or Fsdp(), cpu_offload=self.offload)
        tensor = run.tensor if self.tensor is None else self.tensor
        pipeline = run.pipeline if self.pipeline is None else self.pipeline
        return replace(run, tensor=tensor, pipeline=pipeline, fsdp=fsdp)


def title(strategy: str, plan: Plan) -> str:
    """Return a strategy's name with the sizes of its axes, e.g. ``zero1 pp4``, ``3d tp8 pp4``, ``fsdp-full cpu``."""
    axes: Layout = plan.layout
    words = [strategy]
    words += [f"tp{axes.tensor}"] if axes.tensor > 1 else []
    words += [f"pp{axes.pipeline}"] if axes.pipeline > 1 else []
    words += ["cpu"] if plan.fsdp is not None and plan.fsdp.cpu_offload else []
    if len(words) > 1 and words[0] in ("tp", "pp"):
        del words[0]
    return " ".join(words)


def shapes(run: Run, strategies: tuple[str, ...], present: str = "") -> Iterator[Shape]:
    """Yield the layouts to look at; axes that the run fixes stay.

    Left out unless they are asked for by name or run now: what uses one GPU of many or sends through one (``single``,
    ``dp``, ``ps``); GPipe, which needs more memory than 1F1B for the same traffic and the same waiting; on one GPU
    what shares work out, and does not offload.
    """
    asked = set(strategies) != set(STRATEGIES)
    for strategy in strategies:
        wished = asked or strategy == present
        yield from (shape for shape in _sizes(run, strategy) if wished or _worth(run, shape))


def _worth(run: Run, shape: Shape) -> bool:
    if run.world_size == 1:
        return shape.strategy == "single" or shape.offloads
    return shape.strategy not in (*WHOLE, "pp-gpipe")


def _sizes(run: Run, strategy: str) -> Iterator[Shape]:
    offloads: tuple[bool | None, ...] = (False, True) if strategy.startswith("fsdp") else (None,)
    tensors, pipelines = _tensors(run), _pipelines(run, 1)
    if strategy in _SIZED:
        for tensor in tensors if strategy in ("tp", "3d") else (None,):
            stages = _pipelines(run, tensor or run.tensor or 1) if strategy != "tp" else (None,)
            yield from (Shape(strategy=strategy, tensor=tensor, pipeline=stage) for stage in stages)
        return
    yield from (Shape(strategy=strategy, offload=offload) for offload in offloads)
    if strategy in _WITH_TENSOR:
        plain = None if offloads == (None,) else False
        yield from (Shape(strategy=strategy, tensor=size, offload=plain) for size in tensors if size)
    if strategy in _WITH_PIPELINE:
        yield from (Shape(strategy=strategy, pipeline=size) for size in pipelines if size)


def _tensors(run: Run) -> tuple[int | None, ...]:
    """Return tensor-parallel sizes within one node that deal out the heads; (None,) when the run says it."""
    if run.tensor is not None:
        return (None,)
    left = run.world_size // max(1, (run.pipeline or 1) * run.context)
    found: list[int | None] = []
    size = 2
    while size <= min(left, run.gpus_per_node):
        if left % size == 0 and run.model.heads:
            try:
                split_heads(run.model, size)
                found.append(size)
            except BadInput:
                pass
        size *= 2
    return tuple(found)


def _pipelines(run: Run, tensor: int) -> tuple[int | None, ...]:
    """Return numbers of stages of equal layers, and those by which a rest of less than a quarter is left.

    (None,) when the run says it.
    """
    if run.pipeline is not None:
        return (None,)
    left = run.world_size // max(1, tensor * run.context)
    layers = run.model.layers
    most = min(left, layers // run.virtual, MOST_STAGES)
    return tuple(n for n in range(2, most + 1) if left % n == 0 and _splits(layers, n * run.virtual))


def _splits(layers: int, chunks: int) -> bool:
    return layers % chunks == 0 or layers // chunks >= LEAST_UNEVEN
