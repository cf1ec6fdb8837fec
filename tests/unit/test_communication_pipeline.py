"""Messages between pipeline stages against the sends that torch's own schedules plan."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from unittest.mock import MagicMock

import pytest
import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

from ranktop.budget.communication import collectives
from ranktop.budget.model import Model
from ranktop.budget.models.place import inventory
from ranktop.budget.plan import Batch, Layout, Pipeline, Plan, Precision

STAGES, MICRO_BATCHES = 4, 8
MODEL: Final = Model(family="gpt", layers=8, hidden=16, heads=2, kv_heads=2, head_dim=8, vocab=32, positions=8)
MESSAGE: Final = 2 * 8 * 16 * 4
"""Bytes of the residual stream of one micro-batch: two samples of eight tokens in fp32."""

SCHEDULES: Final[dict[str, tuple[Any, int]]] = {
    "interleaved": (schedules.ScheduleInterleaved1F1B, 2),
    "looped-bfs": (schedules.ScheduleLoopedBFS, 2),
    "interleaved-zero-bubble": (schedules.ScheduleInterleavedZeroBubble, 2),
    "zbv": (schedules.ScheduleZBVZeroBubble, 2),
    "dualpipe-v": (schedules.ScheduleDualPipeV, 2),
}


def planned(kind: Any, chunks: int) -> dict[int, Counter[str]]:
    """Return rank -> number of sends by direction, from torch's schedule with its communication filled in."""
    stages = []
    for index in range(0, STAGES * chunks, STAGES):
        stage = MagicMock(spec=_PipelineStageBase)
        stage.group = MagicMock()
        stage.group.rank.return_value, stage.group.size.return_value = 0, STAGES
        stage.group_rank, stage.group_size = 0, STAGES
        stage.stage_index, stage.num_stages = index, STAGES * chunks
        stage.is_first, stage.is_last = index == 0, index == STAGES * chunks - 1
        stage.submod, stage.device, stage.has_backward = torch.nn.Linear(1, 1), torch.device("cpu"), True
        stages.append(stage)
    schedule = kind(stages, MICRO_BATCHES, loss_fn=lambda *_: None)
    return {
        rank: Counter(str(action.computation_type).rsplit(".", 1)[-1] for action in actions if action is not None)
        for rank, actions in schedule.pipeline_order_with_comms.items()
    }


@pytest.mark.parametrize("name", SCHEDULES)
def test_sends(name: str) -> None:
    kind, chunks = SCHEDULES[name]
    for rank, actions in planned(kind, chunks).items():
        plan = Plan(
            strategy="pp",
            layout=Layout(world_size=STAGES, pipeline=STAGES, pipeline_rank=rank),
            pipeline=Pipeline(schedule=name, micro_batches=MICRO_BATCHES, virtual=chunks),
            batch=Batch(micro_batch=2, sequence_length=8),
            precision=Precision(),
        )
        found = collectives(inventory(MODEL, plan), plan, MODEL)
        assert {one.phase: one.calls for one in found} == {
            "forward": actions["SEND_F"],
            "backward": actions["SEND_B"],
        }
        assert all(one.bytes == one.sent == one.calls * MESSAGE for one in found)
