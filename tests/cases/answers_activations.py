"""Known answers about activations, asked of the product."""

from __future__ import annotations

import re
from typing import Any, Final

from case_table import Case, NotAsked, answers

from ranktop.budget.activations import published
from ranktop.budget.activations.closed import activations
from ranktop.budget.expected import expected
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Batch, Layout, Plan, Precision
from ranktop.budget.terms import Amount

PRECISIONS: Final = {
    "fp32": Precision(),
    "bf16": Precision(parameters="bfloat16"),
    "amp": Precision(autocast="bfloat16"),
}

WORDS: Final = re.compile(r"HF (Llama|GPT2) (sdpa|eager)(?: kv(\d+))?(?: f(\d+))?(?: V(\d+))?(?: nodrop)?")
"""How the cases name their models of transformers."""


def gpt(inputs: dict[str, Any]) -> Model:
    """The reference model, with what a case changes of it."""
    vocab, layers, hidden, heads, positions = (
        int(inputs.get(key, default)) for key, default in (("V", 1024), ("L", 4), ("h", 256), ("a", 4), ("S", 128))
    )
    return Model(
        family="gpt",
        vocab=vocab,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        positions=positions,
        tied=str(inputs.get("tied")) == "True",
        dropout=float(inputs.get("drop", 0)),
        options={"bias": str(inputs.get("bias", "True")) == "True"},
    )


@answers("own MemTracker run, FakeTensorMode", "activations_after_forward")
def after_forward(case: Case) -> float:
    """MemTracker's activations of the reference GPT on the CPU, without tokens and labels."""
    inputs = case.inputs
    plan = Plan(
        precision=PRECISIONS[inputs["prec"]],
        batch=Batch(micro_batch=inputs["B"], sequence_length=int(inputs.get("S", 128)), accumulation=inputs["ga"]),
        checkpointing=inputs.get("ckpt", "none"),
        attention=inputs.get("mode", "sdpa"),
        loss="plain" if str(inputs.get("fp32_logits", "True")) == "False" else "upcast",
        host=True,
    )
    found = activations(gpt(inputs), plan)
    return found.saved - found.inputs


@answers("own MemTracker run, DTensor parallelize_module", "activations_after_forward")
@answers("own MemTracker run, torchtitan-style", "activations_after_forward")
def tensor_parallel(case: Case) -> float:
    """Four blocks alone (no embedding, head or loss), separate q, k and v, split by DTensor."""
    inputs = case.inputs
    model = gpt({**inputs, "V": 1})
    model.options["separate_qkv"] = True
    sequence = ""
    if "torchtitan" in case.source:
        sequence = "dtensor"
    elif inputs["sp"]:
        sequence = "dtensor-each"
    plan = Plan(
        strategy="tp",
        layout=Layout(world_size=inputs["tp"], tensor=inputs["tp"]),
        precision=PRECISIONS["bf16" if "bfloat16" in inputs["dtype"] else "fp32"],
        batch=Batch(micro_batch=inputs["B"], sequence_length=inputs["S"]),
        sequence_parallel=sequence,
        host=True,
    )
    return activations(model, plan).blocks


def small(inputs: dict[str, Any], layers: int) -> tuple[Model, str]:
    """The small model that a case's words describe, and its attention."""
    words = re.fullmatch(
        r"HF (Llama|GPT2) (sdpa|eager)(?: kv(\d+))?(?: f(\d+))?(?: V(\d+))?(?: nodrop)?", inputs["model"]
    )
    if words is None:
        raise NotAsked(f"the case's model '{inputs['model']}' is not described by words that are known")
    family, attention, kv_heads, ffn, vocab = words.groups()
    hidden = inputs["h"]
    model = Model(
        family={"Llama": "llama", "GPT2": "gpt2"}[family],
        vocab=int(vocab or 1024),
        layers=layers,
        hidden=hidden,
        heads=4,
        kv_heads=int(kv_heads or 4),
        head_dim=hidden // 4,
        ffn=int(ffn or 4 * hidden),
        positions=inputs["S"],
        tied=family == "GPT2",
    )
    return model, attention


def transformers_plan(case: Case, layers: int) -> tuple[Model, Plan]:
    """The model and the plan of one of the case's runs; it trains nothing after backward."""
    inputs = case.inputs
    model, attention = small(inputs, layers)
    plan = Plan(
        precision=PRECISIONS["amp" if inputs["amp"] else inputs["prec"]],
        batch=Batch(micro_batch=inputs["B"], sequence_length=inputs["S"]),
        checkpointing="full" if inputs["ckpt"] else "none",
        attention=attention,
        loss="hf",
        host=True,
    )
    return model, plan


@answers("own live-storage tracker, transformers", "activation_bytes_per_layer")
def per_layer(case: Case) -> float:
    """Half of what four layers keep beyond two."""
    four, two = (activations(*transformers_plan(case, layers)).saved for layers in (4, 2))
    return (four - two) / 2


@answers("own live-storage tracker, transformers", "backward_peak_minus_params")
def backward_peak(case: Case) -> float:
    """The whole budget's highest point of backward for the case's run of four layers, without parameters."""
    model, plan = transformers_plan(case, 4)
    found = expected(inventory(model, plan), plan, activations(model, plan), runtime=Amount(0, "not counted"))
    sizes = [amount.bytes for category, amount in found.at("backward").items() if category != "parameters"]
    return float(sum(size or 0 for size in sizes))


def korthikanti(inputs: dict[str, Any]) -> tuple[Model, Plan]:
    """A model of the paper's Table 3 under one of its methods."""
    method = inputs.get("method", "no parallelism")
    model = Model(
        family="gpt", layers=inputs.get("L", 1), hidden=inputs["h"], heads=inputs["a"], kv_heads=inputs["a"],
        head_dim=inputs["h"] // inputs["a"], ffn=4 * inputs["h"], dropout=0.1, vocab=51200, positions=inputs["s"],
    )  # fmt: skip
    ranks = inputs.get("tp", 1)
    plan = Plan(
        stack="megatron",
        layout=Layout(world_size=ranks, tensor=ranks),
        precision=PRECISIONS["bf16"],
        batch=Batch(micro_batch=inputs.get("b", 1), sequence_length=inputs["s"]),
        checkpointing="full" if "full" in method else "selective" if "selective" in method else "none",
        sequence_parallel="megatron" if "SP" in method else "",
        attention="eager",
    )
    return model, plan


@answers("Korthikanti et al. arXiv:2205.05198", "activation_bytes_per_layer")
def published_layer(case: Case) -> float:
    """The paper's formula, which the product shows beside its own number."""
    return published.layer(*korthikanti(case.inputs))


@answers("Korthikanti et al. sec 5", "5as/h")
def published_core(case: Case) -> float:
    """The core's share in units of s b h."""
    stream: int = case.inputs["s"] * case.inputs["h"]
    return published.core(*korthikanti(case.inputs)) / stream
