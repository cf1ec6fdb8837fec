"""A script for DeepSpeed's own launcher, which tells it its local rank; it trains until the file ``over`` is there."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.ops import __compatible_ops__

from ranktop.demo.gpt import GPT, GPTConfig

__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles an operator at start

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 100},
    },
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, required=True)
    parser.add_argument("--vocabulary", type=int, required=True)
    options = parser.parse_args()
    model = GPT(GPTConfig(options.vocabulary, 16, 2, 4, 32))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    told, over = [], torch.zeros(1)
    while not over.item():
        for _ in range(2):
            tokens = torch.randint(0, options.vocabulary, (4, 17))
            logits = engine(tokens[:, :-1])
            engine.backward(F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()))
            engine.step()
        told.append((engine.global_steps, engine.get_lr()[0], float(engine.get_global_grad_norm())))
        time.sleep(0.1)
        over[0] = Path("over").exists()
        dist.all_reduce(over)
    Path(f"told{options.local_rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
