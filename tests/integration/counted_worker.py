"""One rank of a job that trains under DDP, ZeroRedundancyOptimizer or DeepSpeed and counts its collectives.

Started by test_collectives_jobs.py with a folder: ``cases.json`` is read there, rank 0 writes ``found.json``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist
from counted_ops import Collectives
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ranktop.budget.communication import collectives
from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Batch, Plan, Zero
from ranktop.probes import deepspeed as zero_probe
from ranktop.probes.model import ModelProbe
from ranktop.probes.strategy import Seen, detect

STEPS = 3
"""ZeRO-3 records the order of its modules in the second step."""


class Stack(nn.Module):
    """Matrices of several sizes, none of which two ranks divide, a frozen one among them, and a buffer."""

    def __init__(self, width: int, nested: bool = False) -> None:
        super().__init__()
        sizes = [width, 2 * width + 1, width, 3 * width, width, width + 2, width]
        self.embed = nn.Embedding(19, width)
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 19, bias=False)
        self.layers[2].requires_grad_(False)
        self.register_buffer("shift", torch.zeros(33))
        if nested:
            self.layers = nn.ModuleList([nn.Sequential(nn.Sequential(layer), nn.Identity()) for layer in self.layers])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x).relu()
        out: torch.Tensor = self.head(self.norm(x))
        return out


def torch_job(case: dict[str, Any]) -> tuple[Collectives, Inventory, Plan]:
    """DDP, with ``no_sync`` on all but the last micro-batch."""
    model = DistributedDataParallel(Stack(case["width"]), **case.get("ddp", {}))
    optimizer: Any = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        if case["kind"] == "zero-redundancy"
        else torch.optim.AdamW(model.parameters(), lr=1e-3)
    )
    tokens = torch.arange(10).reshape(2, 5)
    micro = case.get("accumulation", 1)
    with Collectives() as seen:
        for _ in range(STEPS):
            seen.clear()
            for number in range(micro):
                with contextlib.nullcontext() if number == micro - 1 else model.no_sync():
                    model(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    plan = detect(model, [optimizer], torch.device("cpu"), Seen(micro_batch=2))
    return seen, ModelProbe(model, [optimizer], torch.device("cpu")).inventory(), plan


def deepspeed_job(case: dict[str, Any]) -> tuple[Collectives, Inventory, Plan]:
    import deepspeed

    torch.manual_seed(0)
    model = Stack(case["width"], case.get("nested", False))
    parameters: Any = [p for p in model.parameters() if p.requires_grad]
    if case.get("groups"):
        parameters = [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim <= 1]},
        ]
    micro = case.get("accumulation", 1)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": micro,
        "bf16": {"enabled": case.get("bf16", True)},
        "zero_optimization": {"stage": case["stage"], **case.get("zero", {})},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        **case.get("config", {}),
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(parameters), config=config)
    tokens = torch.arange(10).reshape(2, 5)
    with Collectives() as seen:
        for _ in range(STEPS):
            seen.clear()
            for _ in range(micro):
                engine.backward(engine(tokens).float().square().mean())
                engine.step()
    inventory, plan = zero_probe.inventory(engine), zero_probe.plan(engine)
    engine.destroy()
    return seen, inventory, replace(plan, zero=with_options(plan.zero, case))


def with_options(zero: Zero | None, case: dict[str, Any]) -> Zero:
    """Add the options that move messages, not bytes that stay."""
    given = case.get("zero", {})
    found = zero or Zero(stage=case["stage"])
    return replace(
        found,
        prefetch_bucket_size=given.get("stage3_prefetch_bucket_size", found.prefetch_bucket_size),
        max_live_parameters=given.get("stage3_max_live_parameters", found.max_live_parameters),
        max_reuse_distance=given.get("stage3_max_reuse_distance", found.max_reuse_distance),
        communication_dtype={"fp32": "float32"}.get(case.get("config", {}).get("communication_data_type", "")),
    )


def main() -> None:
    out = Path(sys.argv[1])
    cases = json.loads((out / "cases.json").read_text())
    if any(case["kind"] == "deepspeed" for case in cases.values()):
        import deepspeed

        # DeepSpeed would compile a kernel of its own for collectives within a machine.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", verbose=False)
    else:
        dist.init_process_group("gloo")
    found = {}
    for name, case in cases.items():
        seen, inventory, plan = (deepspeed_job if case["kind"] == "deepspeed" else torch_job)(case)
        plan = replace(plan, batch=Batch(micro_batch=2, accumulation=case.get("accumulation", 1)))
        sizes: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for one in collectives(inventory, plan, None):
            sizes[f"{one.kind} of {one.group}"] += one.bytes
            calls[f"{one.kind} of {one.group}"] += one.calls
        found[name] = {
            "expected": {key: [sizes[key], calls[key]] for key in sizes},
            "seen": {f"{kind} of {ranks}": list(value) for (kind, ranks), value in seen.totals().items()},
        }
        del seen, inventory, plan
        gc.collect()
    if dist.get_rank() == 0:
        (out / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
