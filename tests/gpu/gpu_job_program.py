"""Trains a small model under one strategy and prints what the probe says of its tensors, and what they are.

``python gpu_job_program.py <ddp|fsdp2> <backend> <world size> <device>``: a world larger than 1 is torch's fake process
group, whose collectives do nothing; sizes are those of rank 0.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ranktop.probes.allocator import open_allocator
from ranktop.probes.model import ModelProbe

WIDTH, LAYERS = 1024, 4
"""Parameters: 4 layers of 1024 x 1024 and a bias of 1024, in float32; both divide by 8."""


def start(backend: str, world: int) -> None:
    """Make the process group."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    else:
        dist.init_process_group(backend, rank=0, world_size=world, store=HashStore())


def wrap(strategy: str, model: nn.Module, world: int, device: torch.device) -> nn.Module:
    """Return the model under the strategy."""
    if strategy == "ddp":
        wrapped = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        if world > 1:
            wrapped.register_comm_hook(None, noop_hook)  # The fake group's all-reduce gives DDP no result to wait for.
        return wrapped
    mesh = init_device_mesh(device.type, (world,))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def held(tensors: Iterable[torch.Tensor | None], device: torch.device) -> int:
    """Return the bytes of these tensors' storages on the device, each counted once."""
    storages = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local is not None and local.device.type == device.type:
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def main() -> dict[str, Any]:
    """Train three steps; return both counts before the optimizer runs the last time."""
    strategy, backend, world, device = sys.argv[1], sys.argv[2], int(sys.argv[3]), torch.device(sys.argv[4])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    start(backend, world)
    torch.manual_seed(0)
    plain = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(device)
    model = wrap(strategy, plain, world, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    probe, allocator = ModelProbe(model, [optimizer], device), open_allocator(device)
    batch = torch.randn(8, WIDTH, device=device)
    resident, live = probe.resident(), {}
    for step in range(3):
        model(batch).square().mean().backward()
        if step == 2:
            probe.refresh(force=True)
            resident = probe.resident()
            states = (value for state in optimizer.state.values() for value in state.values())
            live = {
                "parameters": held(model.parameters(), device),
                "gradients": held((parameter.grad for parameter in model.parameters()), device),
                "optimizer": held((value for value in states if isinstance(value, torch.Tensor)), device),
            }
        optimizer.step()
        if step < 2:
            optimizer.zero_grad()
    count = LAYERS * (WIDTH * WIDTH + WIDTH)
    answer = {
        "resident": asdict(resident),
        "live": live,
        "arithmetic": 4 * count // (world if strategy == "fsdp2" else 1),
        "allocator": allocator.quick(),
    }
    dist.destroy_process_group()
    return answer


if __name__ == "__main__":
    print(json.dumps(main()))
