"""Faults of devices in real gloo jobs whose ranks are mapped to stand-in GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults_cases import text
from faults_jobs import Follower, followed
from jobs import Viewer
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import GIB, MIB
from nvml_stub.hardware import device as stand_in

pytest_plugins = ["nvml_stub.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("run_directory")]

THERMAL = 0x40
"""``nvmlClocksEventReasonHwThermalSlowdown``."""


def steered(stub: NvmlStub) -> dict[str, str]:
    names = ("LD_LIBRARY_PATH", "NVML_STUB_FILE", "NVML_STUB_CALLS")
    return {name: value for name, value in stub.environment().items() if name in names}


def test_a_throttled_gpu_and_stray_contexts(nvml_stub: NvmlStub, tmp_path: Path, viewer: Viewer) -> None:
    nvml_stub.devices(*(stand_in(number, name="NVIDIA H100 80GB HBM3", sm=1980) for number in range(3)))
    environment = {**steered(nvml_stub), "RANKTOP_DEVICE": "nvml:local_rank", "RANKTOP_INTERVAL": "0.5"}
    with followed(viewer, tmp_path, 3, **environment) as follower:
        follower.trains(12, 90)
        check_throttled(follower, nvml_stub)
        check_strays(follower, nvml_stub)
        follower.nothing_else()
        assert follower.end() == 0


def check_throttled(follower: Follower, stub: NvmlStub) -> None:
    """The rank on the hot GPU is slow, and that is why."""
    stub.set(d1__temp=91, d1__reasons=THERMAL, d1__sm=1100)
    follower.spoil(1, "sleep-forward")
    slow = follower.finds("straggler", [1], 30, "throttle")
    assert "its clocks are held down (hardware thermal slowdown)" in slow.sentence
    follower.until(lambda snapshot: any("1,100 MHz beside 1,980" in one.sentence for one in snapshot.findings), 10)
    follower.told_once(slow)
    follower.expected.add(("throttle", (1,)))
    stub.set(d1__temp=61, d1__reasons=0, d1__sm=1980)
    follower.spoil(1)
    follower.until(lambda snapshot: not snapshot.findings, 40)


def check_strays(follower: Follower, stub: NvmlStub) -> None:
    """Ranks 1 and 2 have contexts on rank 0's GPU."""
    pids = [follower.pid(rank) for rank in range(3)]
    own = {f"d{number}.procs": f"{pid}:{9 * GIB}" for number, pid in enumerate(pids)}
    stub.update({**own, "d0.procs": ",".join([own["d0.procs"], *(f"{pid}:{520 * MIB}" for pid in pids[1:])])})
    strays = follower.finds("strays", [0], 20)
    assert "ranks 1, 2" in text(strays)
    assert f"they hold {2 * 520 * MIB} B" in text(strays)
    follower.told_once(strays)
