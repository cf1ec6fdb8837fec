"""Chunks in flight on every rank of torch's pipeline schedules."""

from __future__ import annotations

from typing import Final

from case_table import Case, answers

from ranktop.budget import pipeline

NAMES: Final = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved",
    "ScheduleLoopedBFS": "looped-bfs",
    "ScheduleInterleavedZeroBubble": "interleaved-zero-bubble",
    "ScheduleZBVZeroBubble": "zbv",
    "ScheduleDualPipeV": "dualpipe-v",
}


@answers("torch 2.13 torch.distributed.pipelining.schedules", "inflight_chunks_per_rank")
def in_flight(case: Case) -> list[float]:
    """One number a rank."""
    i = case.inputs
    return [pipeline.in_flight(NAMES[i["schedule"]], i["p"], rank, i["m"], i["v"]) for rank in range(i["p"])]
