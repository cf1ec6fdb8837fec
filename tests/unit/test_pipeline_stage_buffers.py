"""Receive buffers and kept outputs against torch's own stages, as one rank of a process group that only pretends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ranktop.budget import pipeline
from ranktop.budget.plan import Layout, Pipeline, Plan

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

HIDDEN, ROWS, MICRO = 64, 8, 4
BOUNDARY = HIDDEN * ROWS * 4


@pytest.fixture
def group() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    yield
    dist.destroy_process_group()


def _plan(stage: int) -> Plan:
    layout = Layout(world_size=3, pipeline=3, pipeline_rank=stage)
    return Plan(strategy="pp", layout=layout, pipeline=Pipeline(schedule="gpipe", micro_batches=MICRO))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("index", [0, 1, 2])
def test_receive_buffers_as_torch_allocates_them(index: int) -> None:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining._utils import InferenceMode

    sample = torch.zeros(ROWS, HIDDEN)
    stage = PipelineStage(
        torch.nn.Linear(HIDDEN, HIDDEN),
        index,
        3,
        torch.device("cpu"),
        input_args=(sample.clone().requires_grad_(index > 0),),
        output_args=(sample.clone().requires_grad_(),),
        input_grads=(None if index == 0 else sample,),
        output_grads=(None if index == 2 else sample,),
    )
    stage.has_backward = True
    stage._inference_mode = InferenceMode.STATIC  # the ranks agree on it by talking to each other
    stage._prepare_forward_infra(MICRO, (sample,), {}, True)
    stage._prepare_backward_infra(MICRO)
    counted = sum(
        info.buffer.untyped_storage().nbytes()
        for table in (stage.args_recv_info, stage.grad_recv_info)
        for infos in table.values()
        for info in infos
        if info.buffer is not None
    )
    assert sum(part.bytes for part in pipeline.torch_buffers(_plan(index), BOUNDARY, running=False)) == counted
    parts = {part.name: part.bytes for part in pipeline.torch_buffers(_plan(index), BOUNDARY)}
    ours = sum(size for name, size in parts.items() if name.startswith("receive"))
    # GPipe has every micro-batch in flight, whose received inputs count as saved activations.
    assert ours + (MICRO * BOUNDARY if index else 0) == counted


def test_kept_outputs() -> None:
    parts = {part.name: part.bytes for part in pipeline.torch_buffers(_plan(2), BOUNDARY, output=1000)}
    assert parts == {"outputs that the schedule returns": MICRO * 1000}
    parts = {part.name: part.bytes for part in pipeline.torch_buffers(_plan(1), BOUNDARY)}
    assert parts["outputs kept until their backward"] == MICRO * BOUNDARY
    assert pipeline.torch_buffers(Plan(), BOUNDARY) == ()
