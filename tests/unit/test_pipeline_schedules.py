"""Chunks in flight against the orders that torch's own schedules build."""

from __future__ import annotations

from typing import Any

import pytest

from ranktop.budget import pipeline
from ranktop.budget.model import BadInput
from ranktop.budget.models.stages import stage_layers
from ranktop.budget.plan import Batch, Layout, Pipeline, Plan

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
stages_of_torch = pytest.importorskip("torch.distributed.pipelining.stage")

CLASSES = {
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-zero-bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}


class _Stage(stages_of_torch._PipelineStageBase):  # type: ignore[misc,name-defined]
    """What a schedule reads of a stage; no module, no process group."""

    def __init__(self, index: int, stages: int, group: int) -> None:
        self.stage_index, self.num_stages, self.group_size = index, stages, group
        self.group_rank = index % group
        self.group: Any = None
        self.submod: Any = None
        self.has_backward = True

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def _create_grad_recv_info(self, act_send_info: Any) -> Any:
        raise NotImplementedError


def walked(name: str, stages: int, micro_batches: int, virtual: int) -> list[int]:
    """Return the most chunks alive on each rank when torch's order is walked."""
    chosen = getattr(schedules, CLASSES[name])
    if name == "gpipe":
        schedule = chosen(_Stage(0, stages, stages), micro_batches, loss_fn=lambda x, y: x)
    else:
        own = [_Stage(i * stages, stages * virtual, stages) for i in range(virtual)]
        schedule = chosen(own, micro_batches, loss_fn=lambda x, y: x)
    return [_most(schedule.pipeline_order[rank]) for rank in range(stages)]


def _most(order: list[Any]) -> int:
    kinds = schedules._ComputationType
    alive = most = 0
    for action in order:
        for one in () if action is None else (action.sub_actions or (action,)):
            if one.computation_type == kinds.FORWARD:
                alive += 1
            elif one.computation_type in (kinds.FULL_BACKWARD, kinds.BACKWARD_WEIGHT):
                alive -= 1
            most = max(most, alive)
    assert alive == 0
    return most


@pytest.mark.parametrize(
    ("name", "stages", "micro_batches", "virtual"),
    [
        *[("gpipe", p, m, 1) for p in (2, 5) for m in (1, 3, 12)],
        *[("interleaved", p, m, v) for p in (2, 3, 8) for m in (p - 1, p, 2 * p, 5 * p) for v in (2, 3, 5) if m > 1],
        ("interleaved", 4, 10, 2),
        ("interleaved", 4, 6, 3),
        *[("looped-bfs", p, m, v) for p in (2, 4) for m in (2, 9) for v in (2, 3)],
        *[("interleaved-zero-bubble", p, m, v) for p in (2, 4, 6) for m in (p, 3 * p) for v in (2, 3)],
        ("interleaved-zero-bubble", 4, 10, 2),
        *[("zbv", p, m, 2) for p in (2, 4, 7) for m in (1, p, 2 * p - 1, 2 * p, 5 * p)],
        *[("dualpipe-v", p, m, 2) for p in (2, 4, 7) for m in (2 * p, 2 * p + 3, 5 * p)],
    ],
)
def test_chunks_in_flight_as_torch_orders_them(name: str, stages: int, micro_batches: int, virtual: int) -> None:
    ours = [pipeline.in_flight(name, stages, i, micro_batches, virtual) for i in range(stages)]
    assert ours == walked(name, stages, micro_batches, virtual)
    pipeline.check(name, stages, micro_batches, virtual)


def test_1f1b_as_torch_runs_it() -> None:
    # Its exported order differs from what it runs; the run warms up with min(m, p - i) forwards, then alternates.
    assert [pipeline.in_flight("1f1b", 4, i, 8) for i in range(4)] == [4, 3, 2, 1]
    assert [pipeline.in_flight("1f1b", 4, i, 2) for i in range(4)] == [2, 2, 2, 1]


def test_no_pipeline_has_one_in_flight() -> None:
    assert pipeline.in_flight("1f1b", 1, 0, 64) == 1
    assert pipeline.alive(Plan()) == 1


def test_alive_reads_the_plan() -> None:
    layout = Layout(world_size=4, pipeline=4, pipeline_rank=1)
    assert pipeline.alive(Plan(layout=layout, pipeline=Pipeline(micro_batches=8))) == 3
    assert pipeline.alive(Plan(layout=layout, pipeline=Pipeline(schedule="dualpipe-v", micro_batches=8))) == 9
    assert pipeline.alive(Plan(layout=layout, batch=Batch(accumulation=2))) == 2


@pytest.mark.parametrize(
    ("schedule", "stages", "micro_batches", "virtual"),
    [("2f2b", 4, 8, 1), ("1f1b", 0, 8, 1), ("1f1b", 4, 8, 2), ("zbv", 4, 8, 1), ("dualpipe-v", 4, 7, 2),
     ("gpipe", 4, 0, 1), ("interleaved", 4, 9, 2)],
)  # fmt: skip
def test_what_a_schedule_cannot_run_is_refused(schedule: str, stages: int, micro_batches: int, virtual: int) -> None:
    with pytest.raises(BadInput):
        pipeline.check(schedule, stages, micro_batches, virtual)


def dealt_to(stage: int, layers: int, stages: int, schedule: str, virtual: int) -> list[int]:
    layout = Layout(world_size=stages, pipeline=stages, pipeline_rank=stage)
    plan = Plan(layout=layout, pipeline=Pipeline(schedule=schedule, virtual=virtual))
    return [len(chunk) for chunk in stage_layers(layers, plan)]


def test_layers_are_dealt_out_completely_and_evenly() -> None:
    for layers, stages, virtual in ((12, 4, 1), (13, 4, 1), (32, 4, 8), (10, 2, 2), (11, 2, 2)):
        dealt = [dealt_to(i, layers, stages, "interleaved", virtual) for i in range(stages)]
        assert sum(sum(one) for one in dealt) == layers
        sizes = {size for one in dealt for size in one}
        assert max(sizes) - min(sizes) <= 1
    assert dealt_to(0, 9, 2, "zbv", 2) == [3, 2]
    with pytest.raises(BadInput):
        dealt_to(0, 3, 4, "1f1b", 1)


def test_bubble_is_the_wait_over_the_step() -> None:
    # p = 4, m = 8, forward 1, backward 2: every rank computes 24 and the step takes 33.
    assert pipeline.bubble("1f1b", 4, 8) == pytest.approx(9 / 33)
    assert pipeline.bubble("interleaved", 4, 8, 2) == pytest.approx(4.5 / 28.5)
    assert pipeline.bubble("zbv", 4, 8, 2) == 0
    assert pipeline.bubble("1f1b", 1, 8) == 0
