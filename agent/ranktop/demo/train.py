"""Trains the demo's GPT on the source text of Python's standard library.

All it has of the agent is the line that reports the loss: run it with
``torchrun --nproc-per-node 2 -m ranktop.agent -m ranktop.demo.train``.
"""

from __future__ import annotations

import argparse
import glob
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from ranktop.agent import report
from ranktop.demo.gpt import GPT, GPTConfig

STRATEGIES = ("fsdp2", "ddp", "fsdp1", "single")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, default="fsdp2")
    parser.add_argument("--minutes", type=float, default=4.0, help="how long to train")
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps (0: by time alone)")
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per optimizer step")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def corpus() -> Tensor:
    """Return the bytes of the standard library's sources as one long tensor."""
    files = sorted(glob.glob(str(Path(os.__file__).parent / "*.py")))
    text = b"".join(Path(file).read_bytes() for file in files)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def wrap(model: nn.Module, strategy: str, device: torch.device) -> nn.Module:
    """Shard or replicate the model over all ranks."""
    if strategy == "ddp":
        return DistributedDataParallel(model)
    if strategy == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        from ranktop.demo.gpt import Block

        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, use_orig_params=True
        )
    if strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    """Train until the time or the steps are over."""
    options = arguments()
    cuda = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if not cuda:
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    distributed = "RANK" in os.environ and options.strategy != "single"
    if distributed:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    rank = dist.get_rank() if distributed else 0
    torch.manual_seed(1)
    config = GPTConfig(layers=options.layers, hidden=options.hidden)
    model = wrap(GPT(config).to(device), options.strategy if distributed else "single", device)
    optimizer = AdamW(model.parameters(), lr=options.lr)
    train(model, optimizer, config, options, device, rank)
    if distributed:
        dist.destroy_process_group()


def train(
    model: nn.Module,
    optimizer: AdamW,
    config: GPTConfig,
    options: argparse.Namespace,
    device: torch.device,
    rank: int,
) -> None:
    """Run the steps; rank 0's clock decides for all when time is over."""
    text = corpus()
    generator = torch.Generator().manual_seed(1000 + rank)
    began = time.monotonic()
    step = 0
    while not finished(began, step, options, device):
        for _ in range(options.accumulate):
            starts = torch.randint(len(text) - config.context - 1, (options.batch,), generator=generator)
            batch = torch.stack([text[s : s + config.context + 1] for s in starts.tolist()]).long().to(device)
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / options.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        report(
            step=step,
            total_steps=options.steps or None,
            loss=loss.detach() * options.accumulate,
            learning_rate=options.lr,
        )
        if rank == 0 and step % 50 == 0:
            print(f"step {step}  loss {loss.item() * options.accumulate:.3f}", flush=True)


def finished(began: float, step: int, options: argparse.Namespace, device: torch.device) -> bool:
    """Whether to stop, the same on every rank."""
    over = bool(options.steps) and step >= options.steps
    if not over and step % 10 == 0:
        late = torch.tensor([float(time.monotonic() - began > options.minutes * 60)], device=device)
        if dist.is_initialized():
            dist.broadcast(late, src=0)
        over = bool(late.item())
    return over


if __name__ == "__main__":
    main()
