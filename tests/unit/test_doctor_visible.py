"""The doctor's lines on the variables that choose devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctor_machine import Machine

from ranktop.tui.doctor import visible


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}a", "pci_bus_id": f"0000:{index:02x}:00.0", "name": "H100", **changes}


def look(tmp_path: Path, *devices: dict[str, Any], **environ: str) -> tuple[str, str, dict[str, Any]]:
    result = visible.look_at_cuda(Machine(tmp_path, environ).said(*devices).scene())
    return result.status, result.found, dict(result.facts)


@pytest.mark.parametrize(
    ("value", "status", "indexes"),
    [
        (None, "pass", [0, 1, 2]),
        ("2,0", "pass", [2, 0]),
        ("GPU-1a", "pass", [1]),
        ("0,7,1", "warn", [0]),
        ("", "warn", []),
        ("-1", "warn", []),
        ("1,1", "fail", []),
        ("9", "fail", []),
        ("GPU-zz", "fail", []),
    ],
)
def test_what_a_list_resolves_to(tmp_path: Path, value: str | None, status: str, indexes: list[int]) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    got, _, facts = look(tmp_path, gpu(0), gpu(1), gpu(2), **environ)
    assert got == status
    assert [device["nvml_index"] for device in facts["devices"]] == indexes


def test_no_driver_no_resolution(tmp_path: Path) -> None:
    assert look(tmp_path)[0] == "skip"


def test_a_mig_instance_by_its_uuid(tmp_path: Path) -> None:
    instances = [{"uuid": "MIG-1", "gpu_instance": 1, "compute_instance": 0}]
    status, found, facts = look(tmp_path, gpu(0, mig_mode=True, mig=instances), CUDA_VISIBLE_DEVICES="MIG-1")
    assert status == "pass"
    assert "cuda:0 is MIG of GPU 0" in found
    assert facts["devices"][0]["uuid"] == "MIG-1"


def test_a_device_that_tells_no_uuid_is_named(tmp_path: Path) -> None:
    status, found, _ = look(tmp_path, gpu(0), {"index": 1, "state": "lost"})
    assert status == "warn"
    assert "GPU 1 did not tell" in found


def test_a_device_without_a_name_is_no_other_kind(tmp_path: Path) -> None:
    status, found, _ = look(tmp_path, gpu(0), gpu(1, name=None), CUDA_VISIBLE_DEVICES="1,0")
    assert (status, "kinds" in found) == ("pass", False)


def test_what_decides_comes_first(tmp_path: Path) -> None:
    _, found, _ = look(tmp_path, gpu(0), gpu(1, name="T4"), CUDA_VISIBLE_DEVICES="0,0")
    assert found.startswith("CUDA_VISIBLE_DEVICES='0,0': 0 stands twice")
    assert "kinds" in found


def test_different_gpus_get_the_order_as_advice(tmp_path: Path) -> None:
    result = visible.look_at_cuda(Machine(tmp_path).said(gpu(0), gpu(1, name="T4")).scene())
    assert (result.status, result.advice) == ("warn", "export CUDA_DEVICE_ORDER=PCI_BUS_ID")


@pytest.mark.parametrize(
    ("value", "inside", "status"),
    [(None, True, "pass"), ("void", True, "warn"), ("", True, "warn"), ("all", True, "pass"), ("0,1,2", True, "warn"),
     ("void", False, "pass")],
)  # fmt: skip
def test_what_a_container_runtime_was_told(tmp_path: Path, value: str | None, inside: bool, status: str) -> None:
    machine = Machine(tmp_path, {} if value is None else {"NVIDIA_VISIBLE_DEVICES": value}).said(gpu(0))
    if inside:
        machine.container()
    assert visible.look_at_container(machine.scene()).status == status
