"""Real training steps for the agent's benchmark: one process, or two ranks under DDP, FSDP2 and DeepSpeed's ZeRO-3.

A step takes about as long as asked: what the small model leaves of it is filled up with matrix products, on one thread.
Never with sleep: a sleeping thread would hide what another thread takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

KINDS: Final = ("plain", "ddp", "fsdp2", "zero3")
WIDTH: Final = 64
BATCH: Final = 16


@dataclass
class Job:
    """One rank's model and its step in three parts, so that tools that have no hooks can be put around them."""

    model: nn.Module
    optimizer: Any
    """None where the engine is the optimizer."""
    forward: Callable[[], torch.Tensor]
    backward: Callable[[torch.Tensor], None]
    update: Callable[[], None]
    fill: Callable[[], None] = lambda: None

    def step(self) -> None:
        """Train one step."""
        self.backward(self.forward())
        self.update()
        self.fill()


def network(tensors: int) -> nn.Sequential:
    """Return a model of so many parameter tensors, two to a block; narrow where there are many."""
    width = WIDTH if tensors <= 100 else 8
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(tensors // 2)))


def make(kind: str, tensors: int = 20) -> Job:
    """Return a job of ``kind``; all but ``plain`` need torchrun's environment. ``tensors``: of the whole model."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if kind == "zero3":
        return _zero3(network(tensors))
    if kind != "plain" and not dist.is_initialized():
        dist.init_process_group("gloo")
    network_ = network(tensors)
    data = torch.randn(BATCH, network_[0][0].in_features)  # type: ignore[index]
    model: nn.Module = network_
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(network_)
    if kind == "fsdp2":
        model = _fsdp2(network_)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Job(model, optimizer, lambda: model(data).square().mean(), lambda loss: loss.backward(), update)


def _fsdp2(network_: nn.Sequential) -> nn.Module:
    """Shard groups of blocks, five of them, and the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = list(network_)
    size = max(1, len(blocks) // 5)
    model = nn.Sequential(*(nn.Sequential(*blocks[i : i + size]) for i in range(0, len(blocks), size)))
    for group in model:
        fully_shard(group, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _zero3(network_: nn.Sequential) -> Job:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import logging

    import deepspeed
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    # DeepSpeed would compile a kernel of its own for collectives within a machine.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }
    optimizer = torch.optim.AdamW(network_.parameters(), lr=1e-3)
    data = torch.randn(BATCH, network_[0][0].in_features)  # type: ignore[index]
    engine, *_ = deepspeed.initialize(model=network_, optimizer=optimizer, config=config)
    return Job(engine, None, lambda: engine(data).square().mean(), engine.backward, engine.step)


def filled(job: Job, step_ms: float) -> float:
    """Have a step take about ``step_ms``; returns what it takes then on rank 0, in milliseconds, on every rank."""
    base = seconds_of(job.step, 20)
    filler = torch.randn(256, 256)
    unit = seconds_of(lambda: filler @ filler, 50)
    fills = shared(max(0, round((step_ms / 1000 - base) / unit)))

    def fill() -> None:
        for _ in range(fills):
            filler @ filler

    job.fill = fill
    return shared(round(1e6 * seconds_of(job.step, max(5, round(200 / step_ms))))) / 1e3


def seconds_of(call: Callable[[], object], times: int) -> float:
    """Return the seconds of one call, after as many that don't count."""
    for _ in range(times):
        call()
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def shared(number: int) -> int:
    """Return rank 0's number on every rank: all must run the same steps."""
    if not dist.is_initialized():
        return number
    told = torch.tensor([number])
    dist.broadcast(told, 0)
    return int(told)
