"""The budget's collectives against those that real wrappers issue, counted in torch's dispatcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from counted_ops import Collectives, Totals
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from ranktop.budget.communication import collectives
from ranktop.budget.configs.lines import config_lines
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory as placed
from ranktop.budget.plan import Batch, Fsdp, Layout, Plan, Precision
from ranktop.probes.model import ModelProbe
from ranktop.probes.strategy import Seen, detect

CPU = torch.device("cpu")
WORLD = 4
HIDDEN, ROWS = 9, 13


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    """Four ranks of which only the first exists: its collectives are issued, nobody answers."""
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    yield
    dist.destroy_process_group()


class Block(nn.Module):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN + 1)
        self.down = nn.Linear(2 * HIDDEN + 1, HIDDEN)
        self.down.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


class Small(nn.Module):
    """Sizes that four ranks do not divide, and a half-frozen block."""

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(ROWS, HIDDEN)
        self.blocks = nn.ModuleList([Block(frozen=i == 1) for i in range(3)])
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, ROWS, bias=False)
        self.checkpointing = checkpointing

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


Sync = Callable[[nn.Module, bool], Any]


def sharded(mesh: DeviceMesh, *, mixed: bool = False, checkpointing: bool = False, reshard: bool | int | None = None,
            ) -> nn.Module:  # fmt: skip
    model = Small(checkpointing)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mp_policy": policy} if mixed else {}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, **options)
    root = False if reshard is False else None
    fully_shard(model, mesh=mesh, reshard_after_forward=root, **options)
    return model


def flat(strategy: ShardingStrategy, *, original: bool = True, mixed: bool = False, groups: Any = None) -> nn.Module:
    model = Small()
    if not original:
        model.requires_grad_(True)
    policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16) if mixed else None

    def wrap(module: nn.Module) -> FullyShardedDataParallel:
        return FullyShardedDataParallel(
            module, sharding_strategy=strategy, use_orig_params=original, mixed_precision=policy, device_id=CPU,
            process_group=groups,
        )  # fmt: skip

    for index, block in enumerate(model.blocks):
        model.blocks[index] = wrap(block)
    return wrap(model)


def counted(model: nn.Module, micro: int, sync_once: bool) -> tuple[Totals, Inventory, Plan]:
    """Train two steps; return what the second one sent, and what the probes say of the job."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.arange(6).reshape(2, 3)
    with Collectives() as seen:
        for _ in range(2):
            seen.clear()
            for number in range(micro):
                last = number == micro - 1 or not sync_once
                if isinstance(model, FullyShardedDataParallel):
                    if last:
                        model(tokens).float().square().mean().backward()
                    else:
                        with model.no_sync():
                            model(tokens).float().square().mean().backward()
                    continue
                model.set_requires_gradient_sync(last)  # type: ignore[operator]
                model(tokens).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    plan = detect(model, [optimizer], CPU, Seen(micro_batch=2))
    waiting = ("forward_end", "backward_start") if sync_once and micro > 1 else ()
    plan = replace(plan, batch=Batch(micro_batch=2, accumulation=micro), unsharded_gradients_at=waiting)
    return seen.totals(), ModelProbe(model, [optimizer], CPU).inventory(), plan


def expected(inventory: Inventory, plan: Plan) -> Totals:
    sizes: Counter[tuple[str, int]] = Counter()
    calls: Counter[tuple[str, int]] = Counter()
    for one in collectives(inventory, plan, None):
        sizes[one.kind, one.group] += one.bytes
        calls[one.kind, one.group] += one.calls
    return {key: (sizes[key], calls[key]) for key in sizes}


FSDP2: dict[str, dict[str, Any]] = {
    "full": {},
    "full, checkpointed": {"checkpointing": True},
    "full, bf16 with fp32 reduction": {"mixed": True},
    "grad-op": {"reshard": False},
    "resharded to two": {"reshard": 2},
}


@pytest.mark.parametrize("once", [True, False], ids=["reduced once", "reduced every time"])
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("name", FSDP2)
def test_fsdp2(world: None, name: str, micro: int, once: bool) -> None:
    mesh = init_device_mesh("cpu", (WORLD,))
    seen, inventory, plan = counted(sharded(mesh, **FSDP2[name]), micro, once)
    assert expected(inventory, plan) == seen


@pytest.mark.parametrize("reshard", [None, False])
def test_fsdp2_hybrid(world: None, reshard: bool | None) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    seen, inventory, plan = counted(sharded(mesh, reshard=reshard, mixed=True), 2, True)
    assert expected(inventory, plan) == seen


FSDP1 = [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD]


@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("strategy", FSDP1)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_fsdp1(world: None, strategy: ShardingStrategy, micro: int, original: bool) -> None:
    model = flat(strategy, original=original, mixed=strategy is ShardingStrategy.FULL_SHARD)
    seen, inventory, plan = counted(model, micro, True)
    assert expected(inventory, plan) == seen


@pytest.mark.parametrize("strategy", [ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2])
def test_fsdp1_hybrid(world: None, strategy: ShardingStrategy) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    groups = (mesh.get_group("inner"), mesh.get_group("outer"))
    seen, inventory, plan = counted(flat(strategy, groups=groups), 2, True)
    assert expected(inventory, plan) == seen


@pytest.mark.parametrize("sharding", ["full", "grad-op", "hybrid"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_code_for_a_plan_does_what_the_plan_says(world: None, sharding: str, checkpointing: str) -> None:
    layout = Layout(world_size=WORLD, replicate=2, shard=2) if sharding == "hybrid" else Layout(shard=WORLD)
    wanted = Plan(strategy="fsdp2", layout=layout, fsdp=Fsdp(sharding=sharding), checkpointing=checkpointing,
                  precision=Precision(compute="bfloat16", reduce="float32"), batch=Batch(accumulation=2),
                  unsharded_gradients_at=("forward_end",))  # fmt: skip
    model: Any = Small()
    model.layers = model.blocks
    names = {"model": model}
    exec("\n".join(config_lines(wanted, "code")).replace("cuda", "cpu"), names)
    seen, inventory, plan = counted(names["model"], 2, True)
    assert expected(inventory, wanted) == expected(inventory, plan) == seen


LAYERS, WIDTH, VOCAB, LENGTH = 3, 16, 32, 8


class Layer(nn.Module):
    """Attention without its middle: what tensor parallel sends does not depend on it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.ModuleDict({"qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(3 * WIDTH, WIDTH)})
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict({"up": nn.Linear(WIDTH, 4 * WIDTH), "down": nn.Linear(4 * WIDTH, WIDTH)})
        for part in (self.attention, self.mlp):
            part.forward = partial(self._through, part)

    @staticmethod
    def _through(part: Any, x: torch.Tensor) -> torch.Tensor:
        first, second = part.values()
        out: torch.Tensor = second(torch.nn.functional.gelu(first(x)))
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class Decoder(nn.Module):
    def __init__(self, checkpointing: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.checkpointing = checkpointing

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


def split(model: Decoder, mesh: DeviceMesh, sequence: bool) -> None:
    """Parallelize as torch's own examples do: norms between parts of the sequence, matrices between gathers."""
    matrices: dict[str, Any] = {"attention.qkv": ColwiseParallel(), "mlp.up": ColwiseParallel()}
    out = Shard(1) if sequence else Replicate()
    matrices |= {name: RowwiseParallel(output_layouts=out) for name in ("attention.out", "mlp.down")}
    if sequence:
        whole: dict[str, Any] = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
        matrices |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        matrices |= {"attention": PrepareModuleInput(**whole), "mlp": PrepareModuleInput(**whole)}
    for layer in model.layers:
        parallelize_module(layer, mesh, matrices)
    ends: dict[str, Any] = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=out)}
    ends["head"] = ColwiseParallel(
        input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Shard(-1), use_local_output=False
    )
    if sequence:
        ends["norm"] = SequenceParallel()
    parallelize_module(model, mesh, ends)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_parallel(world: None, sequence: bool, checkpointing: str) -> None:
    """What the layers send, in bytes and calls; the loss's own reductions are hidden from the dispatcher."""
    model = Decoder(checkpointing == "full")
    split(model, init_device_mesh("cpu", (WORLD,)), sequence)
    tokens = torch.zeros(2, LENGTH, dtype=torch.long)
    with Collectives() as seen, loss_parallel():
        for _ in range(2):
            logits = model(tokens).flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, tokens.flatten()).backward()
    layout = Layout(world_size=WORLD, tensor=WORLD)
    shape = Model(family="gpt", layers=LAYERS, hidden=WIDTH, heads=4, kv_heads=4, head_dim=4, vocab=VOCAB,
                  positions=LENGTH)  # fmt: skip
    plan = Plan(
        strategy="tp", layout=layout, batch=Batch(micro_batch=2, sequence_length=LENGTH, accumulation=2),
        checkpointing=checkpointing, sequence_parallel="dtensor" if sequence else "",
    )  # fmt: skip
    found: Counter[tuple[str, int]] = Counter()
    calls: Counter[tuple[str, int]] = Counter()
    for one in collectives(placed(shape, plan), plan, shape):
        if one.axis == "tensor" and "loss" not in one.what and "norms" not in one.what:
            found[one.kind, one.group] += one.bytes
            calls[one.kind, one.group] += one.calls
    assert {key: (found[key], calls[key]) for key in found} == seen.totals()
