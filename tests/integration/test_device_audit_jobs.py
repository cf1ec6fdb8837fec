"""A real gloo job that starts while NVML can't, on odd GPUs that then refuse one thing after the other: it adds up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import AGENT, TORCHRUN, Viewer, job, output, wait_until
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, MIB, NO_NUMBER_64, gb10, wsl
from nvml_stub.hardware import device as stand_in

pytest_plugins = ["nvml_stub.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

TRAIN = """
import os, time, torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(256, 256)
over = torch.zeros(1)
while not over.item():
    model(torch.randn(16, 256)).square().mean().backward()
    with torch.no_grad():  # by hand: DDP and torch.optim import the compiler, which takes as long as torch
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p -= 1e-3 * p.grad
            p.grad = None
    time.sleep(0.1)
    over[0] = os.path.exists("over")
    dist.all_reduce(over)
dist.destroy_process_group()
"""
PARTS = ("parameters", "gradients", "optimizer", "activations", "buffers", "cache", "runtime", "other", "free")
TOGETHER = "shown together with"
Ranks = list[dict[str, Any]]


def shortcomings(rank: dict[str, Any]) -> list[str]:
    """What is wrong with what one rank says: every sum is the total or merged, every null has its reason."""
    found = []
    for side in ("now", "measured"):
        memory = rank[side]
        for part in (part for part in PARTS if memory[part] is None):
            if f"{side}: " not in rank["reasons"].get(part, ""):
                found.append(f"{side}.{part} without a reason")
            elif memory["total"] is not None and f"{side}: {TOGETHER}" not in rank["reasons"][part]:
                found.append(f"{side}.{part}: {rank['reasons'][part]}")
        sizes = [memory[part] for part in PARTS if memory[part] is not None]
        if min(sizes, default=0) < 0 or (memory["total"] is not None and sum(sizes) != memory["total"]):
            found.append(f"{side}: {memory}")
    device = rank["device"]
    if device["memory_reserved"] is not None:
        if device["memory_used"] + device["memory_reserved"] + device["memory_free"] != device["total"]:
            found.append("used, reserved and free are not the total")
    elif "memory_reserved" not in device["reasons"]:
        found.append("memory_reserved without a reason")
    return found


def when(viewer: Viewer, wanted: Callable[[Ranks], bool], seconds: float = 30.0) -> Ranks:
    ranks: Ranks = viewer.wait(lambda state: len(state["ranks"]) == 3 and wanted(state["ranks"]), seconds)["ranks"]
    assert {rank["rank"]: wrong for rank in ranks if (wrong := shortcomings(rank))} == {}
    return ranks


def measured(ranks: Ranks) -> bool:
    return all(rank["moment"] for rank in ranks)


def healthy(ranks: Ranks) -> bool:
    return all(rank["device"]["state"] == "ok" and rank["device"]["compute_mode"] for rank in ranks)


def test_odd_gpus_from_a_bad_start_through_refusals(nvml_stub: NvmlStub, tmp_path: Path, viewer: Viewer) -> None:
    nvml_stub.devices(stand_in(0), gb10(1), wsl(2))
    nvml_stub.update({"init.ret": 18})
    names = ("LD_LIBRARY_PATH", "NVML_STUB_FILE")
    steered = {name: value for name, value in nvml_stub.environment().items() if name in names}
    (tmp_path / "train.py").write_text(TRAIN)
    command = [*TORCHRUN, "--nproc-per-node", "3", *AGENT, "train.py"]
    with job(command, tmp_path, **steered, RANKTOP_DEVICE="nvml:local_rank") as process:
        check_bad_start(nvml_stub, viewer)
        check_odd_devices(nvml_stub, viewer)
        check_refusals(nvml_stub, viewer)
        check_a_hang_is_named(nvml_stub, viewer)
        (tmp_path / "over").touch()
        wait_until(lambda: process.poll() is not None, 30)
        assert process.returncode == 0, output(tmp_path)


def check_bad_start(stub: NvmlStub, viewer: Viewer) -> None:
    ranks = when(viewer, lambda ranks: measured(ranks) and ranks[2]["state"] == "device unavailable", 60)
    for rank in ranks:
        assert "differ in version (NVML 18)" in rank["device"]["state_reason"]
        assert rank["device"]["reasons"]["memory_used"] == rank["device"]["state_reason"]
        assert rank["now"]["parameters"] > 0, "what torch says is there all the same"
    stub.update({"init.ret": None})
    ranks = when(viewer, lambda ranks: measured(ranks) and healthy(ranks))
    assert {rank["device"]["state_reason"] for rank in ranks} == {""}


def check_odd_devices(stub: NvmlStub, viewer: Viewer) -> None:
    pids = [rank["pid"] for rank in when(viewer, healthy)]
    stub.update({f"d{number}.procs": f"{pid}:{8 * GIB if number < 1 else GIB}" for number, pid in enumerate(pids[:2])})
    stub.update({"d2.procs": f"{pids[2]}:{NO_NUMBER_64}"})
    plain, unified, hidden = when(viewer, lambda ranks: all(rank["device"]["processes"] for rank in ranks))
    assert plain["now"]["runtime"] + plain["now"]["other"] > 10 * GIB
    assert (unified["device"]["unified"], unified["device"]["memory_reserved"]) == (True, None)
    assert "shares the host's memory" in unified["device"]["reasons"]["memory_reserved"]
    assert hidden["device"]["processes"] == [{"pid": pids[2], "bytes": None, "rank": 2, "kind": "compute"}]
    assert hidden["now"]["runtime"] is None
    assert hidden["notes"]["other"].startswith(f"{TOGETHER} runtime")


def check_refusals(stub: NvmlStub, viewer: Viewer) -> None:
    older, both = "d0.nvmlDeviceGetMemoryInfo_v2.ret", "d0.nvmlDeviceGetMemoryInfo.ret"
    lists = "d0.nvmlDeviceGetComputeRunningProcesses_v3.ret"
    stub.update({older: 25})
    device = when(viewer, lambda ranks: ranks[0]["device"]["memory_reserved"] is None)[0]["device"]
    assert device["memory_used"] == 10 * GIB + 600 * MIB, "what the driver reserves is a part of it"
    assert "v1" in device["reasons"]["memory_reserved"]
    stub.update({older: 4, both: 4, lists: 4})
    first, *others = when(viewer, lambda ranks: ranks[0]["now"]["total"] is None)
    assert "not permitted (NVML 4)" in first["reasons"]["total"]
    assert [rank["device"]["state"] for rank in (first, *others)] == ["ok"] * 3
    stub.update({older: None, both: None})
    ranks = when(viewer, lambda ranks: ranks[0]["now"]["total"] == 80 * GIB)
    assert (ranks[0]["now"]["runtime"], ranks[0]["device"]["processes"]) == (None, None)
    stub.update({lists: None})
    # The newer request is tried again after ten rounds of the older one.
    when(viewer, lambda ranks: None not in (ranks[0]["now"]["runtime"], ranks[0]["device"]["memory_reserved"]))


def check_a_hang_is_named(stub: NvmlStub, viewer: Viewer) -> None:
    stub.update({"d0.nvmlDeviceGetFieldValues.sleep": "forever"})
    first, *others = when(viewer, lambda ranks: ranks[0]["device"]["state"] == "no answer")
    assert "nvmlDeviceGetFieldValues" in first["device"]["state_reason"]
    assert first["device"]["memory_used"] == 10 * GIB, "the last value stays"
    assert first["device"]["ages"]["memory_used"] > 1.5
    assert [rank["device"]["state"] for rank in others] == ["ok", "ok"]
