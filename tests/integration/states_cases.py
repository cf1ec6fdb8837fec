"""Small odd-sized models under each of torch's strategies, for the worker of the states tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(7, 13)
        self.down = nn.Linear(13, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


class Odd(nn.Module):
    """No dimension divides by 2 or 3; tied weights, a frozen layer, a buffer, a parameter of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 7)
        self.block = Block()
        self.frozen = nn.Linear(7, 7)
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.zeros(5, dtype=torch.float64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.frozen(self.block(self.embed(tokens))) * self.scale)
        return out


Wrap = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Case:
    name: str
    wrap: Wrap
    optimizer: Callable[[nn.Module], Any]


def adamw(model: nn.Module) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def zero_adamw(model: nn.Module) -> Any:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)


def zero_sgd(model: nn.Module) -> Any:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1e-3, momentum=0.9)


def single(model: nn.Module) -> nn.Module:
    return model


def ddp(view: bool) -> Wrap:
    return lambda model: DistributedDataParallel(model, gradient_as_bucket_view=view)


def fsdp1(
    strategy: ShardingStrategy, original: bool, mixed: bool = False, groups: tuple[Any, Any] | None = None
) -> Wrap:
    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else None

    def wrap(model: nn.Module) -> nn.Module:
        def shard(module: nn.Module) -> nn.Module:
            return FullyShardedDataParallel(
                module,
                process_group=groups,
                sharding_strategy=strategy,
                use_orig_params=original,
                mixed_precision=policy,
                device_id=CPU,
            )

        model.block, model.frozen = shard(model.block), shard(model.frozen)  # type: ignore[arg-type]
        return shard(model)

    return wrap


def fsdp2(reshard: bool | int, mesh: DeviceMesh, mixed: bool = False) -> Wrap:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def wrap(model: nn.Module) -> nn.Module:
        options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard}
        if mixed:
            options["mp_policy"] = policy
        for module in (model.block, model.frozen, model):
            fully_shard(module, **options)  # type: ignore[arg-type]
        return model

    return wrap


def tensor_parallel(mesh: DeviceMesh) -> Wrap:
    def wrap(model: nn.Module) -> nn.Module:
        # Uneven parts only work where every split output is gathered again.
        plan = {
            "up": ColwiseParallel(output_layouts=Replicate()),
            "down": RowwiseParallel(input_layouts=Replicate()),
        }
        parallelize_module(model.block, mesh, plan)  # type: ignore[arg-type]
        return model

    return wrap


def both(first: Wrap, second: Wrap) -> Wrap:
    return lambda model: second(first(model))


def cases(world: int) -> Iterator[Case]:
    """Yield the cases that a job of ``world`` ranks runs."""
    for name, wrap in strategies(world):
        yield Case(f"{name}-adamw", wrap, adamw)
        yield Case(f"{name}-sgd", wrap, sgd)
    if world < 4:
        yield Case("zero-redundancy-adamw", ddp(False), zero_adamw)
        yield Case("zero-redundancy-sgd", ddp(True), zero_sgd)


def strategies(world: int) -> Iterator[tuple[str, Wrap]]:
    full, grad_op, none = (
        ShardingStrategy.FULL_SHARD,
        ShardingStrategy.SHARD_GRAD_OP,
        ShardingStrategy.NO_SHARD,
    )
    mesh = init_device_mesh("cpu", (world,))
    if world == 4:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        yield "fsdp2-hybrid", fsdp2(True, grid)
        yield "fsdp2-to-2", fsdp2(2, mesh)
        yield "fsdp2-tp", both(tensor_parallel(grid["inner"]), fsdp2(True, grid["outer"]))
        pair = (grid.get_group("inner"), grid.get_group("outer"))
        yield "fsdp1-hybrid", fsdp1(ShardingStrategy.HYBRID_SHARD, True, groups=pair)
        return
    yield "single", single
    yield "ddp", ddp(False)
    yield "ddp-view", ddp(True)
    for name, strategy in (("full", full), ("grad-op", grad_op), ("none", none)):
        yield f"fsdp1-{name}", fsdp1(strategy, False)
        yield f"fsdp1-{name}-orig", fsdp1(strategy, True)
    yield "fsdp1-mixed", fsdp1(full, True, mixed=True)
    yield "fsdp2-full", fsdp2(True, mesh)
    yield "fsdp2-grad-op", fsdp2(False, mesh)
    yield "fsdp2-mixed", fsdp2(True, mesh, mixed=True)
    yield "tp", tensor_parallel(mesh)
