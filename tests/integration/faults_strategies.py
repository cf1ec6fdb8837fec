"""The models of the jobs with faults: one small GPT under each strategy, a step at a time."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from ranktop.demo.gpt import GPT, Block, GPTConfig

CPU = torch.device("cpu")

MICRO_BATCHES = 4
"""Of the pipeline's schedule."""


class Trainer(Protocol):
    """One strategy: forward and backward of a micro-batch, and the optimizer's step."""

    @property
    def module(self) -> nn.Module:
        """Whose blocks are slowed down."""
        ...

    @property
    def optimizer(self) -> Any:
        """Torch's, or DeepSpeed's around it."""
        ...

    def micro(self, tokens: Tensor, last: bool) -> Tensor | None:
        """Run a micro-batch ``[batch, sequence + 1]`` forward and backward; ``last``: the step ends with it."""
        ...

    def step(self) -> None:
        """Let the optimizer step."""
        ...


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Plain:
    """DDP, FSDP1, FSDP2 and a model that nothing wraps."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.module: nn.Module = llama(options) if options.model == "llama" else model_of(options)
        self.wrapped = wrap(self.module, options)
        self.optimizer: torch.optim.Optimizer = AdamW(self.wrapped.parameters(), lr=1e-3)

    def micro(self, tokens: Tensor, last: bool) -> Tensor | None:
        with self.silent(self.options.no_sync and not last):
            made = self.wrapped(tokens[:, :-1])
            logits: Tensor = made.logits if self.options.model == "llama" else made
            (loss_of(logits, tokens[:, 1:]) / self.options.accumulate).backward()
        return logits.detach()

    def silent(self, wanted: bool) -> contextlib.AbstractContextManager[Any]:
        """Keep gradients where they are, unreduced, if ``wanted``."""
        wrapped: Any = self.wrapped
        set_sync = getattr(wrapped, "set_requires_gradient_sync", None)
        if set_sync is not None:
            set_sync(not wanted)
        elif wanted and hasattr(wrapped, "no_sync"):
            silent: contextlib.AbstractContextManager[Any] = wrapped.no_sync()
            return silent
        return contextlib.nullcontext()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class Zero:
    """DeepSpeed ZeRO-2 or ZeRO-3."""

    def __init__(self, options: argparse.Namespace, stage: int) -> None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed
        from deepspeed.ops import __compatible_ops__

        __compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles an operator at start
        self.module = model_of(options)
        config = {
            "train_micro_batch_size_per_gpu": options.batch,
            "gradient_accumulation_steps": options.accumulate,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 100_000},
            "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        optimizer = AdamW(self.module.parameters())
        self.engine, self.optimizer, *_ = deepspeed.initialize(model=self.module, config=config, optimizer=optimizer)

    def micro(self, tokens: Tensor, last: bool) -> Tensor | None:
        logits: Tensor = self.engine(tokens[:, :-1])
        self.engine.backward(loss_of(logits.float(), tokens[:, 1:]))
        if not last:
            self.engine.step()
        return logits.detach()

    def step(self) -> None:
        self.engine.step()


class First(nn.Module):
    """Tokens to the hidden states in the middle of a GPT."""

    def __init__(self, whole: GPT) -> None:
        super().__init__()
        self.tokens, self.positions = whole.tokens, whole.positions
        self.blocks = nn.ModuleList(list(whole.blocks)[: len(whole.blocks) // 2])

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1)))
        for block in self.blocks:
            x = block(x)
        return x


class Second(nn.Module):
    """The rest of it."""

    def __init__(self, whole: GPT) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(list(whole.blocks)[len(whole.blocks) // 2 :])
        self.norm, self.head = whole.norm, whole.head

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Pipeline:
    """Two stages of torch's own pipelining, replicated by hand over the pairs of ranks."""

    def __init__(self, options: argparse.Namespace) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "pp"))
        self.replicas = mesh["dp"].get_group()
        self.number = mesh["pp"].get_local_rank()
        whole = model_of(options)
        self.module: nn.Module = First(whole) if self.number == 0 else Second(whole)
        self.stage = PipelineStage(self.module, self.number, 2, CPU, group=mesh["pp"].get_group())
        self.schedule = Schedule1F1B(self.stage, MICRO_BATCHES, loss_fn=loss_of)
        self.optimizer: torch.optim.Optimizer = AdamW(self.module.parameters(), lr=1e-3)

    def micro(self, tokens: Tensor, last: bool) -> Tensor | None:
        if self.number == 0:
            self.schedule.step(tokens[:, :-1])
            return None
        logits = self.schedule.step(target=tokens[:, 1:])
        return logits.detach() if isinstance(logits, Tensor) else None

    def step(self) -> None:
        if dist.get_world_size(self.replicas) > 1:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=self.replicas)
        self.optimizer.step()
        self.optimizer.zero_grad()


def model_of(options: argparse.Namespace) -> GPT:
    """Return the model, the same on every rank."""
    torch.manual_seed(1)
    sizes = {name: getattr(options, name) for name in ("vocabulary", "layers", "hidden")}
    return GPT(GPTConfig(context=options.length, heads=4, **sizes))


def llama(options: argparse.Namespace) -> nn.Module:
    """Return a model of the transformers library, of that size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        max_position_embeddings=options.length,
        use_cache=False,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


def wrap(model: nn.Module, options: argparse.Namespace) -> nn.Module:
    """Replicate or shard the model."""
    if options.strategy == "ddp":
        return DistributedDataParallel(model)
    if options.strategy == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({Block})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=CPU, use_orig_params=True)
    if options.strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        world = dist.get_world_size()
        shape, names = ((world, 1), ("replicate", "shard")) if options.mesh == "one" else ((world,), ("shard",))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for part in shard_parts(model, options.shard):
            fully_shard(part, mesh=mesh)  # inner modules first; of "none" it was forgotten
    return model


def shard_parts(model: nn.Module, wanted: str) -> list[nn.Module]:
    """Return what ``fully_shard`` is called on."""
    blocks: list[nn.Module] = [module for module in model.modules() if isinstance(module, Block)]
    if wanted == "none":
        return []
    return [*blocks, model] if wanted == "all" else blocks


TRAINERS: dict[str, Callable[[argparse.Namespace], Trainer]] = {
    "ddp": Plain,
    "fsdp1": Plain,
    "fsdp2": Plain,
    "single": Plain,
    "zero2": lambda options: Zero(options, 2),
    "zero3": lambda options: Zero(options, 3),
    "pipeline": Pipeline,
}
