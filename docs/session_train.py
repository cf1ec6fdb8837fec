"""What docs/record_session.py records: a GPT of 25 million parameters under FSDP2, whose rank 3 has more samples.

Started with ``torchrun --nproc-per-node 4 -m ranktop.agent docs/session_train.py``.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from ranktop.agent import report
from ranktop.demo.gpt import GPT, GPTConfig
from ranktop.demo.train import corpus

STEPS = 500


def main(seconds: float) -> None:
    """Train until the time is over, rank 0's clock deciding for all."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    config = GPTConfig(layers=8, hidden=512)
    model = GPT(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = AdamW(model.parameters(), lr=6e-4)
    schedule = OneCycleLR(optimizer, 6e-4, total_steps=STEPS, pct_start=0.1)
    text, generator = corpus(), torch.Generator().manual_seed(rank)
    samples = 3 if rank == 3 else 2
    over, began = torch.zeros(1), time.monotonic()
    for step in range(1, STEPS):
        starts = torch.randint(len(text) - config.context - 1, (samples,), generator=generator)
        batch = torch.stack([text[s : s + config.context + 1] for s in starts.tolist()]).long()
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        report(step=step, total_steps=STEPS, loss=loss, learning_rate=schedule.get_last_lr()[0])
        over.fill_(time.monotonic() - began > seconds)
        dist.broadcast(over, src=0)
        if over.item():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(float(sys.argv[1]))
