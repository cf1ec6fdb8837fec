"""The doctor's lines on driver and devices, on machines made of files and reports written down by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctor_machine import LIBRARY, MODULE, NO_LIBRARY, OPEN_MODULE, Machine, one

from ranktop.probes.nvml.codes import words
from ranktop.tui.doctor import driver, gpus
from ranktop.tui.doctor.signs import module_version, signs


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def library(machine: Machine, **changes: Any) -> tuple[str, str, str]:
    machine.said(library={**NO_LIBRARY, **changes})
    result = driver.look_at_library(machine.scene())
    return result.status, result.found, result.advice


def test_a_machine_without_anything_of_nvidia_is_no_fault(machine: Machine) -> None:
    status, found, advice = library(machine)
    assert (status, advice) == ("skip", "")
    assert "CPU jobs" in found


def test_a_gpu_without_a_driver_is_a_warning(machine: Machine) -> None:
    machine.gpu().gpu("0000:00:02.0", vendor="0x8086").gpu("0000:1b:00.1", kind="0x040300")
    status, found, advice = library(machine)
    assert status == "warn"
    assert found.startswith("1 NVIDIA GPU on the PCI bus")
    assert "driver" in advice


def test_a_driver_without_its_library_fails(machine: Machine) -> None:
    assert library(machine.driver())[0] == "fail"
    status, _, advice = library(machine.container())
    assert status == "fail"
    assert "--gpus all" in advice


def test_an_empty_library_is_called_a_placeholder(machine: Machine) -> None:
    status, found, _ = library(machine, path="/lib/libnvidia-ml.so.1", size=0, error="file too short")
    assert status == "warn"
    assert "/lib/libnvidia-ml.so.1 is an empty file" in found
    machine.driver()
    assert library(machine, path="/lib/libnvidia-ml.so.1", size=0, error="file too short")[0] == "fail"


def test_a_library_that_cannot_be_loaded_says_why(machine: Machine) -> None:
    _, found, _ = library(machine, path="/lib/libnvidia-ml.so.1", size=7, error="wrong ELF class: ELFCLASS32")
    assert "wrong ELF class" in found


def test_a_library_where_the_loader_does_not_look_gets_the_export(machine: Machine) -> None:
    _, _, advice = library(machine, elsewhere="/usr/local/nvidia/lib64/libnvidia-ml.so.1")
    assert advice == "export LD_LIBRARY_PATH=/usr/local/nvidia/lib64:$LD_LIBRARY_PATH"


def test_a_missing_pynvml_gets_the_install(machine: Machine) -> None:
    assert library(machine, error="the Python module pynvml cannot be imported: x")[2] == "pip install nvidia-ml-py"


def test_a_process_that_never_answers_is_a_hanging_driver(machine: Machine) -> None:
    result = driver.look_at_library(machine.scene())
    assert result.status == "fail"
    assert "hangs" in result.found
    assert driver.look_at_start(machine.scene()) == []


@pytest.mark.parametrize(
    ("code", "inside", "cure"),
    [
        (18, False, "reboot"),
        (18, True, "restart the container"),
        (9, False, "modprobe nvidia"),
        (999, True, "daemon-reload"),
        (999, False, "dmesg"),
        (4, False, "device files"),
        (17, False, "cgroup"),
        (12345, False, "dmesg"),
    ],
)
def test_a_failed_init_names_its_cure(machine: Machine, code: int, inside: bool, cure: str) -> None:
    if inside:
        machine.container()
    machine.said(
        init={"state": "failed", "code": code, "words": words(code), "seconds": 0.1},
        errors={"init": {"code": code, "words": words(code)}},
    )
    result = one(driver.look_at_start(machine.scene()))
    assert result.status == "fail"
    assert f"NVML {code}" in result.found
    assert cure in result.advice
    assert result.facts["code"] == code


def test_a_slow_init_hints_at_persistence_and_a_hanging_one_fails(machine: Machine) -> None:
    machine.said(init={"state": "ok", "code": 0, "words": "", "seconds": 7.9})
    slow = one(driver.look_at_start(machine.scene()))
    assert slow.status == "warn"
    assert "-pm 1" in slow.advice
    machine.said(init={"state": "no answer", "seconds": 5.0, "calling": "nvmlInit"})
    assert one(driver.look_at_start(machine.scene())).found == "no answer for 5 s (nvmlInit)"


@pytest.mark.parametrize("text", [MODULE, OPEN_MODULE])
def test_the_version_of_the_kernel_module_is_read(text: str) -> None:
    assert module_version(text) == "570.86.15"


def test_module_and_library_of_different_versions_fail(machine: Machine) -> None:
    machine.driver().said(library={**LIBRARY, "version": "570.124.06"})
    result = one(driver.look_at_versions(machine.scene()))
    assert result.status == "fail"
    assert "570.86.15" in result.found
    assert "570.124.06" in result.found
    machine.said()
    assert one(driver.look_at_versions(machine.scene())).status == "pass"


def test_device_files(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.look_at_nodes(machine.scene()) == []
    machine.driver(nodes=("nvidia0",))
    assert "nvidiactl is missing" in one(driver.look_at_nodes(machine.scene())).found
    machine.file("/dev/nvidiactl")
    uvm = one(driver.look_at_nodes(machine.scene()))
    assert (uvm.status, uvm.advice) == ("fail", "sudo nvidia-modprobe -u -c=0")
    machine.file("/dev/nvidia-uvm")
    assert one(driver.look_at_nodes(machine.scene())).status == "pass"
    monkeypatch.setattr("os.access", lambda path, mode: not str(path).endswith("nvidia0"))
    refused = one(driver.look_at_nodes(machine.scene()))
    assert refused.status == "fail"
    assert refused.found.startswith("/dev/nvidia0: no permission (mode 0644")
    assert refused.facts["nodes"]["nvidiactl"] is None  # type: ignore[index]


def test_wsl_needs_no_device_files_of_nvidia(machine: Machine) -> None:
    machine.file("/dev/dxg")
    assert signs(machine.scene()).driver
    assert one(driver.look_at_nodes(machine.scene())).status == "pass"


def test_fewer_devices_than_on_the_bus_is_a_warning_outside_a_container(machine: Machine) -> None:
    machine.gpu().gpu("0000:1c:00.0").said(device())
    assert one(gpus.look_at_count(machine.scene())).status == "warn"
    machine.container()
    assert one(gpus.look_at_count(machine.scene())).status == "pass"


def test_no_device_at_all_fails_where_the_bus_has_one(machine: Machine) -> None:
    machine.said()
    assert one(gpus.look_at_count(machine.scene())).status == "warn"
    machine.gpu()
    assert one(gpus.look_at_count(machine.scene())).status == "fail"


def device(**changes: Any) -> dict[str, Any]:
    found = {
        "index": 3,
        "state": "ok",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-aa",
        "pci_bus_id": "0000:1b:00.0",
        "total": 80 << 30,
        "persistence": True,
        "compute_mode": "default",
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "recovery": "none",
        "mig_mode": False,
        "errors": {},
        **changes,
    }
    return {key: value for key, value in found.items() if value is not None}


def test_a_sound_device_is_told_in_one_line() -> None:
    result = gpus.device_result(device())
    assert result.status == "pass"
    assert result.found == "NVIDIA H100 80GB HBM3, 0000:1b:00.0, 80.0 GiB, GPU-aa"


@pytest.mark.parametrize(
    ("changes", "status", "found", "advice"),
    [
        ({"state": "lost", "code": 15, "words": words(15)}, "fail", "lost", "Xid 79"),
        ({"state": "reset required", "code": 16, "words": words(16)}, "fail", "needs a reset", "--gpu-reset -i 3"),
        ({"state": "unavailable", "code": 999, "words": words(999)}, "fail", "no reason", "0000:1b:00.0"),
        ({"state": "unavailable", "code": 4, "words": words(4)}, "fail", "not permitted", "container"),
        ({"state": "no answer", "seconds": 3.0, "calling": "nvmlX"}, "fail", "for 3 s (nvmlX)", "reset"),
        ({"state": "slow", "seconds": 3.0, "answered": 9, "calling": "nvmlX"}, "warn", "9 questions", "0000:1b:00.0"),
        ({"total": None, "errors": {"memory": {"code": 4, "words": words(4)}}}, "warn", "not permitted", "container"),
        ({"total": None, "errors": {"memory": {"code": 10, "words": words(10)}}}, "warn", "timed out", "Xid"),
        (
            {"total": None, "mig_mode": True, "mig": [{}], "errors": {"memory": {"code": 4, "words": words(4)}}},
            "pass",
            "MIG: 1 instance",
            "",
        ),
        ({"recovery": "drain and reset"}, "fail", "drain and reset", "end its jobs"),
        ({"recovery": "drain P2P"}, "warn", "drain P2P", "end its jobs"),
        ({"remap_failed": True}, "fail", "could not be replaced", "device replaced"),
        ({"remap_pending": True}, "warn", "waits to be replaced", "--gpu-reset -i 3"),
        ({"ecc_uncorrected": 2}, "warn", "2 uncorrected memory errors", "dmesg"),
        ({"compute_mode": "prohibited"}, "fail", "prohibited", "-c 0 -i 3"),
        ({"mig_mode": True, "mig": []}, "warn", "without an instance", "mig -i 3"),
        ({"uuid": None, "errors": {"uuid": {"code": 4, "words": words(4)}}}, "warn", "UUID: not permitted", "dmesg"),
        ({"mig_mode": True, "mig": [{}, {}]}, "pass", "MIG: 2 instances", ""),
        ({"unified": True}, "pass", "shared with the host", ""),
    ],
)
def test_what_is_wrong_with_a_device(changes: dict[str, Any], status: str, found: str, advice: str) -> None:
    result = gpus.device_result(device(**changes))
    assert result.status == status
    assert found in result.found
    assert advice in result.advice
    assert bool(advice) == bool(result.advice)
    assert "{" not in result.advice


def test_the_worst_of_several_problems_gives_the_advice() -> None:
    result = gpus.device_result(device(ecc_uncorrected=1, remap_failed=True))
    assert result.status == "fail"
    assert "uncorrected" in result.found
    assert result.advice == "have the device replaced"


def test_persistence_is_one_line_for_all(machine: Machine) -> None:
    machine.said(device(index=0), device(index=1, persistence=False), device(index=2, persistence=False))
    result = one(gpus.look_at_persistence(machine.scene()))
    assert (result.status, result.facts["off"]) == ("warn", [1, 2])
    assert "GPU 1-2" in result.found
    machine.said(device(persistence=None))
    assert gpus.look_at_persistence(machine.scene()) == []
