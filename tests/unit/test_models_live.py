"""Planned parameters against those of real models: wrapped by FSDP, split by DTensor, recognised by their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import Model
from ranktop.budget.models.catalogue import find, names
from ranktop.budget.models.place import inventory
from ranktop.budget.models.recognise import recognise
from ranktop.budget.plan import Batch, Layout, Lora, Plan
from ranktop.demo.gpt import GPT, Block, GPTConfig
from ranktop.probes.parameters import inventory_of
from ranktop.probes.structure import structure_of

CPU = torch.device("cpu")
WORLD, RANK = 4, 1
MODEL = Model(family="gpt", layers=3, hidden=64, heads=4, vocab=100, positions=32)


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    """Four ranks of which only the second exists; nothing is sent."""
    dist.init_process_group("fake", rank=RANK, world_size=WORLD, store=FakeStore())
    yield
    dist.destroy_process_group()


def demo(vocab: int = 100) -> GPT:
    return GPT(GPTConfig(vocabulary=vocab, context=32, layers=3, heads=4, hidden=64))


def live(module: nn.Module) -> Inventory:
    optimizer = torch.optim.AdamW(module.parameters())
    return inventory_of(structure_of(module), [optimizer], CPU)


def without_shards(found: Inventory) -> list[Kind]:
    """Live kinds carry the sharding group's size; planned ones leave it to the layout."""
    return [replace(kind, shards=None, shard_rank=None) for kind in found]


def split(module: GPT, mesh: DeviceMesh) -> GPT:
    parallelize_module(module, mesh, {"tokens": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel()})
    for block in module.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "attention.qkv": ColwiseParallel(),
                "attention.out": RowwiseParallel(),
                "up": ColwiseParallel(),
                "down": RowwiseParallel(),
            },
        )
    return module


def sharded(module: GPT, mesh: DeviceMesh) -> GPT:
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def test_a_plan_under_fsdp2_is_what_a_card_says(world: None) -> None:
    found = live(sharded(demo(), init_device_mesh("cpu", (WORLD,))))
    plan = Plan(strategy="fsdp2", layout=Layout(world_size=WORLD, shard=WORLD, shard_rank=RANK))
    assert without_shards(found) == list(inventory(MODEL, plan))


def test_a_plan_under_fsdp1_is_what_a_card_says(world: None) -> None:
    module = FullyShardedDataParallel(
        demo(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=CPU
    )
    plan = Plan(strategy="fsdp1", layout=Layout(world_size=WORLD, shard=WORLD, shard_rank=RANK))
    assert list(live(module)) == list(inventory(MODEL, plan))


@pytest.mark.parametrize("vocab", [100, 101])
def test_a_plan_under_tensor_parallel_is_what_a_card_says(world: None, vocab: int) -> None:
    found = live(split(demo(vocab), init_device_mesh("cpu", (WORLD,))))
    layout = Layout(world_size=WORLD, tensor=WORLD, tensor_rank=RANK)
    assert list(found) == list(inventory(replace(MODEL, vocab=vocab), Plan(strategy="tp", layout=layout)))


def test_a_plan_under_fsdp2_and_tensor_parallel_is_what_a_card_says(world: None) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found = live(sharded(split(demo(), mesh["tp"]), mesh["dp"]))
    layout = Layout(world_size=WORLD, shard=2, tensor=2, tensor_rank=1)
    assert without_shards(found) == list(inventory(MODEL, Plan(strategy="fsdp2", layout=layout)))
    assert recognise(found, Plan(strategy="fsdp2", layout=layout), heads=4) == recognise(live(demo()), Plan(), heads=4)


def test_the_demos_model_is_recognised_its_heads_only_when_they_are_told() -> None:
    told = recognise(live(demo()), Plan(), heads=4)
    assert told == replace(MODEL, kv_heads=4, head_dim=16, ffn=256)
    guessed = recognise(live(demo()), Plan())
    assert guessed is not None
    assert (guessed.heads, guessed.head_dim, guessed.options) == (1, 64, {"heads_guessed": True})


LLAMA = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 96, "vocab_size": 500}  # fmt: skip
GPT2 = {"n_layer": 2, "n_embd": 48, "n_head": 3, "vocab_size": 99, "n_positions": 32}
MOE = {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@pytest.mark.parametrize(
    ("cls", "keys", "says"),
    [
        ("GPT2LMHeadModel", GPT2, Model(family="gpt2", layers=2, hidden=48, heads=3, kv_heads=3, head_dim=16, ffn=192,
                                        vocab=99, positions=32, tied=True)),
        ("LlamaForCausalLM", LLAMA, Model(family="llama")),
        ("LlamaForCausalLM", {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
         Model(family="llama", tied=True, options={"qkv_bias": True, "o_bias": True, "mlp_bias": True})),
        ("Qwen2ForCausalLM", LLAMA, Model(family="llama", options={"qkv_bias": True})),
        ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 16}, Model(family="llama", options={"qk_norm": "head"})),
        ("Gemma2ForCausalLM", {**LLAMA, "head_dim": 16}, Model(family="llama", tied=True, options={"norms": "both"})),
        ("MixtralForCausalLM", {**LLAMA, "num_local_experts": 5}, Model(family="llama", experts=5)),
        ("Qwen3MoeForCausalLM", MOE, Model(family="llama", experts=4, ffn=24, options={"qk_norm": "head"})),
        ("GPTNeoXForCausalLM", LLAMA, Model(family="gpt-neox", layers=3, hidden=64, heads=4, kv_heads=4, head_dim=16,
                                            ffn=96, vocab=500)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_model_of_transformers_is_recognised(cls: str, keys: dict[str, object], says: Model) -> None:
    architecture = getattr(transformers, cls)
    module = architecture(architecture.config_class(**keys))
    if says.family == "llama":
        says = replace(says, layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=says.ffn or 96, vocab=500)
    assert recognise(live(module), Plan(), heads=says.heads) == says


@pytest.mark.parametrize("name", [name for name in names() if name.startswith(("gpt2", "llama", "mi", "qwen"))])
def test_a_well_known_model_is_recognised_by_shapes_alone(name: str) -> None:
    model = find(name)
    plan = Plan(layout=Layout(world_size=2, tensor=1 if model.heads % 2 else 2), batch=Batch(sequence_length=77))
    found = recognise(inventory(model, plan), plan)
    assert found is not None
    same = ("family", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "tied", "experts")
    assert [getattr(found, key) for key in same] == [getattr(model, key) for key in same]
    assert found.positions == (1024 if model.family == "gpt2" else 77)
    assert found.options.get("qkv_bias", False) == model.options.get("qkv_bias", False)


def test_other_shapes_are_not_recognised() -> None:
    whole = inventory(MODEL, Plan())
    plan = Plan()
    kinds = list(whole)
    assert recognise(whole, plan) is not None
    assert recognise(Inventory(), plan) is None
    assert recognise(Inventory.of(kinds[:2] + kinds[3:]), plan) is None
    assert recognise(Inventory.of([*kinds, Kind((64,), "float32")]), plan) is None
    assert recognise(Inventory.of([*kinds, Kind((64, 65), "float32")]), plan) is None
    assert recognise(whole, plan, heads=5) is None
    assert recognise(inventory(MODEL, Plan(lora=Lora())), plan) is None
    assert recognise(whole, Plan(layout=Layout(world_size=2, pipeline=2))) is None
    assert recognise(Inventory.of([Kind((3, 64, 7, 7), "float32"), Kind((64,), "float32")]), plan) is None


def test_a_tied_model_is_told_by_its_order_from_one_with_a_head_and_no_positions() -> None:
    # The same shapes: [vocabulary, positions] in front, or the vocabulary in front and the head behind.
    square = Model(family="gpt", layers=2, hidden=64, heads=1, vocab=32, positions=32, tied=True)
    neox = Model(family="gpt-neox", layers=2, hidden=64, heads=1, ffn=256, vocab=32)
    for model in (square, neox):
        found = recognise(inventory(model, Plan()), Plan())
        assert found is not None
        assert (found.family, found.tied) == (model.family, model.tied)


def test_embeddings_of_the_blocks_own_shapes_are_recognised_all_the_same() -> None:
    for vocab, positions in ((64, 64), (256, 64), (192, 256), (64, 192)):
        model = replace(MODEL, vocab=vocab, positions=positions)
        found = recognise(inventory(model, Plan()), Plan(), heads=4)
        assert found is not None
        assert (found.family, found.layers, found.vocab, found.positions) == ("gpt", 3, vocab, positions)


def test_guessed_heads_are_as_narrow_as_the_jobs_tensor_parallel_ranks_ask_for() -> None:
    plan = Plan(layout=Layout(world_size=2, replicate=2))
    found = recognise(inventory(MODEL, plan), plan)
    assert found is not None
    assert (found.heads, found.kv_heads, found.head_dim) == (1, 1, 64)
    plan = Plan(layout=Layout(world_size=4, tensor=4))
    split = recognise(inventory(MODEL, plan), plan)
    assert split is not None
    assert (split.heads, split.kv_heads, split.head_dim) == (4, 4, 16)
    assert split.options["heads_guessed"]
