"""What people get wrong about data, tensor and pipeline parallel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.explain.explanation import Mistake
from ranktop.budget.explain.facts import Facts
from ranktop.budget.megatron_estimate import WRONG, estimate
from ranktop.budget.model import NoRule

MIB: Final = 1 << 20


def data_parallel(facts: Facts) -> Iterator[Mistake]:
    """torch.nn.DataParallel."""
    totals = [rank.total for rank in facts.projection.ranks]
    least = min((total for total in totals if total is not None), default=None)
    if facts.peak is None or least is None or len(totals) < 2:
        return
    outputs = facts.part("backward", "activations", "outputs gathered", "other GPUs' share")
    outputs = outputs or facts.part("forward", "activations", "outputs gathered", "other GPUs' share")
    yield Mistake(
        claim="the GPUs of DataParallel hold the same",
        truth="GPU 0 needs {first}, the others {others}: it alone has the optimizer ({optimizer}), all outputs and the "
        "loss on them ({outputs}). That is expected and no leak",
        sizes={"first": facts.peak, "others": least, "optimizer": facts.at("step_end", "optimizer"),
               "outputs": outputs},
        source="torch/nn/parallel/data_parallel.py; not measured",
    )  # fmt: skip
    copies = [one for one in facts.projection.collectives if one.kind == "broadcast"]
    if copies:
        yield Mistake(
            claim="the model is copied to the GPUs once",
            truth="in every forward: GPU 0 sends {bytes} to each of the others, and receives as much in gradients",
            sizes={"bytes": copies[0].bytes // max(1, facts.plan.batch.accumulation or 1)},
            source="torch/nn/parallel/replicate.py",
        )


def parameter_server(facts: Facts) -> Iterator[Mistake]:
    """Reduce and broadcast through one rank."""
    n = facts.plan.layout.replicate
    if n < 2:
        return
    yield Mistake(
        claim="a server sends less than an all-reduce, as a worker sends its gradients once",
        truth=f"for a worker, yes ({{worker}}); without a tree the server itself takes in {{server}} from {n - 1} "
        "workers and sends as much, which an all-reduce spreads over all ranks",
        sizes={"worker": facts.projection.sent // 2, "server": (n - 1) * facts.projection.sent // 2},
        source="Li et al. 2014 (OSDI); Patarasuk and Yuan 2009 for the ring",
    )


def ddp(facts: Facts) -> Iterator[Mistake]:
    """DistributedDataParallel."""
    options = facts.plan.ddp
    buckets = facts.part("backward", "buffers", "buckets")
    if options is not None and not options.gradient_as_bucket_view and buckets:
        yield Mistake(
            claim="DDP holds each gradient once",
            truth="twice: the gradients ({gradients}) and the buckets that they are reduced in ({buckets}), which are "
            "never freed. gradient_as_bucket_view=True makes them one",
            sizes={"gradients": facts.at("backward_end", "gradients"), "buckets": buckets},
            source="torch/csrc/distributed/c10d/reducer.cpp; counted",
        )
    if facts.plan.layout.replicate > 1:
        yield Mistake(
            claim="more GPUs make the model fit",
            truth="every rank holds all of it ({states} between steps), however many there are; only the batch is "
            "shared",
            sizes={"states": facts.at("step_end", "parameters") + facts.at("step_end", "optimizer")},
            source="torch/nn/parallel/distributed.py",
        )


def fsdp(facts: Facts) -> Iterator[Mistake]:
    """FSDP1 and FSDP2."""
    options = facts.plan.fsdp
    if options is None or facts.plan.layout.shard < 2:
        return
    states = facts.at("step_start", "parameters") + facts.at("step_end", "optimizer")
    yield Mistake(
        claim="a rank holds its N-th part and that is all",
        truth="of the states, yes ({states}, and gradients); gathered units and reduce-scatter inputs come on top, "
        "{buffers} at their highest. Wrap smaller units to make it less",
        sizes={"states": states, "buffers": facts.most("buffers")},
        source="torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; counted",
    )
    if options.sharding == "grad-op":
        yield Mistake(
            claim="reshard_after_forward=False only saves time",
            truth="all weights stay gathered until backward has passed them: {gathered} at the end of forward",
            sizes={"gathered": facts.part("forward_end", "buffers", "gathered")},
            source="torch/distributed/fsdp/_fully_shard/_fully_shard.py",
        )
    if options.sharding == "hybrid" and facts.plan.layout.replicate > 1:
        yield Mistake(
            claim="hybrid sharding saves as much memory as full sharding",
            truth=f"states are divided by the {facts.plan.layout.shard} ranks of a node ({{states}} on each), not by "
            f"all {facts.plan.layout.world_size}: what it saves is traffic between nodes",
            sizes={"states": states},
            source="torch/distributed/fsdp/_fully_shard/_fully_shard.py",
        )
    if options.version == 1 and options.use_orig_params:
        yield Mistake(
            claim="zero_grad frees FSDP1's gradients",
            truth="with use_orig_params=True the sharded gradients ({size}) live until the next forward",
            sizes={"size": facts.at("backward_end", "gradients")},
            source="torch/distributed/fsdp/_flat_param.py; counted",
        )


def tensor(facts: Facts) -> Iterator[Mistake]:
    """Tensor parallel."""
    t, plan = facts.plan.layout.tensor, facts.plan
    whole = facts.part("forward_end", "activations", "norms", "residual")
    if not plan.sequence_parallel:
        if whole > MIB:
            yield Mistake(
                claim=f"tensor parallel divides activations by {t}",
                truth="only inside attention and MLP: what norms and the residual stream save ({whole} of {all}) is "
                "whole on every rank. Sequence parallel splits it",
                sizes={"whole": whole, "all": facts.at("forward_end", "activations")},
                source="Korthikanti et al. 2022, arXiv:2205.05198: sbh(10 + 24/t)",
            )
    elif plan.sequence_parallel == "dtensor":
        yield Mistake(
            claim=f"sequence parallel divides activations by {t}: 34/t sbh",
            truth="that is Megatron, which saves the parts and gathers again; DTensor saves the gathered inputs, "
            "(2 + 14/t) sbh elements in a GPT block",
            source="torch/distributed/tensor/parallel/style.py; counted",
        )
    sent = sum(one.sent for one in facts.projection.collectives if one.axis == "tensor")
    if sent:
        yield Mistake(
            claim="tensor parallel sends little, as weights stay where they are",
            truth="activations are what is sent, behind every attention and MLP, with nothing to hide it: {sent} per "
            "step and GPU. It belongs inside one node",
            sizes={"sent": sent},
            source="Shoeybi et al. 2019, arXiv:1909.08053",
        )


def pipeline(facts: Facts) -> Iterator[Mistake]:
    """Pipeline parallel."""
    plan, found = facts.plan.pipeline, facts.projection.ranks
    if plan is None:
        return
    p, m = facts.plan.layout.pipeline, plan.micro_batches
    stages = {rank.stage: rank for rank in found}
    first, last = stages.get(0), stages.get(p - 1)
    if first is not None and last is not None and first.total is not None and last.total is not None:
        yield Mistake(
            claim=f"{p} stages divide memory by {p}",
            truth="the first stage holds {first}, with the most micro-batches in flight; the last {last}, with the "
            "logits. The larger one counts",
            sizes={"first": first.total, "last": last.total},
            source="Narayanan et al. 2021, arXiv:2104.04473",
        )
    if plan.schedule == "gpipe":
        yield Mistake(
            claim="GPipe and 1F1B differ in speed",
            truth=f"they wait alike, (p - 1)/(m + p - 1) = {(p - 1) / (m + p - 1):.0%} of the time; what differs is "
            f"memory: GPipe keeps all {m} micro-batches, 1F1B at most {min(m, p)}",
            source="Narayanan et al. 2021, arXiv:2104.04473",
        )
    elif m <= p:
        yield Mistake(
            claim="1F1B needs less memory than GPipe",
            truth=f"on the first stage only with more micro-batches than stages: with {m} on {p} it keeps all of them "
            "either way. The last stage keeps one instead of all",
            source="Narayanan et al. 2021, arXiv:2104.04473",
        )


def megatron(facts: Facts) -> Iterator[Mistake]:
    """Megatron-LM's own estimate."""
    try:
        said = estimate(facts.run.model, facts.plan)
    except NoRule:
        return
    if facts.peak is None:
        return
    left_out = (WRONG[1], WRONG[4]) if facts.plan.layout.context > 1 else (WRONG[4], WRONG[5])
    yield Mistake(
        claim="Megatron-LM's own estimate says what a GPU needs: {estimate}",
        truth="the budget says {peak}. Among what is wrong there: " + "; ".join(left_out),
        sizes={"estimate": round(said.total), "peak": facts.peak},
        source="megatron/training/theoretical_memory_usage.py; 37 % off in the median of 115 published readings",
    )
