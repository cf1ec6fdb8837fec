"""Answers about parameters: splits, adapters, quantized weights, published sizes."""

from __future__ import annotations

from dataclasses import replace

from case_table import Case, NotAsked, answers

from ranktop.budget.inventory import Inventory
from ranktop.budget.model import Model
from ranktop.budget.models.catalogue import find
from ranktop.budget.models.huggingface import model_of
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Layout, Lora, OptimizerPlan, Plan, Precision
from ranktop.budget.states import expected_states
from ranktop.budget.terms import STATES

REFERENCE = Model(family="gpt", layers=4, hidden=256, heads=4, vocab=1024, positions=128)

# The runs' names of the reference model's linear layers.
ROLES = {"qkv": "qkv", "o": "o", "f": "up", "p": "down"}

ADAMW = OptimizerPlan(name="AdamW", count=1)


def dtype(case: Case, key: str = "dtype") -> str:
    return str(case.inputs[key]).removeprefix("torch.")


def parameter_bytes(found: Inventory, trainable: bool | None = None) -> int:
    return sum(kind.numel * kind.itemsize for kind in found if trainable in (None, kind.trainable))


def states(found: Inventory, plan: Plan, *categories: str) -> int:
    amounts = expected_states(found, plan).at("step_end")
    return sum(amounts[name].bytes or 0 for name in categories)


@answers("own MemTracker run, DTensor parallelize_module", "param_bytes_per_rank")
def split_blocks(case: Case) -> float:
    """The runs have blocks alone: what FSDP would wrap, as a unit each."""
    tp = int(case.inputs["tp"])
    model = replace(REFERENCE, layers=int(case.inputs["L"]), hidden=int(case.inputs["h"]), heads=int(case.inputs["a"]))
    plan = Plan(strategy="fsdp2", layout=Layout(world_size=tp, tensor=tp), precision=Precision(parameters=dtype(case)))
    return sum(kind.numel * kind.itemsize for kind in inventory(model, plan) if kind.unit > 0)


def adapters(case: Case) -> tuple[Inventory, Plan]:
    lora = Lora(
        rank=int(case.inputs["r"]),
        targets=tuple(ROLES[target] for target in case.inputs["targets"]),
        dtype=dtype(case, "lora_dtype"),
    )
    plan = Plan(precision=Precision(parameters=dtype(case)), lora=lora, optimizer=ADAMW, host=True)
    return inventory(REFERENCE, plan), plan


@answers("own PEFT LoRA run", "trainable_bytes")
def adapters_alone(case: Case) -> float:
    return parameter_bytes(adapters(case)[0], trainable=True)


@answers("own PEFT LoRA run", "end")
def after_a_step_with_adapters(case: Case) -> float:
    found, plan = adapters(case)
    return states(found, plan, "parameters", "optimizer")


@answers("bitsandbytes NF4 on CPU")
def quantized_weight(case: Case) -> float:
    model = Model(family="llama", layers=1, hidden=4096, heads=32, ffn=4096, vocab=8)
    form = "nf4-double" if "double_quant=True" in case.case else "nf4"
    whole = [inventory(replace(model, layers=n), Plan(lora=Lora(quantized=form))) for n in (1, 2)]
    # Seven weights of 4096 x 4096 and two norms are what a further block adds.
    block = parameter_bytes(whole[1], trainable=False) - parameter_bytes(whole[0], trainable=False)
    return (block - 2 * 4096 * 4) / 7


@answers("HF accelerate docs model_size_estimator.md", "weights")
def published_weights(case: Case) -> float:
    sizes = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    if case.inputs["model"] != "bert-base-cased":
        raise NotAsked("the case does not state the model's shape")
    cased = {"model_type": "bert", "architectures": ["BertModel"], **sizes, "vocab_size": 28996}
    return parameter_bytes(inventory(model_of(cased), Plan())) / 2**20


@answers("LLaMA-Factory README", "bytes per param")
def rule_of_thumb(case: Case) -> float:
    model = find("llama-2-7b")
    count = inventory(model, Plan()).numel
    bf16 = Precision(parameters="bfloat16")
    # LLaMA-Factory quantizes the scales too unless told otherwise.
    quantized = {"QLoRA 8-bit": "int8", "QLoRA 4-bit": "nf4-double"}.get(case.case)
    if case.case == "full bf16/fp16 mixed":
        plan = Plan(precision=replace(bf16, master="float32"), optimizer=ADAMW)
    elif case.case == "full pure_bf16":
        plan = Plan(precision=bf16, optimizer=ADAMW)
    else:
        plan = Plan(precision=bf16, optimizer=ADAMW, lora=Lora(quantized=quantized))
    return states(inventory(model, plan), plan, *STATES) / count
