"""Real gloo jobs whose ranks are mapped to stand-in GPUs: what NVML says arrives where a script reads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jobs import AGENT, TORCHRUN, Viewer, job, output, steps_done, wait_until
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, MIB, device_uuid
from nvml_stub.hardware import device as stand_in

pytest_plugins = ["nvml_stub.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

TRAIN = """
import atexit, os, time, torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
over = torch.zeros(1)
while not over.item():
    model(torch.randn(16, 256)).square().mean().backward()
    with torch.no_grad():  # by hand: DDP and torch.optim import the compiler, which takes as long as torch
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p -= 1e-3 * p.grad
            p.grad = None
    time.sleep(0.02)
    over[0] = os.path.exists("over")
    dist.all_reduce(over)
dist.destroy_process_group()
began = time.monotonic()
atexit._run_exitfuncs()  # the agent's among them
with open(f"done.{os.environ['RANK']}", "w") as file:
    file.write(f"{began} {time.monotonic()}")
"""


def start(ranks: int, directory: Path) -> list[str]:
    (directory / "train.py").write_text(TRAIN)
    return [*TORCHRUN, "--nproc-per-node", str(ranks), *AGENT, "train.py"]


def steered(stub: NvmlStub) -> dict[str, str]:
    names = ("LD_LIBRARY_PATH", "NVML_STUB_FILE", "NVML_STUB_CALLS")
    return {name: value for name, value in stub.environment().items() if name in names}


def listed(pids: list[int], size: int) -> str:
    return ",".join(f"{pid}:{size}" for pid in pids)


Ranks = list[dict[str, Any]]


def when(viewer: Viewer, wanted: Callable[[Ranks], bool], seconds: float = 30.0) -> Ranks:
    ranks: Ranks = viewer.wait(lambda state: wanted(state["ranks"]), seconds)["ranks"]
    return ranks


def complete(ranks: Ranks, steps: int = 3) -> bool:
    """Whether every rank trains and has said all that its device has to say."""
    return steps_done({"ranks": ranks}, steps) and all(rank["device"]["compute_mode"] for rank in ranks)


def assert_adds_up(rank: dict[str, Any]) -> None:
    for memory in (rank["now"], rank["measured"]):
        assert sum(size for key, size in memory.items() if key != "total" and size is not None) == memory["total"]
    device = rank["device"]
    assert device["memory_used"] + device["memory_reserved"] + device["memory_free"] == device["total"] == 80 * GIB


def over(pid: int) -> bool:
    """Whether a process has ended, collected by its parent or not."""
    try:
        return str(psutil.Process(pid).status()) == "zombie"
    except psutil.NoSuchProcess:
        return True


@dataclass
class Leaving:
    """How the ranks of a job left, in seconds by rank."""

    exit_functions: list[float]
    """What Python calls at exit took, the agent's last words among it."""
    rest: list[float]
    """From there to the end of the process: torch and Python let go of their things."""


def end_of(process: Any, directory: Path, pids: list[int]) -> Leaving:
    """Let the job end by itself, and see how long that takes its ranks."""
    gone: dict[int, float] = {}

    def all_gone() -> bool:
        gone.update({pid: time.monotonic() for pid in pids if pid not in gone and over(pid)})
        return len(gone) == len(pids)

    (directory / "over").touch()
    wait_until(all_gone, 30)
    assert process.wait(30) == 0, output(directory)
    times = [[float(word) for word in (directory / f"done.{rank}").read_text().split()] for rank in range(len(pids))]
    return Leaving(
        [after - before for before, after in times],
        [gone[pid] - after for pid, (_, after) in zip(pids, times, strict=True)],
    )


def test_each_rank_has_its_gpu_until_the_last_and_a_sick_one_is_alone(
    nvml_stub: NvmlStub, tmp_path: Path, viewer: Viewer
) -> None:
    nvml_stub.devices(*(stand_in(number) for number in range(8)))
    environment = {**steered(nvml_stub), "RANKTOP_DEVICE": "nvml:local_rank"}
    with job(start(3, tmp_path), tmp_path, **environment) as process:
        ranks = when(viewer, complete, 60)
        pids = [rank["pid"] for rank in ranks]
        check_identity(ranks)
        check_moving_values(nvml_stub, viewer)
        check_processes(nvml_stub, viewer, pids)
        check_lost_and_back(nvml_stub, viewer)
        check_hung(nvml_stub, viewer)
        leaving = end_of(process, tmp_path, pids)
        ended = when(viewer, lambda ranks: all(rank["end"] for rank in ranks))
    assert [rank["state"] for rank in ended] == ["ended"] * 3
    assert max(leaving.exit_functions) < 2.5, "nobody waits for a driver that never answers"
    assert leaving.rest[2] < max(leaving.rest[:2]) + 1, "nor does the process end later for a thread in such a call"
    assert "ranktop: " not in output(tmp_path), "the agent has nothing to say in the job's log"


def check_identity(ranks: Ranks) -> None:
    for number, rank in enumerate(ranks):
        device = rank["device"]
        assert (device["kind"], device["uuid"], device["nvml_index"]) == ("cuda", device_uuid(number), number)
        assert device["name"] == f"NVIDIA Test {number}"
        assert device["pci_bus_id"] == stand_in(number)["pci"][4:].lower(), "as the kernel writes it"
        assert (device["driver"], device["cuda_driver"], device["numa_node"]) == ("570.86.15", "12.8", 0)
        assert (device["memory_used"], device["memory_reserved"]) == ((10 + number) * GIB, 600 * MIB)
        assert (device["power"], device["clocks"]["sm"]) == (pytest.approx(300 + number / 1000), 1980 - number)
        assert device["energy"] == pytest.approx(5e6, abs=1)
        assert rank["allocator"]["backend"] == "malloc"
        assert_adds_up(rank)


def check_moving_values(stub: NvmlStub, viewer: Viewer) -> None:
    """Fast and slow values move through, each alone, and the ages of what is asked seldom are told."""
    stub.set(d1__util=7, d1__temp=91, d1__reasons=0x40, d1__ecc_volatile_uncorrected=4, d0__util=88)
    ranks = when(
        viewer,
        lambda ranks: (
            ranks[1]["device"]["ecc"]["volatile_uncorrected"] == 4
            and [rank["device"]["utilization"] for rank in ranks[:2]] == [88, 7]
        ),
    )
    first, second = ranks[0]["device"], ranks[1]["device"]
    assert (first["utilization"], second["utilization"], second["temperature"]) == (88, 7, 91)
    assert (ranks[1]["utilization"], ranks[1]["temperature"]) == (7, 91)
    assert (first["temperature"], first["throttle"]) == (60, [])
    assert any("thermal" in words for words in second["throttle"])
    assert second["ages"]["utilization"] < 3
    assert second["ages"]["thresholds.max"] > second["ages"]["utilization"]


def check_processes(stub: NvmlStub, viewer: Viewer, pids: list[int]) -> None:
    """Every rank has its context, and ranks 1 and 2 one on GPU 0 as well: named on both sides, and others' are not."""
    own = {f"d{number}.procs": listed([pid], 9 * GIB) for number, pid in enumerate(pids)}
    stub.update({**own, "d0.procs": f"{listed(pids[:1], 9 * GIB)},{listed(pids[1:], 520 * MIB)},4100000:{300 * MIB}"})
    ranks = when(viewer, lambda ranks: all(rank["device"]["processes"] for rank in ranks))
    assert ranks[0]["strays"]["here"] == {"ranks": [1, 2], "bytes": 2 * 520 * MIB}
    assert [rank["strays"]["on"] for rank in ranks[1:]] == [[{"rank": 0, "bytes": 520 * MIB}]] * 2
    named = {one["pid"]: (one["rank"], one["bytes"]) for one in ranks[0]["device"]["processes"]}
    assert named == {
        pids[0]: (0, 9 * GIB), pids[1]: (1, 520 * MIB), pids[2]: (2, 520 * MIB), 4100000: (None, 300 * MIB)
    }  # fmt: skip
    assert [one["rank"] for one in ranks[2]["device"]["processes"]] == [2]
    for rank in ranks:
        assert rank["now"]["runtime"] is not None, "this process is known now"
        assert_adds_up(rank)


def check_lost_and_back(stub: NvmlStub, viewer: Viewer) -> None:
    stub.update({"d1.*.ret": 15})
    ranks = when(viewer, lambda ranks: ranks[1]["state"] == "device lost")
    device = ranks[1]["device"]
    assert (device["uuid"], device["total"], device["utilization"]) == (device_uuid(1), 80 * GIB, None)
    assert "lost" in device["reasons"]["utilization"]
    assert ranks[1]["now"]["parameters"] > 0, "what torch says goes on"
    assert [ranks[number]["state"] for number in (0, 2)] == ["ok", "ok"]
    assert max(ranks[number]["device"]["ages"]["utilization"] for number in (0, 2)) < 2
    stub.update({"d1.*.ret": None})
    ranks = when(viewer, lambda ranks: ranks[1]["state"] == "ok")
    assert ranks[1]["device"]["utilization"] == 7
    assert_adds_up(ranks[1])


def check_hung(stub: NvmlStub, viewer: Viewer) -> None:
    stub.update({"d2.nvmlDeviceGetTemperature.sleep": "forever"})
    ranks = when(viewer, lambda ranks: ranks[2]["state"] == "device no answer")
    step = ranks[2]["step"]["index"]
    stub.set(d0__util=33)
    ranks = when(viewer, lambda ranks: ranks[0]["device"]["utilization"] == 33 and ranks[2]["step"]["index"] > step + 5)
    assert ranks[2]["device"]["ages"]["temperature"] > 2
    assert ranks[2]["device"]["temperature"] == 62, "the last value stays, with its age"
    assert [ranks[number]["state"] for number in (0, 1)] == ["ok", "ok"]
    assert ranks[2]["agent"]["errors"] == 0
    assert_adds_up(ranks[2])


def test_ranks_on_one_gpu_read_it_once(nvml_stub: NvmlStub, tmp_path: Path, viewer: Viewer) -> None:
    nvml_stub.devices(stand_in(0), stand_in(1))
    environment = {**steered(nvml_stub), "RANKTOP_DEVICE": f"nvml:{device_uuid(1)}", "RANKTOP_INTERVAL": "1"}
    with job(start(3, tmp_path), tmp_path, **environment) as process:
        ranks = when(viewer, complete, 60)
        pids = [rank["pid"] for rank in ranks]
        assert {rank["device"]["uuid"] for rank in ranks} == {device_uuid(1)}
        nvml_stub.update({"d1.procs": listed(pids, 2 * GIB), "d1.util": 13})
        began = time.monotonic()
        ranks = when(
            viewer,
            lambda ranks: (
                all(rank["device"]["utilization"] == 13 and rank["device"]["processes"] for rank in ranks)
                and time.monotonic() > began + 4
            ),
        )
        calls = [when_called for when_called, _ in nvml_stub.calls() if when_called >= began]
        seconds = time.monotonic() - began
        for rank in ranks:
            assert [one["rank"] for one in rank["device"]["processes"]] == [0, 1, 2]
            assert rank["strays"] == {"here": {"ranks": [], "bytes": 0}, "on": []}, "their own device, all of them"
            assert rank["now"]["runtime"] is not None
            assert_adds_up(rank)
            assert rank["device"]["ages"]["utilization"] < 3
        leaving = end_of(process, tmp_path, pids)
    assert 3 * seconds < len(calls) <= 12 * (seconds + 1), "one rank asks for all three"
    assert max(leaving.exit_functions) < 2.5
