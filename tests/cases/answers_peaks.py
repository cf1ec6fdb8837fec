"""Answers for peaks, steady states, optimizer states and runtime constants."""

from __future__ import annotations

from typing import Any

from case_table import UNITS, Case, NotAsked, answers

from ranktop.budget import runtime
from ranktop.budget.activations.closed import activations
from ranktop.budget.expected import expected
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory
from ranktop.budget.optimizers.states import by_name, states_of
from ranktop.budget.plan import Batch, Ddp, Fsdp, Layout, Lora, Plan, Precision
from ranktop.budget.terms import Amount, Budget

PRECISIONS = {
    "fp32": Precision(),
    "amp": Precision(autocast="bfloat16"),
    "bf16": Precision(parameters="bfloat16"),
}
OPTIMIZERS = {"sgd": "sgd", "sgdm": "momentum", "adamw": "adamw", "adam": "adam"}


def model(i: dict[str, Any]) -> Model:
    """The reference model with a case's sizes."""
    h, heads = int(i.get("h", 256)), int(i.get("a", 4))
    return Model(
        name="refmodel",
        family="gpt",
        layers=int(i.get("L", 4)),
        hidden=h,
        heads=heads,
        kv_heads=heads,
        head_dim=h // heads,
        ffn=4 * h,
        vocab=int(i.get("V", 1024)),
        positions=int(i.get("S", 128)),
        tied=i.get("tied", False) in (True, "True"),
        dropout=float(i.get("drop", 0.0)),
        options={"bias": i.get("bias", True) in (True, "True")},
    )


def plan(i: dict[str, Any], **more: Any) -> Plan:
    """How a counted run was trained: on the CPU, so that its kernels and defaults are the host's."""
    options = {k: bool(i[k]) for k in ("foreach", "fused") if i.get(k) is not None}
    fields: dict[str, Any] = {
        "precision": PRECISIONS[i.get("prec", "fp32")],
        "optimizer": by_name(OPTIMIZERS[i.get("opt", "adamw")], **options),
        "batch": Batch(
            micro_batch=int(i.get("B", 4)), sequence_length=int(i.get("S", 128)), accumulation=int(i.get("ga", 1))
        ),
        "checkpointing": i.get("ckpt") or "none",
        "attention": i.get("mode", "sdpa"),
        "loss": "upcast" if i.get("fp32_logits", True) in (True, "True") else "plain",
        "host": True,
    }
    return Plan(**{**fields, **more})


def budget(i: dict[str, Any], of: Plan) -> Budget:
    """The product's budget of a case, without the interpreter."""
    shape = model(i)
    return expected(inventory(shape, of), of, activations(shape, of), runtime=Amount(0, "not in the tracker"))


def known(size: int | None) -> float:
    if size is None:
        raise NotAsked("the product has no rule for it")
    return float(size)


def peak(found: Budget) -> float:
    """The highest total of a step."""
    at = found.peak()
    return known(None if at is None else found.total(at))


@answers("own MemTracker run, FakeTensorMode", "peak_allocated")
def single_peak(case: Case) -> float:
    return peak(budget(case.inputs, plan(case.inputs)))


@answers("own MemTracker run, FakeTensorMode", "steady_state")
def single_steady(case: Case) -> float:
    return known(budget(case.inputs, plan(case.inputs)).total("step_start"))


MIXED = {"bf16_fp32": ("bfloat16", "float32"), "bf16_bf16": ("bfloat16", "bfloat16")}


def fsdp2(i: dict[str, Any]) -> Plan:
    ranks, hybrid = int(i["N"]), bool(i.get("hsdp"))
    compute, reduce = MIXED.get(i.get("mp") or "", (None, None))
    stored = "bfloat16" if i["prec"] == "bf16" else "float32"
    replicas = 2 if hybrid else 1
    kept = str(i.get("raf")) == "False"
    return plan(
        i,
        strategy="fsdp2",
        fsdp=Fsdp(sharding=("hybrid-" if hybrid else "") + "grad-op" if kept else "hybrid" if hybrid else "full"),
        layout=Layout(world_size=ranks, replicate=replicas, shard=ranks // replicas),
        precision=Precision(parameters=stored, compute=compute, reduce=reduce),
    )


@answers("own FSDPMemTracker run", "peak_allocated")
def fsdp2_peak(case: Case) -> float:
    return peak(budget(case.inputs, fsdp2(case.inputs)))


@answers("own FSDPMemTracker run", "steady_state")
def fsdp2_steady(case: Case) -> float:
    return known(budget(case.inputs, fsdp2(case.inputs)).total("step_start"))


FSDP1 = {"FULL_SHARD": "full", "SHARD_GRAD_OP": "grad-op", "NO_SHARD": "none", "HYBRID_SHARD": "hybrid"}


def fsdp1(i: dict[str, Any]) -> Plan:
    words = i["strategy"].removeprefix("FSDP1 ")
    mixed, checkpointed = words.endswith("_mp"), words.endswith("_ckpt")
    sharding = FSDP1[words.removesuffix("_mp").removesuffix("_ckpt")]
    ranks = int(i["N"])
    return plan(
        {**i, "B": i["b"], "foreach": True},
        strategy="fsdp1",
        fsdp=Fsdp(version=1, sharding=sharding, use_orig_params=bool(i["use_orig_params"])),
        layout=Layout(world_size=ranks, replicate=ranks)
        if sharding == "none"
        else Layout(world_size=ranks, shard=ranks),
        precision=Precision(compute="bfloat16", reduce="float32") if mixed else Precision(),
        checkpointing="full" if checkpointed else "none",
    )


def fsdp1_total(case: Case, moment: str) -> float:
    i = case.inputs
    shape, of = model(i), fsdp1(i)
    first = case.quantity == "wrap_bytes"
    found = expected(
        inventory(shape, of), of, activations(shape, of), first_step=first, runtime=Amount(0, "not in the tracker")
    )
    return known(found.total(moment))


@answers("own dispatch-mode live-storage tracker", "wrap_bytes")
def fsdp1_wrap(case: Case) -> float:
    return fsdp1_total(case, "step_start")


@answers("own dispatch-mode live-storage tracker", "fwd_peak_bytes")
def fsdp1_forward(case: Case) -> float:
    return fsdp1_total(case, "forward")


@answers("own dispatch-mode live-storage tracker", "bwd_peak_bytes")
def fsdp1_backward(case: Case) -> float:
    return fsdp1_total(case, "backward")


@answers("own dispatch-mode live-storage tracker", "step_peak_bytes")
def fsdp1_step(case: Case) -> float:
    return fsdp1_total(case, "optimizer_step")


@answers("own dispatch-mode live-storage tracker", "end_bytes")
def fsdp1_end(case: Case) -> float:
    return fsdp1_total(case, "step_start")


def ddp(i: dict[str, Any]) -> Plan:
    options = Ddp(gradient_as_bucket_view=i["gabv"], bucket_cap_mb=i["cap"])
    return plan(i, strategy="ddp", ddp=options)


@answers("own MemTracker run, real CPU tensors, gloo", "peak_allocated")
def ddp_peak(case: Case) -> float:
    return peak(budget(case.inputs, ddp(case.inputs)))


@answers("own MemTracker run, real CPU tensors, gloo", "ddp_bucket_bytes")
def ddp_buckets(case: Case) -> float:
    return known(budget(case.inputs, ddp(case.inputs)).at("step_start")["buffers"].bytes)


@answers("own MemTracker run, real CPU tensors, gloo", "grad_bytes_outside_buckets")
def ddp_gradients(case: Case) -> float:
    found = budget(case.inputs, ddp(case.inputs)).at("backward_end")
    before = budget(case.inputs, ddp(case.inputs)).at("step_start")
    both = known(found["gradients"].bytes) + known(found["buffers"].bytes)
    return both - known(before["buffers"].bytes)


@answers("own ZeroRedundancyOptimizer")
def zero_redundancy(case: Case) -> float:
    i = case.inputs
    ranks = i["N"]
    layout = Layout(world_size=ranks, replicate=ranks, replicate_rank=i["rank"])
    of = plan(i, strategy="zero-redundancy", zero_redundancy=True, ddp=Ddp(), layout=layout, host=False)
    return known(expected(inventory(model(i), of), of, None).at("step_end")["optimizer"].bytes)


NAMES = {
    "Adafactor(torch.optim)": "adafactor", "Muon(2D)+AdamW(rest)": "muon", "SGD": "sgd", "SGD momentum": "momentum",
    "Adam": "adam", "Adam amsgrad": "amsgrad", "AdamW": "adamw", "RMSprop": "rmsprop", "NAdam": "nadam",
    "Adagrad": "adagrad", "Lion(lion_pytorch)": "lion", "torchao AdamW8bit": "adamw8bit_torchao",
    "torchao AdamW4bit": "adamw4bit", "torchao AdamWFp8": "adamw_fp8", "bnb AdamW8bit": "adamw8bit",
    "bnb Lion8bit": "lion8bit", "HF Adafactor(no momentum)": "adafactor_hf",
}  # fmt: skip


@answers("torch 2.13.0+cpu / bitsandbytes")
def optimizer_states(case: Case) -> float:
    i = case.inputs
    dtype = i["dtype"].removeprefix("torch.")
    of = Plan(optimizer=by_name(NAMES[i["optimizer"]]), precision=Precision(parameters=dtype))
    held = inventory(model(i), of)
    # The case leaves scalars out; those that stay on the device are one number for each parameter.
    scalars = [s for s in states_of(of.optimizer)[0] or () if s.like == "scalar" and s.on_device]
    return known(expected(held, of, None).at("step_end")["optimizer"].bytes) - 4 * len(scalars) * len(held)


@answers("pytorch issue #109888")
def context(case: Case) -> float:
    return runtime.CONTEXT / UNITS[case.unit]


@answers("NVIDIA/nccl issue #864")
def communicator(case: Case) -> float:
    # Of 2023: NCCL connected ring and tree at once.
    return runtime.nccl(peers=4) / UNITS[case.unit]


@answers("NVIDIA/nccl src/init.cc")
def receive_buffers(case: Case) -> float:
    return float(runtime.NCCL_RECEIVE)


@answers("pytorch aten/src/ATen/cuda/CublasHandlePool.cpp")
def workspace(case: Case) -> float:
    if "Lt" in case.case:
        return float(runtime.CUBLASLT_WORKSPACE)
    return float(runtime.CUBLAS_WORKSPACE if "cc 9" in case.case else runtime.CUBLAS_WORKSPACE_BEFORE)


ROLES = {"qkv": "qkv", "o": "o", "f": "up", "p": "down"}


def adapters(i: dict[str, Any]) -> Budget:
    """The reference model with PEFT's adapters on its linear layers."""
    lora = Lora(
        rank=int(i["r"]),
        targets=tuple(ROLES[name] for name in i["targets"]),
        dtype=i["lora_dtype"].removeprefix("torch."),
    )
    return budget(i, plan(i, lora=lora, precision=Precision(parameters=i["dtype"].removeprefix("torch."))))


@answers("own PEFT LoRA run", "bwd_peak")
def adapters_backward(case: Case) -> float:
    return known(adapters(case.inputs).total("backward"))


@answers("own PEFT LoRA run", "fwd")
def adapters_forward(case: Case) -> float:
    return known(adapters(case.inputs).total("forward_end"))
