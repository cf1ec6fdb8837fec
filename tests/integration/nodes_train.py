"""A small training loop for jobs of several nodes: steps of about a tenth of a second, gradients reduced by gloo.

It ends when there is a file ``over`` in its working folder, or after five minutes.
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    until = time.monotonic() + 300
    over = torch.zeros(1)
    while not over.item():
        time.sleep(0.1)
        model(torch.randn(16, 32)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        over.fill_(float(time.monotonic() > until or Path("over").exists()))
        dist.all_reduce(over)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
