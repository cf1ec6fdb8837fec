"""A small Llama, trained as torchtitan does it: tensor and sequence parallel, checkpointed, sharded, or in stages.

``mesh_worker.py titan``: FSDP2 over a mesh (dp, tp) of 2 x 2 ranks. ``mesh_worker.py pipeline``: two stages, 1F1B, each
sharded over two ranks. Every rank counts its live tensors itself, knowing nothing of ranktop, and writes
``counted<rank>.json``; it trains until the file ``over`` is there.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

VOCABULARY, HIDDEN, LAYERS, HEADS, SEQUENCE, BATCH, MICRO_BATCHES = 96, 64, 4, 4, 32, 4, 4
POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, HIDDEN // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        made: Tensor = self.wo(out.transpose(1, 2).reshape(batch, length, -1))
        return made


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(HIDDEN, 3 * HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(3 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return made


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        made: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return made


class Transformer(nn.Module):
    """All of it, or a stage: what another stage has is None."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings: nn.Module | None = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleDict({str(number): TransformerBlock() for number in range(LAYERS)})
        self.norm: nn.Module | None = nn.RMSNorm(HIDDEN)
        self.output: nn.Module | None = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tok_embeddings(x) if self.tok_embeddings is not None else x
        for layer in self.layers.values():
            x = layer(x)
        x = self.norm(x) if self.norm is not None else x
        return self.output(x) if self.output is not None else x


def parallelize(model: Any, mesh: DeviceMesh) -> None:
    """Split over the tensor-parallel ranks, with sequence parallelism between."""
    whole = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, whole)
    gathered = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    for block in model.layers.values():
        plan: dict[str, Any] = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(**gathered),  # type: ignore[arg-type]
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(**gathered),  # type: ignore[arg-type]
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        plan |= dict.fromkeys(("attention.wq", "attention.wk", "attention.wv"), ColwiseParallel())
        plan |= dict.fromkeys(("feed_forward.w1", "feed_forward.w3"), ColwiseParallel())
        parallelize_module(block, mesh, plan)


def shard(model: Any, mesh: DeviceMesh) -> None:
    """Checkpoint and shard every block, then the rest."""
    for name, block in model.layers.items():
        model.layers[name] = checkpoint_wrapper(block)
        fully_shard(model.layers[name], mesh=mesh, mp_policy=POLICY)
    fully_shard(model, mesh=mesh, mp_policy=POLICY)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1))


class Titan:
    """FSDP2 over dp, tensor parallel over tp."""

    def __init__(self) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        self.seed = mesh["dp"].get_local_rank()
        self.model: Any = Transformer()
        parallelize(self.model, mesh["tp"])
        shard(self.model, mesh["dp"])

    def run(self) -> None:
        batch = tokens()
        loss_of(self.model(batch[:, :-1]), batch[:, 1:]).backward()


class Pipeline:
    """Two stages, each sharded by FSDP2 over two ranks."""

    def __init__(self) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        self.seed = mesh["dp"].get_local_rank()
        self.number = mesh["pp"].get_local_rank()
        self.model: Any = Transformer()
        for name in list(self.model.layers):
            if (int(name) >= LAYERS // 2) != bool(self.number):
                del self.model.layers[name]
        if self.number == 0:
            self.model.norm = self.model.output = None
        else:
            self.model.tok_embeddings = None
        shard(self.model, mesh["dp"])
        stage = PipelineStage(self.model, self.number, 2, torch.device("cpu"), group=mesh["pp"].get_group())
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)

    def run(self) -> None:
        batch = tokens()
        if self.number == 0:
            self.schedule.step(batch[:, :-1])
        else:
            self.schedule.step(target=batch[:, 1:])


def count(tensors: list[Tensor]) -> int:
    """Return the bytes of the storages behind tensors, each once; of a DTensor its local part's."""
    storages = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        storages[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(storages.values())


def counted(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return {
        "parameters": count(list(parameters)),
        "gradients": count([p.grad for p in parameters if p.grad is not None]),
        "optimizer": count(states),
    }


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trainer = Titan() if sys.argv[1] == "titan" else Pipeline()
    torch.manual_seed(trainer.seed)
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3)
    over, step = torch.zeros(1), 0
    while not over.item():
        trainer.run()
        optimizer.step()
        if step == 2:
            Path(f"counted{dist.get_rank()}.json").write_text(json.dumps(counted(trainer.model, optimizer)))
        optimizer.zero_grad()
        step += 1
        time.sleep(0.1)
        over[0] = Path("over").exists()
        dist.all_reduce(over)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
