"""What people usually get wrong about a strategy, with this run's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ranktop.budget.explain.explanation import Mistake
from ranktop.budget.explain.facts import Facts
from ranktop.budget.explain.mistakes_parallel import (
    data_parallel,
    ddp,
    fsdp,
    megatron,
    parameter_server,
    pipeline,
    tensor,
)
from ranktop.budget.explain.mistakes_zero import offload, zero_1_2, zero_3
from ranktop.budget.explain.pictures import parts_of
from ranktop.budget.terms import DTYPE_BYTES

GIB: Final = 1 << 30
SMALL: Final = 1 << 24
"""Bytes that are not worth a sentence."""


def mistakes(facts: Facts) -> tuple[Mistake, ...]:
    """Return those of the strategy first, then those of precision, activations and the step."""
    found: list[Mistake] = []
    for rule in (*_of(facts), precision, logits, layer, checkpointing, foreach, accumulation):
        found += rule(facts)
    return tuple(found)


def _of(facts: Facts) -> tuple[Callable[[Facts], Iterator[Mistake]], ...]:
    plan, strategy = facts.plan, facts.strategy
    found: list[Callable[[Facts], Iterator[Mistake]]] = []
    found += [data_parallel] if strategy == "dp" else []
    found += [parameter_server] if strategy == "ps" else []
    found += [ddp] if strategy == "ddp" else []
    if plan.zero is not None:
        found += [zero_3] if plan.zero.stage == 3 else [zero_1_2]
        found += [offload] if plan.zero.offload_optimizer != "none" else []
    found += [fsdp] if plan.fsdp is not None else []
    found += [tensor] if plan.layout.tensor > 1 else []
    found += [pipeline] if plan.layout.pipeline > 1 else []
    found += [megatron] if plan.stack == "megatron" else []
    return tuple(found)


def precision(facts: Facts) -> Iterator[Mistake]:
    """Autocast leaves weights in fp32; 16-bit weights come with masters."""
    plan, whole = facts.plan, facts.whole
    if plan.precision.autocast:
        casts = facts.activations.casts if facts.activations is not None else 0
        truth = "autocast computes in 16 bits, but weights ({weights}) and gradients stay fp32"
        truth += ", and the 16-bit copies that it makes come on top ({casts})" if casts else ""
        yield Mistake(
            claim="mixed precision halves weights and gradients",
            truth=truth,
            sizes={"weights": facts.at("step_start", "parameters"), "casts": casts},
            source="torch/amp/autocast_mode.py; counted",
        )
    elif whole.master and whole.optimizer is not None and whole.gradient is not None and len(whole.stored) == 1:
        stored = whole.stored[0][0]
        each = stored + whole.gradient + whole.optimizer
        full = 2 * whole.master + (whole.states or 0.0)
        compared = "as many as in fp32" if each == full else f"where fp32 has {full:g}"
        yield Mistake(
            claim="16-bit weights need half of what fp32 does",
            truth=f"{stored:g} + {whole.gradient} + {whole.optimizer:g} = {each:g} bytes per parameter, {compared}: "
            f"master weights ({{masters}} {_over(facts)}) make up for it. What halves is activations and traffic",
            sizes={"masters": whole.master * whole.trainable},
            source="Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1",
        )
    elif plan.fsdp is not None and plan.precision.compute in ("bfloat16", "float16"):
        yield Mistake(
            claim="mixed precision stores 16-bit weights",
            truth="shards, gradients and optimizer state stay fp32 ({states} on this rank between steps); only what is "
            "gathered and computed is 16-bit",
            sizes={"states": facts.at("step_start", "parameters") + facts.at("step_end", "optimizer")},
            source="torch/distributed/fsdp/_fully_shard/_fsdp_param.py",
        )


def _over(facts: Facts) -> str:
    """Return on how many ranks one copy of the optimizer's state lies."""
    parts = parts_of("optimizer", facts.plan)
    if parts == 1:
        return "on each rank"
    return "over all ranks" if parts == facts.plan.layout.world_size else f"over {parts} ranks"


def logits(facts: Facts) -> Iterator[Mistake]:
    """The head's logits and the loss around them."""
    saved = facts.part("backward_start", "activations", "logits")
    top = facts.part("backward", "activations", "logits")
    if max(saved, top) < max(SMALL, facts.most("activations") // 20):
        return
    model, batch, plan = facts.run.model, facts.plan.batch, facts.plan
    width = -(-model.vocab // plan.layout.tensor)
    shape = f"{batch.micro_batch} × {batch.sequence_length} × {width}"
    yield Mistake(
        claim="activations are the layers",
        truth=f"logits ({shape}) and the loss on them take {{most}} at their highest, of {{all}} activations; "
        + ("a chunked or fused loss never holds them all" if plan.loss != "chunked" else ""),
        sizes={"most": max(saved, top), "all": facts.most("activations")},
        source="torch/nn/functional.py cross_entropy: log-softmax and two gradients; counted",
    )


def layer(facts: Facts) -> Iterator[Mistake]:
    """34 sbh is one network's number."""
    found, model, plan = facts.activations, facts.run.model, facts.plan
    unit = (plan.batch.micro_batch or 0) * (plan.batch.sequence_length or 0) * model.hidden
    if found is None or not unit or plan.checkpointing == "full" or facts.run.activations is not None:
        return
    claimed, ours = 34 * unit, found.layer
    if plan.layout.tensor > 1 or abs(ours - claimed) < claimed // 50:
        return
    item = DTYPE_BYTES[plan.precision.autocast or plan.precision.compute or plan.precision.parameters]
    yield Mistake(
        claim="a layer saves 34 sbh bytes ({claimed})",
        truth=f"that is Megatron's GPT with dropout in 16 bits; a layer of this model saves {ours / unit:.3g} sbh "
        f"({{ours}}) with {plan.attention} attention in {8 * item} bits",
        sizes={"claimed": claimed, "ours": ours},
        source="Korthikanti et al. 2022, arXiv:2205.05198; counted with autograd's saved tensors",
    )


def checkpointing(facts: Facts) -> Iterator[Mistake]:
    """The recomputed block."""
    found = facts.activations
    if found is None or facts.plan.checkpointing != "full" or not found.recomputed:
        return
    yield Mistake(
        claim="with checkpointing only the blocks' inputs are left",
        truth="the inputs ({inputs}), and one block with everything ({block}) while its backward runs",
        sizes={"inputs": found.in_flight * found.blocks, "block": found.recomputed},
        source="torch/utils/checkpoint.py; counted",
    )


def foreach(facts: Facts) -> Iterator[Mistake]:
    """Temporaries of the optimizer's step."""
    size = facts.part("optimizer_step", "activations", "foreach")
    copies = facts.part("optimizer_step", "gradients", "master copies")
    if size + copies < SMALL:
        return
    name = facts.plan.optimizer.name
    truth = f"{name} with foreach, the default on GPUs, makes {{size}} of temporaries" if size else ""
    if copies:
        truth += (", and " if truth else "") + "the master weights want gradients of their own ({copies})"
    peak = facts.rank.budget.peak() == "optimizer_step"
    yield Mistake(
        claim="the optimizer's step needs no memory of its own",
        truth=truth + ("; here the step is the peak" if peak else "") + (". fused=True makes none" if size else ""),
        sizes={"size": size, "copies": copies},
        source="torch/optim, _multi_tensor_adam and the like; counted",
    )


def accumulation(facts: Facts) -> Iterator[Mistake]:
    """Gradients live through the forwards of the other micro-batches."""
    if (facts.plan.batch.accumulation or 1) < 2 or facts.plan.pipeline is not None:
        return
    size = facts.at("forward_end", "gradients")
    if size < SMALL:
        return
    yield Mistake(
        claim="accumulating gradients costs no memory",
        truth="from the second micro-batch on the gradients ({size}) are there during forward as well",
        sizes={"size": size},
        source="counted",
    )
