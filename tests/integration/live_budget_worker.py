"""One rank of a job that trains small models under every strategy, the agent's watch beside each.

Started by test_live_budget_jobs.py with a folder: every rank writes ``rank<N>.msgpack``, its card and tables per case.
The allocator that the watch reads is the independent count of live storages: malloc would add Python's own objects.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MethodType
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F
from live_budget_cases import CASES, Case, Report
from live_storages import LiveStorages
from torch import nn

from ranktop.agent.watch import Watch
from ranktop.budget.terms import Memory
from ranktop.demo.gpt import GPT, Block, GPTConfig
from ranktop.probes.identity import at_moment
from ranktop.probes.reading import AllocatorReading, DeviceReading, StepTable
from ranktop.wire.schema import Card, Job, Table

STEPS = 3
"""The agent reads the first three steps; what it has learnt from the first two is in the card by the third."""

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class AllStorages(LiveStorages):
    """Counts integers too: tokens and labels are a part of the budget."""

    def note(self, tensor: torch.Tensor) -> None:
        inner = getattr(tensor, "_local_tensor", tensor)
        if inner.layout is torch.strided and inner.device.type == "cpu":
            storage = inner.untyped_storage()
            self._known[storage._cdata] = weakref.ref(storage)


class Counted:
    """An allocator whose bytes in use are those of the live storages."""

    def __init__(self, live: LiveStorages) -> None:
        self.live = live
        self.baseline = live.total()

    def quick(self) -> tuple[int | None, int | None]:
        now = self.settled()
        return now, now

    def look_again(self) -> None:
        """Do nothing: every reading looks."""

    def read(self) -> AllocatorReading:
        now = self.live.total()
        return AllocatorReading(allocated=now, reserved=now, baseline=self.baseline)

    def settled(self) -> int:
        """Return the bytes once they stand still: gloo's threads hold a collective's tensors a little longer."""
        now, deadline = self.live.total(), time.monotonic() + 0.5
        still = 0
        while still < 3 and time.monotonic() < deadline:
            time.sleep(0.0003)
            before, now = now, self.live.total()
            still = still + 1 if now == before else 0
        return now


class WithLoss(GPT):
    """Returns (logits, loss), as nanoGPT does."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        logits = super().forward(tokens)
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build(case: Case) -> tuple[nn.Module, type[nn.Module]]:
    """Return the model and the class of its blocks."""
    if case.model in ("gpt", "nanogpt"):
        config = GPTConfig(case.vocabulary, case.sequence, case.layers, case.heads, case.hidden)
        return GPT(config) if case.model == "gpt" else WithLoss(config), Block
    if case.model == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel
        from transformers.models.gpt2.modeling_gpt2 import GPT2Block

        gpt2 = GPT2Config(
            vocab_size=case.vocabulary, n_positions=case.sequence, n_embd=case.hidden, n_layer=case.layers,
            n_head=case.heads, use_cache=case.cache,
        )  # fmt: skip
        gpt2._attn_implementation = case.attention
        return GPT2LMHeadModel(gpt2).train(), GPT2Block
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    llama = LlamaConfig(
        vocab_size=case.vocabulary, hidden_size=case.hidden, intermediate_size=case.hidden * 3,
        num_hidden_layers=case.layers, num_attention_heads=case.heads, num_key_value_heads=case.heads // 2,
        max_position_embeddings=case.sequence, use_cache=case.cache,
    )  # fmt: skip
    llama._attn_implementation = case.attention
    return LlamaForCausalLM(llama).train(), LlamaDecoderLayer


def wrap(case: Case, model: nn.Module, block: type[nn.Module]) -> nn.Module:
    """Shard or replicate the model over all ranks."""
    if case.strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, gradient_as_bucket_view=case.bucket_view)
    if case.strategy == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({block}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
            sharding_strategy=ShardingStrategy.SHARD_GRAD_OP if case.keep else ShardingStrategy.FULL_SHARD,
            mixed_precision=MixedPrecision(torch.bfloat16, torch.float32) if case.mixed else None,
        )
    if case.strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if case.mixed else MixedPrecisionPolicy()
        for module in [module for module in model.modules() if type(module) is block]:
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=not case.keep)
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True if case.root_too else None)
    return model


def cast_inside(model: nn.Module) -> None:
    """Put autocast around a model's forward and cast its outputs back, as Accelerate's ``prepare_model`` does."""
    forward = torch.autocast("cpu", torch.bfloat16)(type(model).forward)

    @functools.wraps(forward)
    def cast_back(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if isinstance(output, torch.Tensor):
            return output.float()
        output.logits = output.logits.float()
        return output

    model.forward = MethodType(cast_back, model)


class Trainer:
    """Makes a case's model and trains it as a script would."""

    def __init__(self, case: Case) -> None:
        self.case = case
        torch.manual_seed(0)
        model, block = build(case)
        model.to(DTYPES[case.dtype])
        if case.checkpointing:
            model.gradient_checkpointing_enable()  # type: ignore[operator]
        if case.inside:
            cast_inside(model)
        self.engine: Any = None
        self.held: Any = None
        if case.strategy.startswith("zero"):
            import deepspeed

            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(case))
            self.model: nn.Module = self.engine
            return
        self.model = wrap(case, model, block)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Run forward; the outputs are let go when it returns, or held until the next ones are there."""
        with self.autocast():
            if self.case.model == "gpt":
                output = self.model(tokens[:, :-1])
                loss: torch.Tensor = F.cross_entropy(output.flatten(0, 1).float(), tokens[:, 1:].flatten())
            elif self.case.model == "nanogpt":
                output = self.model(tokens[:, :-1], tokens[:, 1:])
                loss = output[1]
            else:
                output = self.model(input_ids=tokens, labels=tokens)
                loss = output.loss
        self.held = output if self.case.held else None
        return loss

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if self.case.autocast else nullcontext()

    def step(self) -> None:
        case = self.case
        for micro in range(case.accumulation):
            length = case.sequence + (case.model in ("gpt", "nanogpt"))
            tokens = torch.randint(case.vocabulary, (case.batch, length))
            with self.silent(micro + 1 < case.accumulation):
                loss = self.loss(tokens)
                if self.engine is not None:
                    self.engine.backward(loss)
                    self.engine.step()
                else:
                    (loss / case.accumulation).backward()
        if self.engine is None:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def silent(self, wanted: bool) -> AbstractContextManager[Any]:
        """Hold back the reduction of gradients until the last micro-batch."""
        if not self.case.no_sync:
            return nullcontext()
        if self.case.strategy == "fsdp2":
            self.model.set_requires_gradient_sync(not wanted)  # type: ignore[operator]
            return nullcontext()
        return self.model.no_sync() if wanted else nullcontext()  # type: ignore[operator]

    def close(self) -> None:
        if self.engine is not None:
            self.engine.destroy()


def deepspeed_config(case: Case) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": case.batch,
        "gradient_accumulation_steps": case.accumulation,
        "zero_optimization": {
            "stage": int(case.strategy[-1]),
            "reduce_bucket_size": 50_000,
            "allgather_bucket_size": 50_000,
            "stage3_param_persistence_threshold": 1_000,
        },
        "bf16": {"enabled": case.dtype == "bf16"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }


def table_of(found: StepTable, counted: Counted) -> Table:
    """Return a step's moments as the agent sends them."""
    allocator, device = counted.read(), DeviceReading()
    moments: dict[str, Memory] = {
        name: at_moment(reading.allocated, reading.reserved, reading.resident, allocator, device)[0]
        for name, reading in found.moments.items()
    }
    return Table(step=found.index, first=found.first, moments=moments)


def run(case: Case) -> Report:
    """Train a few steps and return the card and the first and last step's table."""
    gc.collect()
    with AllStorages() as live:
        counted = Counted(live)
        watch = Watch(counted)
        watch.install()
        try:
            trainer = Trainer(case)
            tables: list[StepTable] = []
            for _ in range(STEPS):
                trainer.step()
                tables += [watch.recorder.table] if watch.recorder is not None and watch.recorder.table else []
            watch.remove()
            watch.close()
            facts, recorder = watch.facts, watch.recorder
            assert facts is not None, watch.last_error
            assert recorder is not None
            assert recorder.table is not None
            card = Card(
                job=Job(id=case.name, name=case.name, world_size=dist.get_world_size()),
                rank=dist.get_rank(),
                model=facts.model,
                inventory=facts.inventory,
                plan=facts.plan,
            )
            both = [table_of(table, counted) for table in (tables[0], recorder.table)]
            trainer.close()
            return Report(name=case.name, card=card, first=both[0], later=both[1], errors=watch.last_error)
        finally:
            watch.remove()


def guarded(call: Callable[[], Report], name: str) -> Report:
    """A case that fails must not take the others with it."""
    try:
        return call()
    except Exception:
        return Report(name=name, errors=traceback.format_exc())


def main() -> None:
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    cases = [case for case in CASES if not wanted or any(word in case.name for word in wanted)]
    if any(case.strategy.startswith("zero") for case in cases):
        import deepspeed
        from deepspeed.ops import __compatible_ops__

        # DeepSpeed would compile a kernel of its own for collectives within a machine.
        __compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", verbose=False)
    else:
        dist.init_process_group("gloo")
    gc.collect()
    gc.freeze()
    reports = [guarded(lambda case=case: run(case), case.name) for case in cases]  # type: ignore[misc]
    (out / f"rank{dist.get_rank()}.msgpack").write_bytes(msgspec.msgpack.encode(reports))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
