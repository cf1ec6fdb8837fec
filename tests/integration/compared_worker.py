"""Trains a small model under DDP or FSDP2 and writes the bytes of its own tensors, counted without the agent.

The name of the folder given says which, and is the job's name. The ranks are forked: each attaches an agent itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ranktop.agent import attach, detach

STEPS = 16


class Net(nn.Module):
    """Nine million bytes of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(768, 768) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def size(tensor: torch.Tensor) -> int:
    """Bytes of a tensor on this rank."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def main() -> None:
    """Run the steps; the last one's tensors are counted before the gradients go."""
    target = Path(sys.argv[1])
    strategy = target.name
    os.environ["RANKTOP_JOB_NAME"] = strategy
    os.environ["RANKTOP_RUN_DIR"] = str(target / "run")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = Net()
    if strategy == "fsdp2":
        for layer in model.layers:  # type: ignore[union-attr]
            fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    attach(model, optimizer)
    counted: dict[str, int] = {}
    for _ in range(STEPS):
        model(torch.randn(8, 768)).square().mean().backward()
        optimizer.step()
        counted = {
            "parameters": sum(size(one) for one in model.parameters()),
            "gradients": sum(size(one.grad) for one in model.parameters() if one.grad is not None),
            "optimizer": sum(
                size(state) for kept in optimizer.state.values() for state in kept.values() if torch.is_tensor(state)
            ),
        }
        # Not all at once: the agent measures about two steps a second, and waits for nobody.
        time.sleep(0.25)
        optimizer.zero_grad(set_to_none=False)
    (target / f"{dist.get_rank()}.json").write_text(json.dumps(counted))
    dist.barrier()
    dist.destroy_process_group()
    detach()


if __name__ == "__main__":
    main()
