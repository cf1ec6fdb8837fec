"""The doctor's lines on torch and the trial of an agent, for what a trial may give on all kinds of machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_machine import Machine

from ranktop.tui.doctor import libraries
from ranktop.tui.doctor.check import Result
from ranktop.tui.doctor.trial import Trial

CPU = {
    "version": "2.6.0+cpu", "cuda": None, "hip": None, "distributed": True, "nccl": None,
    "flight_recorder": ["_dump_fr_trace_json"], "device_uuid": False, "trained": True,
    "cuda_available": False, "cuda_devices": 0,
}  # fmt: skip
CUDA = {**CPU, "version": "2.6.0+cu124", "cuda": "12.4", "nccl": "2.21.5", "device_uuid": True,
        "cuda_available": True, "cuda_devices": 8}  # fmt: skip


def torch(tmp_path: Path, trial: Trial | None, gpus: int = 0, driver: str = "12.8") -> Result:
    machine = Machine(tmp_path).said(count=gpus, cuda_driver=driver)
    return libraries.look_at_torch(replace(machine.scene(), trial=lambda: trial))


@pytest.mark.parametrize(
    ("facts", "gpus", "driver", "status", "found", "advice"),
    [
        (CPU, 0, "", "pass", "built for CPU", ""),
        (CPU, 2, "12.8", "warn", "but 2 GPUs here", "pytorch.org"),
        (CUDA, 8, "12.8", "pass", "built for CUDA 12.4, sees 8 GPUs, NCCL 2.21.5", ""),
        ({**CUDA, "cuda_available": False}, 8, "12.8", "warn", "sees no GPU", "visible devices"),
        (
            {**CUDA, "cuda_available": False, "cuda": "13.0"},
            8,
            "12.8",
            "warn",
            "serves CUDA up to 12.8",
            "12.8 or older",
        ),
        ({**CUDA, "device_uuid": False}, 8, "12.8", "warn", "UUIDs", "torch>=2.4"),
        ({**CUDA, "version": "2.3.1"}, 8, "12.8", "fail", "2.4 or newer", "pip install"),
        ({**CUDA, "distributed": False}, 8, "12.8", "warn", "without torch.distributed", "build"),
        ({**CPU, "flight_recorder": []}, 0, "", "warn", "no flight recorder", "newer"),
        ({**CPU, "hip": "6.2"}, 0, "", "pass", "ROCm 6.2", ""),
        ({k: v for k, v in CUDA.items() if "cuda_" not in k}, 8, "12.8", "fail", "CUDA hangs", "dmesg"),
        ({"error": "OSError: libcudart"}, 0, "", "fail", "libcudart", "reinstall"),
        ({}, 0, "", "warn", "not imported within 9 s", "--wait"),
    ],
)
def test_torch(
    tmp_path: Path, facts: dict[str, Any], gpus: int, driver: str, status: str, found: str, advice: str
) -> None:
    result = torch(tmp_path, Trial(facts=facts, seconds=9.0), gpus, driver)
    assert result.status == status
    assert found in f"{result.found} {result.advice}"
    assert advice in result.advice
    assert bool(advice) == bool(result.advice)


def test_a_torch_whose_import_ends_the_process(tmp_path: Path) -> None:
    result = torch(tmp_path, Trial(code=-11, said=["Illegal instruction"]))
    assert result.status == "fail"
    assert "Illegal instruction" in result.found


def agent(tmp_path: Path, trial: Trial | None) -> Result:
    return libraries.look_at_agent(replace(Machine(tmp_path).scene(), trial=lambda: trial))


@pytest.mark.parametrize(
    ("trial", "status", "found"),
    [
        (None, "skip", "without torch"),
        (Trial(facts=CPU, heard=1.9, model="Linear"), "pass", "was heard in 1.9 s"),
        (Trial(facts=CPU, heard=1.9), "warn", "saw no model"),
        (Trial(heard=0.4), "pass", "ended before it had a model"),
        (Trial(facts=CPU, said=["ranktop: not attached: no room"], seconds=9), "fail", "not attached: no room"),
        (Trial(facts=CPU, seconds=9), "fail", "not heard within 9 s"),
        (Trial(seconds=9), "skip", "nothing to attach to"),
    ],
)
def test_the_agent(tmp_path: Path, trial: Trial | None, status: str, found: str) -> None:
    result = agent(tmp_path, trial)
    assert result.status == status
    assert found in result.found
