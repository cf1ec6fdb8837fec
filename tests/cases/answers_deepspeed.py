"""How the product is asked for what DeepSpeed's own runs, tools and documents say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from case_table import UNITS, Case, NotAsked, answers

from ranktop.budget import estimators
from ranktop.budget.activations.closed import activations
from ranktop.budget.configs import deepspeed as deepspeed
from ranktop.budget.model import Model
from ranktop.budget.models.catalogue import find
from ranktop.budget.models.huggingface import model_of
from ranktop.budget.models.place import inventory
from ranktop.budget.models.tensors import tensors
from ranktop.budget.plan import Batch, Layout, Lora, OptimizerPlan, Plan, Precision, Zero
from ranktop.budget.states import expected_states
from ranktop.budget.terms import STATES, Amount
from ranktop.budget.zero import moments as zero_moments
from ranktop.budget.zero import states as zero

REFERENCE = Model(
    name="reference GPT", family="gpt", layers=4, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=1024, vocab=1024,
    positions=128, options={"bias": True},
)  # fmt: skip
"""The model of the counted runs, 3,716,608 parameters."""

T0_3B = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 2048, "d_kv": 64, "d_ff": 5120,
    "num_layers": 24, "num_decoder_layers": 24, "num_heads": 32, "vocab_size": 32128, "n_positions": 512,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip


def _total(row: dict[str, Amount]) -> int:
    unknown = [f"{name}: {amount.rule}" for name, amount in row.items() if amount.bytes is None]
    if unknown:
        raise NotAsked("; ".join(unknown))
    return sum(amount.bytes or 0 for amount in row.values())


_OWN_MOMENTS = {
    "step_bytes": "step_start",
    "step_peak_bytes": "optimizer_step",
    "bwd_peak_bytes": "backward",
}
"""Counted quantity -> moment; after ``engine.step`` memory is as at the start of the next step."""


def _zero_plan(case: Case) -> Plan:
    """The plan of a counted run: rank 0 of a job on the host, its options read as DeepSpeed's JSON."""
    inputs = case.inputs
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": inputs["b"],
        "gradient_accumulation_steps": inputs["gas"],
        "zero_optimization": inputs["zero_optimization"],
        "bf16": {"enabled": inputs["precision"] == "bf16"},
        "data_types": {"grad_accum_dtype": inputs["grad_accum_dtype"]},
    }
    ranks = int(inputs["N"])
    pieces = deepspeed.plan_pieces(deepspeed.read(json.dumps(config)), world_size=ranks)
    stage = pieces.zero.stage
    return Plan(
        strategy=f"zero{stage}",
        layout=Layout(world_size=ranks, shard=ranks) if stage else Layout(world_size=ranks, replicate=ranks),
        zero=pieces.zero,
        precision=pieces.precision,
        optimizer=OptimizerPlan(name="AdamW", count=1, options={"foreach": True}),
        batch=Batch(micro_batch=pieces.micro_batch, sequence_length=128, accumulation=pieces.accumulation),
        host=True,
    )


@answers("own run of deepspeed")
def own_run(case: Case) -> float:
    """Bytes that a rank of a real job held, by moment."""
    plan = _zero_plan(case)
    parameters = inventory(REFERENCE, plan)
    if parameters.numel != case.inputs["params"]:
        raise NotAsked("another model than the reference GPT")
    if case.quantity == "bwd_bytes":
        return _total(zero_moments.between(parameters, plan))
    alive = activations(REFERENCE, plan)
    if case.quantity == "engine_init_bytes":
        return _total(zero_moments.moments(parameters, plan, alive, first_step=True)["step_start"])
    return _total(zero_moments.moments(parameters, plan, alive)[_OWN_MOMENTS[case.quantity]])


@answers("DeepSpeed estimate_zero2", "estimator_")
def estimate_zero2(case: Case) -> float:
    """What DeepSpeed's function returns for ZeRO-2."""
    inputs = case.inputs
    found = estimators.deepspeed_zero2(
        int(inputs["params"]),
        inputs["gpus_per_node"],
        inputs["nodes"],
        offload=inputs["offload_optimizer"],
        buffer_factor=inputs["additional_buffer_factor"],
    )
    return found.gpu if case.quantity == "estimator_gpu_bytes" else found.cpu


@answers("DeepSpeed estimate_zero3", "estimator_")
def estimate_zero3(case: Case) -> float:
    """What DeepSpeed's function returns for ZeRO-3."""
    inputs = case.inputs
    found = estimators.deepspeed_zero3(
        int(inputs["params"]),
        int(inputs["largest_layer_params"]),
        inputs["gpus_per_node"],
        inputs["nodes"],
        offload_optimizer=inputs["offload_optimizer"],
        offload_parameters=inputs["offload_param"],
        zero_init=inputs["zero_init"],
    )
    return found.gpu if case.quantity == "estimator_gpu_bytes" else found.cpu


@answers("DeepSpeed docs/code-docs/source/memory.rst")
@answers("DeepSpeed memory.rst")
@answers("HF transformers docs/source/en/deepspeed.md")
def documented_estimate(case: Case) -> float:
    """What the documents print as the estimator's output."""
    if "STALE" in case.note:
        raise NotAsked("the page prints an older formula (4P + 16P/N) than the function's: see docs/planning.md")
    inputs = case.inputs
    params, gpus = int(inputs["params"]), int(inputs.get("gpus_per_node") or inputs["N"])
    if "ZeRO-2" in case.case:
        return estimators.deepspeed_zero2(params, gpus).printed[1]
    layer = int(inputs["largest_layer_params"])
    if "T0_3B" in case.case:
        # The page prints the largest layer in whole millions, rounded down; it is the embedding.
        layer = max(tensor.numel for tensor in tensors(model_of(T0_3B)))
    found = estimators.deepspeed_zero3(
        params,
        layer,
        gpus,
        offload_optimizer="none/none" not in case.case,
        offload_parameters="cpu/cpu" in case.case,
    )
    return found.printed[1] if case.unit == "GiB" else found.gpu / UNITS[case.unit]


@answers("ZeRO, arXiv:1910.02054")
def zero_paper(case: Case) -> float:
    """The paper's model states: whole gradients at stages 0 and 1, as accumulation keeps them; else after backward."""
    ranks = int(case.inputs["N"])
    digits = [d for d in case.inputs["strategy"] if d.isdigit()]
    stage = int(digits[0]) if digits else 0
    plan = Plan(
        strategy=f"zero{stage}",
        layout=Layout(world_size=ranks, shard=ranks) if stage else Layout(world_size=ranks, replicate=ranks),
        zero=Zero(stage=stage),
        precision=Precision(parameters="float16", master="float32"),
        optimizer=OptimizerPlan(name="FusedAdam", count=1),
        batch=Batch(accumulation=2 if stage < 2 else 1),
    )
    parameters = inventory(Model(count=int(case.inputs["params"])), plan)
    row = zero.expected(parameters, plan)["forward_end"] if stage < 2 else zero_moments.between(parameters, plan)
    return _total({name: row[name] for name in STATES}) / UNITS[case.unit]


@answers("LLaMA-Factory README")
def bytes_per_parameter(case: Case) -> float:
    """What a parameter costs on one GPU by its states; where the kind depends on shapes, of a 7B Llama."""
    kind = case.case
    if kind.startswith("full"):
        model = Model(count=int(case.inputs["params"]))
        precision = Precision(parameters="bfloat16", master="float32" if "mixed" in kind else None)
        plan = Plan(precision=precision, optimizer=OptimizerPlan(name="AdamW", count=1))
    else:
        model = find("llama-2-7b")
        quantized = {"8-bit": "int8", "4-bit": "nf4-double"}.get(kind.rpartition(" ")[2])
        plan = Plan(
            precision=Precision(parameters="bfloat16"),
            optimizer=OptimizerPlan(name="AdamW", count=1),
            lora=Lora(rank=8, targets=("q", "v"), quantized=quantized),
        )
    row = expected_states(inventory(model, plan), plan).at("backward_end")
    after = expected_states(inventory(model, plan), plan).at("step_end")
    size = _total({"parameters": row["parameters"], "gradients": row["gradients"], "optimizer": after["optimizer"]})
    return size / inventory(model, replace(plan, lora=None)).numel
