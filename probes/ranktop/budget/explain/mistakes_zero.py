"""What people get wrong about DeepSpeed ZeRO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.estimators import bucket_rule
from ranktop.budget.explain.estimators import Said, zero_2
from ranktop.budget.explain.estimators import zero_3 as estimated_zero_3
from ranktop.budget.explain.explanation import Mistake
from ranktop.budget.explain.facts import Facts
from ranktop.budget.terms import DTYPE_BYTES

STAGE_1_2: Final = "DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py"
STAGE_3: Final = "DeepSpeed 0.19.8 runtime/zero/stage3.py"
DOCUMENTS: Final = "huggingface.co/docs/transformers/deepspeed; " + STAGE_1_2


def zero_1_2(facts: Facts) -> Iterator[Mistake]:
    """Stages 1 and 2."""
    zero, projection = facts.plan.zero, facts.projection
    if zero is None:
        return
    reduced = [one for one in projection.collectives if one.kind == "all_reduce" and "gradients" in one.what]
    if reduced and facts.plan.layout.shard > 1:
        yield Mistake(
            claim=f"ZeRO-{zero.stage} reduce-scatters gradients, so that it sends as much as DDP",
            truth="DeepSpeed all-reduces them bucket by bucket (use_multi_rank_bucket_allreduce) and gathers the "
            "weights besides: {sent} per step instead of {paper}",
            sizes={"sent": projection.sent, "paper": projection.sent - sum(one.sent for one in reduced) // 2},
            source=STAGE_1_2,
        )
    yield from _overlap(facts)
    if zero.stage == 1 and not zero.overlap_comm and zero.offload_optimizer == "none":
        yield Mistake(
            claim="ZeRO-1 leaves the gradients as DDP has them",
            truth="all of them ({whole}) are there until backward has ended; then only this rank's part ({part})",
            sizes={"whole": round((facts.whole.gradient or 0) * facts.whole.trainable),
                   "part": facts.at("backward_end", "gradients")},
            source=STAGE_1_2,
        )  # fmt: skip
    if zero.stage == 2:
        yield from _estimated(facts, zero_2(facts.plan, facts.whole.parameters))


def _overlap(facts: Facts) -> Iterator[Mistake]:
    """The rule of 4.5 times both bucket sizes."""
    zero = facts.plan.zero
    if zero is None:
        return
    item = DTYPE_BYTES[facts.plan.precision.parameters]
    rule = round(bucket_rule(zero.reduce_bucket_size, zero.allgather_bucket_size, item))
    copy = min(zero.reduce_bucket_size, facts.whole.trainable) * item
    here = "two buckets" if zero.overlap_comm else "one bucket, as overlap_comm is off,"
    yield Mistake(
        claim="overlap_comm takes 4.5 × (allgather_bucket_size + reduce_bucket_size), {rule}",
        truth=f"today's code has {here} of reduce_bucket_size ({{buckets}}) and a flat copy of the one that is sent "
        "({copy}), in backward only; allgather_bucket_size allocates nothing",
        sizes={"rule": rule, "buckets": facts.buckets, "copy": copy},
        source=DOCUMENTS,
    )


def zero_3(facts: Facts) -> Iterator[Mistake]:
    """Stage 3."""
    zero, plan = facts.plan.zero, facts.plan
    if zero is None:
        return
    gathered = max(facts.part(moment, "buffers", "gathered") for moment in ("forward", "backward"))
    kept = facts.part("step_start", "buffers", "reduce_bucket_size")
    away = zero.offload_parameters != "none"
    there = "are there" if away else "come on top"
    yield Mistake(
        claim="offloaded, ZeRO-3 leaves nothing of the model on the GPU"
        if away
        else "ZeRO-3 holds 16P/N and nothing else of the model",
        truth=f"gathered weights {there} while modules run ({{gathered}} at most), and a gradient bucket of "
        "reduce_bucket_size that is never freed ({kept})",
        sizes={"gathered": gathered, "kept": kept},
        source=STAGE_3,
    )
    live = zero.max_live_parameters * DTYPE_BYTES[plan.precision.parameters]
    yield Mistake(
        claim="beyond stage3_max_live_parameters weights go to the CPU",
        truth="nothing goes to the CPU: it only stops gathering ahead once {live} are gathered; released weights are "
        "dropped, as every rank has its part",
        sizes={"live": min(live, facts.weights)},
        source="DeepSpeed 0.19.8 runtime/zero/partitioned_param_coordinator.py",
    )
    yield Mistake(
        claim="stage3_gather_16bit_weights_on_model_save saves memory",
        truth="it costs memory when a checkpoint is written: module after module is gathered ({module} for the "
        "largest), and rank 0 collects all of them in host memory ({whole})",
        sizes={"module": max(kind.numel * kind.itemsize for kind in facts.whole.inventory.kinds),
               "whole": facts.weights},
        source="DeepSpeed 0.19.8 runtime/engine.py _zero3_consolidated_16bit_state_dict",
    )  # fmt: skip
    yield from _estimated(facts, estimated_zero_3(facts.run, facts.plan, facts.whole))


def offload(facts: Facts) -> Iterator[Mistake]:
    """Offloading."""
    zero, budget = facts.plan.zero, facts.rank.budget
    if zero is None:
        return
    node = min(facts.run.gpus_per_node, facts.plan.layout.world_size)
    host = budget.host.bytes
    if host:
        pinned = "page-locked, so that it cannot be swapped" if zero.pin_memory else "not page-locked"
        yield Mistake(
            claim="host memory is there anyway",
            truth=f"every rank takes {{rank}} of it, {node} ranks of a node {{node}}, {pinned}",
            sizes={"rank": host, "node": node * host},
            source=STAGE_3 if zero.stage == 3 else STAGE_1_2,
        )
    if zero.stage < 3:
        yield Mistake(
            claim="offloading frees the GPU of the model",
            truth="the weights stay ({weights}); gradients pass through a bucket ({buckets}) on their way. Weights go "
            "to the host with ZeRO-3 only",
            sizes={"weights": facts.at("step_start", "parameters"), "buckets": facts.buckets},
            source=STAGE_1_2,
        )
    elif facts.strategy == "zero-infinity":
        yield Mistake(
            claim="with NVMe the host needs nothing",
            truth="files of {nvme} per rank go through buffers in host memory ({host})",
            sizes={"nvme": budget.nvme.bytes or 0, "host": host or 0},
            source="DeepSpeed 0.19.8 runtime/swap_tensor",
        )


def _estimated(facts: Facts, said: Said | None) -> Iterator[Mistake]:
    """Put DeepSpeed's own estimator beside the budget."""
    peak = facts.peak
    if said is None or peak is None:
        return
    counted = ". The fp32 gradients that it counts live only in the step" if "18P" in said.formula else ""
    yield Mistake(
        claim=f"DeepSpeed's estimator says what a GPU needs: {said.formula}, {{estimate}}",
        truth="it counts states alone; activations ({activations}), buckets and gathered weights ({buffers}) and the "
        f"process ({{runtime}}) are left out{counted}. Peak: {{peak}}",
        sizes={"estimate": said.bytes, "peak": peak, "activations": facts.most("activations"),
               "buffers": max(facts.most("buffers"), facts.buckets), "runtime": facts.at("backward", "runtime")},
        source=f"DeepSpeed 0.19.8 {said.function}",
    )  # fmt: skip
