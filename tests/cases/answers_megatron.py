"""Published readings of Megatron's own test jobs, and its estimator's outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from case_table import Case, NotAsked, answers

from ranktop.budget import megatron, megatron_estimate
from ranktop.budget.activations.megatron import activations
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import Model
from ranktop.budget.models.megatron import padded
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Batch, Fsdp, Layout, OptimizerPlan, Pipeline, Plan, Precision
from ranktop.budget.terms import Amount

ADAM = OptimizerPlan(name="AdamW", count=1)


def _feature(case: Case, *words: str) -> bool:
    return any(word in case.case for word in words)


def _local(case: Case) -> bool:
    """Jobs named ``gpt3_mcore_tp...`` run Megatron's own layers, all others TransformerEngine's."""
    return _feature(case, "gpt3_mcore_tp")


def model_of(case: Case) -> Model:
    """Return the model of a test job: what its inputs say, and what only its name does."""
    i = case.inputs
    swiglu = bool(i["swiglu"])
    # Megatron's default width: 4 h, or 2/3 of it in multiples of 64 when it is gated.
    ffn = i.get("ffn") or (int(4 * i["h"] * 2 / 3 / 64) * 64 if swiglu else 4 * i["h"])
    layers = i["L"]
    if _feature(case, "uneven_pipeline"):
        layers = 2 * i["pp"]  # of stages with 2, 4, 4, 2 layers the last one is like that of 2, 2, 2, 2
    options: dict[str, bool | int | float | str] = {
        "swiglu": swiglu,
        "bias": bool(i["bias"]),
        "rope": _feature(case, "rope_embeddings"),
        "qk_norm": _feature(case, "qk_layernorm"),
        "local_layers": _local(case),
        "fused_softmax": not _feature(case, "uninstall_te"),
    }
    if _feature(case, "moe_mcore_te_ep8"):
        options |= {"expert_ffn": 1024, "dispatcher": "allgather"}
    return Model(
        name=case.case,
        family="megatron-gpt",
        layers=layers,
        hidden=i["h"],
        heads=i["a"],
        kv_heads=i["gqa"],
        ffn=ffn,
        vocab=i["Vp"],
        positions=i["s"],
        tied=not i["untie"],
        dropout=0.0 if _feature(case, "cp2_pp2_ep2") else 0.1,
        experts=i["E"] or 0,
        experts_per_token=2 if _feature(case, "top2router", "etp1_ep4", "ep8") else 1,
        options=options,
    )


def _expert_parallel(case: Case) -> int:
    """Return the size over which experts are split as if tensor parallel were the same for them: same elements."""
    i = case.inputs
    own: int = 1 if _feature(case, "etp1") else 2 if _feature(case, "etp2") else i["tp"]
    size: int = i["ep"] * own // i["tp"]
    return max(1, size)


def plan_of(case: Case) -> Plan:
    """Return the plan of the job's last rank, whose allocator the readings are of."""
    if _feature(case, "defer_embedding_wgrad"):
        raise NotAsked("the head's weight gradient is deferred; for how many micro-batches is not among the inputs")
    i = case.inputs
    data = i["dp"]
    shard = data if i["do"] else 1
    replicate = 1 if i["do"] else data
    if _feature(case, "multi_dist_optimizer_instances"):
        replicate, shard = 2, data // 2
    virtual = i["vp"] or 1
    micro = i["gbs"] // i["mbs"] // data
    a100 = "a100" in case.source
    attention = {"unfused": "eager", "flash": "flash"}.get(i["attn"] or "", "flash" if a100 else "sdpa")
    if _local(case):
        attention = "eager"
    half = "float16" if i["fp16"] else "bfloat16"
    return Plan(
        strategy="3d",
        stack="megatron",
        layout=Layout(
            world_size=data * i["tp"] * i["pp"] * i["cp"],
            replicate=replicate,
            shard=shard,
            tensor=i["tp"],
            pipeline=i["pp"],
            context=i["cp"],
            expert=_expert_parallel(case),
            pipeline_rank=i["pp"] - 1,
        ),
        precision=Precision(parameters=half, master="float32", gradients="float16" if i["fp16"] else None),
        optimizer=ADAM,
        fsdp=Fsdp(sharding="full") if _feature(case, "zp_z3", "fsdp") else None,
        batch=Batch(micro_batch=i["mbs"], sequence_length=i["s"], accumulation=micro),
        checkpointing=i["rc"] or "none",
        attention=attention,
        loss="megatron-fused" if _feature(case, "cross_entropy_loss_fusion") else "megatron",
        sequence_parallel="megatron" if i["sp"] else "",
        pipeline=Pipeline(
            schedule="interleaved" if virtual > 1 else "1f1b", micro_batches=micro, virtual=virtual
        ) if i["pp"] > 1 else None,
    )  # fmt: skip


def _held(case: Case, plan: Plan, model: Model) -> tuple[Inventory, Plan]:
    found = inventory(model, plan)
    if not _feature(case, "muon"):
        return found, plan
    # Muon updates matrices, Adam embeddings and vectors.
    rows = padded(model, plan.layout.tensor).vocab // plan.layout.tensor
    kinds = tuple(
        replace(kind, group=0 if len(kind.shape) > 1 and kind.shape[0] not in (rows, model.positions) else 1)
        for kind in found.kinds
    )
    return replace(found, kinds=kinds), replace(plan, groups=(OptimizerPlan(name="Muon", count=1), ADAM))


def _workspaces(case: Case) -> Amount:
    nondeterministic = _feature(case, "nondeterministic", "reshard_2x1x4")
    return megatron.workspaces(
        8 if "a100" in case.source else 9,
        cublas_config="" if nondeterministic else ":4096:8",
        transformer_engine=not _local(case) or bool(case.inputs["E"]),
        grouped_gemm=_feature(case, "groupedGEMM", "top2router", "etp1_ep4", "moe_mcore_te_ep8"),
    )


def _total(case: Case, wanted: tuple[str, ...]) -> float:
    model, plan = model_of(case), plan_of(case)
    held, plan = _held(case, plan, model)
    found = megatron.moments(held, plan, activations(model, plan))
    sizes: list[int] = []
    for moment in wanted:
        values: list[Any] = [amount.bytes for amount in found[moment].values()]
        sizes.append(sum(values))
    return max(sizes) + (_workspaces(case).bytes or 0)


@answers("Megatron-LM functional-test golden values", "torch.cuda max_memory_allocated")
def peak(case: Case) -> float:
    """Highest point of a step."""
    return _total(case, ("forward", "backward", "optimizer_step", "step_end"))


@answers("Megatron-LM functional-test golden values", "torch.cuda memory_allocated")
def steady(case: Case) -> float:
    """What is left between steps."""
    return _total(case, ("step_end",))


def _estimated(case: Case) -> megatron_estimate.Estimate:
    i = case.inputs
    stages, virtual, data = i.get("pp", 1), i.get("vp", 1), i["dp"]
    model = Model(
        name=case.case,
        family="megatron-gpt",
        layers=i["L"],
        hidden=i["h"],
        heads=i["a"],
        kv_heads=i.get("q", i["a"]),
        ffn=i.get("ffn", 4 * i["h"]),
        vocab=i["V"],
        positions=i["s"],
        tied=not i.get("untie", False),
        experts=i.get("E", 0),
        options={
            "swiglu": i.get("swiglu", False),
            "norm": i.get("norm", "LayerNorm").lower(),
            "expert_ffn": i.get("moe", 0),
        },
    )
    plan = Plan(
        strategy="3d",
        stack="megatron",
        layout=Layout(world_size=data * i["tp"] * stages, shard=data, tensor=i["tp"], pipeline=stages,
                      expert=i.get("ep", 1)),
        batch=Batch(micro_batch=i["mbs"], sequence_length=i["s"], accumulation=i["num_microbatches"]),
        checkpointing=i.get("rc", "none"),
        sequence_parallel="megatron" if i.get("sp") else "",
        pipeline=Pipeline(micro_batches=i["num_microbatches"], virtual=virtual) if stages > 1 else None,
    )  # fmt: skip
    return megatron_estimate.estimate(model, plan, distributed_optimizer=i.get("do", True))


@answers("Megatron-LM megatron/training/theoretical_memory_usage.py", "weight_and_optimizer_bytes")
def estimated_states(case: Case) -> float:
    """Megatron's own arithmetic of states."""
    return _estimated(case).states


@answers("Megatron-LM megatron/training/theoretical_memory_usage.py", "activation_bytes")
def estimated_activations(case: Case) -> float:
    """Megatron's own arithmetic of activations."""
    return _estimated(case).activations
