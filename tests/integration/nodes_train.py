"""A small training loop for jobs of several nodes: five steps a second, gradients reduced by gloo.

It steps by hand: torch's first optimizer would import torch._dynamo in every rank. It ends when there is a file
``over`` in its working folder, or after five minutes.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    until = time.monotonic() + 300
    over = torch.zeros(1)
    while not over.item():
        time.sleep(0.2)
        model(torch.randn(16, 32)).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.data -= 1e-3 * parameter.grad
            parameter.grad = None
        over.fill_(float(time.monotonic() > until or Path("over").exists()))
        dist.all_reduce(over)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
