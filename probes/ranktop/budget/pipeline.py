"""What a pipeline schedule keeps alive on one rank, which of them a run can have, and how long ranks wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ranktop.budget.model import BadInput
from ranktop.budget.models.stages import V_SHAPED, chunks_of
from ranktop.budget.plan import Pipeline, Plan
from ranktop.budget.terms import Part

ONE_CHUNK: Final = ("gpipe", "1f1b")
"""Schedules of one chunk per rank."""


def _gpipe(stages: int, stage: int, micro_batches: int, virtual: int) -> int:
    return virtual * micro_batches


def _1f1b(stages: int, stage: int, micro_batches: int, virtual: int) -> int:
    return min(micro_batches, stages - stage)


def _per_round(stages: int, micro_batches: int) -> int:
    """Micro-batches that a rank runs through one chunk before it goes on to the next."""
    return micro_batches // max(1, micro_batches // stages)


def _interleaved(stages: int, stage: int, micro_batches: int, virtual: int) -> int:
    warmup = (virtual - 1) * _per_round(stages, micro_batches) + 2 * (stages - 1 - stage)
    return min(virtual * micro_batches, warmup + 1)


def _zero_bubble(stages: int, stage: int, micro_batches: int, virtual: int) -> int:
    # Warm-up is shorter by one forward per hop than that of 1F1B, and weight gradients wait by as many steps.
    return min(virtual * micro_batches, (virtual - 1) * _per_round(stages, micro_batches) + stages)


def _zbv(stages: int, stage: int, micro_batches: int, virtual: int) -> int:
    return min(micro_batches, 2 * stages - stage - 1) + min(micro_batches, stage + 1)


def _dualpipe_v(stages: int, stage: int, micro_batches: int, virtual: int) -> int:
    return 2 * stages + 1


_IN_FLIGHT: Final[dict[str, Callable[[int, int, int, int], int]]] = {
    "gpipe": _gpipe,
    "1f1b": _1f1b,
    "interleaved": _interleaved,
    "looped-bfs": _gpipe,
    "interleaved-zero-bubble": _zero_bubble,
    "zbv": _zbv,
    "dualpipe-v": _dualpipe_v,
}

SCHEDULES: Final = tuple(_IN_FLIGHT)
"""Schedules that are known, by the names of ``Pipeline.schedule``."""


def check(schedule: str, stages: int, micro_batches: int, virtual: int) -> None:
    """Raise BadInput for what the schedule cannot run."""
    if schedule not in _IN_FLIGHT:
        raise BadInput(f"unknown pipeline schedule {schedule!r}; known are {', '.join(SCHEDULES)}")
    if stages < 1 or micro_batches < 1 or virtual < 1:
        raise BadInput("stages, micro-batches and chunks of a pipeline must be at least 1")
    if schedule in ONE_CHUNK and virtual != 1:
        raise BadInput(f"{schedule} runs one chunk per rank, not {virtual}; interleaved runs more")
    if schedule in V_SHAPED and virtual != 2:
        raise BadInput(f"{schedule} runs two chunks per rank, not {virtual}")
    if schedule == "dualpipe-v" and micro_batches < 2 * stages:
        raise BadInput(f"{schedule} over {stages} stages needs at least {2 * stages} micro-batches")
    if schedule.startswith("interleaved") and micro_batches % max(1, micro_batches // stages):
        rounds = micro_batches // stages
        raise BadInput(f"{schedule}: {micro_batches} micro-batches do not divide into {rounds} rounds")


def in_flight(schedule: str, stages: int, stage: int, micro_batches: int, virtual: int = 1) -> int:
    """Return how many chunks (1/``virtual`` of a rank's layers each) are alive at once on rank ``stage``.

    A chunk is alive from its forward until its (weight) backward. Rules of ``torch.distributed.pipelining.schedules``
    (torch 2.13), with Megatron Core's for 1F1B and interleaved where micro-batches are a multiple of the stages: 1F1B
    min(m, p - i), interleaved min(v m, (v-1) p + 2(p-1-i) + 1). No check of what the schedule can run: see ``check``.
    """
    if stages <= 1:
        return 1
    rule = _IN_FLIGHT.get(schedule)
    if rule is None:
        raise BadInput(f"unknown pipeline schedule {schedule!r}; known are {', '.join(SCHEDULES)}")
    return rule(stages, stage, micro_batches, virtual)


def alive(plan: Plan) -> int:
    """Return the chunks alive at once on the plan's rank; 1 without a pipeline."""
    layout = plan.layout
    if layout.pipeline <= 1:
        return 1
    pipeline = plan.pipeline or Pipeline(micro_batches=plan.batch.accumulation or layout.pipeline)
    virtual = 2 if pipeline.schedule in V_SHAPED else pipeline.virtual
    return in_flight(pipeline.schedule, layout.pipeline, layout.pipeline_rank, pipeline.micro_batches, virtual)


def ends(plan: Plan) -> tuple[bool, bool]:
    """Return whether the plan's rank runs the model's first chunk, and its last one."""
    chunks, total = chunks_of(plan)
    return 0 in chunks, total - 1 in chunks


def bubble(schedule: str, stages: int, micro_batches: int, virtual: int = 1) -> float:
    """Return the share of a step in which a rank waits, with forward : backward = 1 : 2 and no communication.

    GPipe, 1F1B and breadth-first (p-1)/(m+p-1); interleaved (p-1)/(v m+p-1) (Narayanan et al., arXiv:2104.04473, as
    share of the whole step); with weight gradients moved into the gaps a third of it (Qi et al., arXiv:2401.10241,
    ZB-H1); V-shaped zero-bubble schedules have none in theory.
    """
    if stages <= 1 or schedule in V_SHAPED:
        return 0.0
    wait = float(stages - 1)
    if schedule == "interleaved-zero-bubble":
        wait /= 3
    return wait / (virtual * micro_batches + wait)


def torch_buffers(plan: Plan, boundary: int, output: int = 0, *, running: bool = True) -> tuple[Part, ...]:
    """Return what torch's stages hold: while micro-batches run besides the activations of ``alive`` chunks, or between.

    ``boundary``: bytes of what one stage sends for one micro-batch. ``output``: bytes of the last stage's output
    (logits) for one micro-batch, which ``schedule.step()`` returns unless ``return_outputs=False``. Receive buffers of
    activations and of gradients are allocated once for every micro-batch and stay (torch 2.13,
    ``distributed/pipelining/stage.py``, ``args_recv_info`` and ``grad_recv_info``); a received activation is its first
    block's saved input too, which ``alive`` chunks count already and which is left out here. Outputs of finished
    forwards stay until their backward (``fwd_cache``).
    """
    layout, pipeline = plan.layout, plan.pipeline
    if layout.pipeline <= 1 or pipeline is None:
        return ()
    micro, chunks = pipeline.micro_batches, chunks_of(plan)[0]
    first, last = ends(plan)
    inputs, outputs = len(chunks) - first, len(chunks) - last
    flying = alive(plan) if running else 0
    received = max(0, micro * inputs - flying) * boundary
    parts = [
        Part("receive buffers of activations, one a micro-batch", received, seen=False),
        Part("receive buffers of gradients, one a micro-batch", micro * outputs * boundary, seen=False),
        Part("outputs kept until their backward", flying * outputs // len(chunks) * boundary, seen=False),
    ]
    if last and running:
        parts.append(Part("outputs that the schedule returns", micro * output, seen=False))
    return tuple(part for part in parts if part.bytes)
