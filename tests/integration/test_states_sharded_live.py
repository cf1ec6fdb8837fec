"""One process with a process group of its own: what only wrapped models do, against all live storages."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from live_storages import LiveStorages
from states_cases import CPU, Odd, adamw, ddp, fsdp2
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage

from ranktop.probes.model import ModelProbe
from ranktop.probes.reading import Resident
from ranktop.probes.strategy import detect

TOKENS = torch.arange(6).reshape(2, 3) % 11


@pytest.fixture(scope="module", autouse=True)
def mesh() -> Iterator[DeviceMesh]:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        yield init_device_mesh("cpu", (1,))
        dist.destroy_process_group()


@pytest.fixture
def live() -> Iterator[LiveStorages]:
    gc.collect()
    with LiveStorages() as storages:
        yield storages


def backward(model: nn.Module) -> None:
    model(TOKENS).float().square().mean().backward()


def check(live: LiveStorages, probe: ModelProbe) -> Resident:
    found = probe.resident()
    total = sum(part or 0 for part in (found.parameters, found.gradients, found.optimizer, found.buffers))
    assert live.settled(total) == total, found
    return found


def test_fsdp2_counts_whole_gradients_that_wait_for_their_reduction(live: LiveStorages, mesh: DeviceMesh) -> None:
    model: Any = fsdp2(True, mesh)(Odd())
    optimizer = adamw(model)
    probe = ModelProbe(model, [optimizer], CPU)
    model.set_requires_gradient_sync(False)
    backward(model)
    assert check(live, probe).gradients == 1120
    model.set_requires_gradient_sync(True)
    backward(model)
    assert check(live, probe).gradients == 1120
    optimizer.step()
    optimizer.zero_grad()
    assert check(live, probe).gradients == 0


def test_fsdp2_one_unit_that_skips_its_reduction_is_found_by_a_look(live: LiveStorages, mesh: DeviceMesh) -> None:
    model: Any = fsdp2(True, mesh)(Odd())
    probe = ModelProbe(model, [], CPU)
    probe.refresh()
    model.block.set_requires_gradient_sync(False, recurse=False)
    backward(model)
    probe.refresh()
    check(live, probe)
    backward(model)
    assert check(live, probe).gradients == 1120


def test_fsdp2_parameters_are_the_shards_even_while_gathered(live: LiveStorages, mesh: DeviceMesh) -> None:
    model: Any = fsdp2(False, mesh)(Odd())
    probe = ModelProbe(model, [adamw(model)], CPU)
    before = probe.resident().parameters
    out = model(TOKENS)
    assert probe.resident().parameters == before == 1344
    assert live.total() > 2 * 1344
    del out


def test_a_probe_does_not_stop_a_sharded_model_from_being_cast(live: LiveStorages, mesh: DeviceMesh) -> None:
    model: Any = fsdp2(True, mesh)(Odd())
    probe = ModelProbe(model, [], CPU)
    probe.refresh()
    model.to(torch.bfloat16)
    assert probe.refresh()
    assert check(live, probe).parameters == 672


@pytest.mark.parametrize("view", [False, True])
def test_ddp_buckets_are_buffers_until_gradients_view_them(live: LiveStorages, view: bool) -> None:
    model: Any = ddp(view)(Odd())
    optimizer = adamw(model)
    probe = ModelProbe(model, [optimizer], CPU)
    assert check(live, probe).buffers == 40 + 1120
    for _ in range(3):
        with model.no_sync():
            backward(model)
        check(live, probe)
        backward(model)
        found = check(live, probe)
        assert (found.gradients, found.buffers) == (1120, 40 if view else 40 + 1120)
        optimizer.step()
        optimizer.zero_grad()
        assert check(live, probe).buffers == 40 + 1120
    plan = detect(model, [optimizer], CPU)
    assert plan.ddp is not None
    assert (plan.ddp.gradient_as_bucket_view, sum(plan.ddp.bucket_bytes)) == (view, 1120)


def test_a_pipeline_stage_names_its_place() -> None:
    model = Odd()
    stage = PipelineStage(model.block, 1, 3, CPU)
    plan = detect(model.block, [], CPU)
    assert (plan.strategy, plan.layout.pipeline, plan.layout.pipeline_rank) == ("pp", 3, 1)
    assert any("stages run here" in note for note in plan.notes)
    del stage
    assert detect(nn.Linear(2, 2), [], CPU).strategy == "single"
