"""Which device torch's index is: by the UUID that torch reports, whatever CUDA_VISIBLE_DEVICES says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import device as stand_in
from nvml_stub.hardware import device_uuid, mig, mig_uuid

from ranktop.probes.device import locate
from ranktop.probes.nvml import Target, Variables

pytest_plugins = ["nvml_stub.fixtures"]

GPU = "8932f937-d72c-4106-c12f-20bd9faed9f6"
OTHER = "e429a63e-c61c-4795-b757-5132caeb8e70"
SLICE = "89c850dc-38e3-57df-85c7-690c186b68e9"


class Uuid:
    """torch's ``_CUuuid``: its text is the bare bytes in hexadecimal."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def torch_with(*devices: dict[str, Any], initialized: bool = True, hip: str | None = None) -> SimpleNamespace:
    """Return a torch that has these devices, and fails on any other call as one without a context would."""

    def properties(index: int) -> SimpleNamespace:
        assert initialized, "get_device_properties would initialise CUDA"
        return SimpleNamespace(**devices[index])

    cuda = SimpleNamespace(is_initialized=lambda: initialized, get_device_properties=properties)
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip), __version__="2.13.0")


def device(uuid: str | None) -> dict[str, Any]:
    known: dict[str, Any] = {"name": "NVIDIA H100 80GB HBM3", "total_memory": 85_028_765_696}
    return known if uuid is None else {**known, "uuid": Uuid(uuid)}


Names = Callable[..., tuple[str, ...] | str]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Return what ``locate`` makes of an index, a torch and the environment: the names to try, or why none."""

    def ask(index: int, torch: SimpleNamespace, **environment: str) -> tuple[str, ...] | str:
        monkeypatch.setitem(sys.modules, "torch", torch)
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        try:
            target = locate(index)
        except LookupError as error:  # It will never be known.
            return f"never: {error}"
        if isinstance(target, str):
            return target
        assert (target.name, target.total) == ("NVIDIA H100 80GB HBM3", 85_028_765_696)
        assert target.torch_index == index
        assert target.index is None  # NVML's index is never what a device is found by.
        return target.uuids

    return ask


@pytest.mark.parametrize(
    "visible",
    [
        None, "0,1", "1,0", "1", "-1", "", "0,0", "NoDevFiles", "7", "GPU-8932f937", f"GPU-{OTHER}",
        f"MIG-{OTHER}", f"0,MIG-{OTHER}", f"MIG-{OTHER},MIG-{SLICE}", f"0,MIG-GPU-{OTHER}", "0,MIG-GPU-x/y/z",
        f"GPU-{OTHER},GPU-{GPU}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [None, "PCI_BUS_ID", "FASTEST_FIRST"])
def test_the_uuid_that_torch_reports_wins_always(names: Names, visible: str | None, order: str | None) -> None:
    """The variable may have changed since CUDA was initialised, and an index means nothing to NVML."""
    environment = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    given = {name: value for name, value in environment.items() if value is not None}
    torch = torch_with(device(OTHER), device(GPU))
    assert names(1, torch, **given) == (f"GPU-{GPU}", f"MIG-{GPU}")


@pytest.mark.parametrize("reported", [GPU, f"GPU-{GPU}", f" {GPU} "])
def test_torch_may_report_it_with_or_without_its_prefix(names: Names, reported: str) -> None:
    assert names(0, torch_with(device(reported))) == (f"GPU-{GPU}", f"MIG-{GPU}")


@pytest.mark.parametrize("visible", [None, f"MIG-{SLICE}", "MIG-89c850dc", f"MIG-{SLICE},MIG-{OTHER}", "0"])
def test_a_mig_instance_is_tried_under_its_own_name(names: Names, visible: str | None) -> None:
    """CUDA gives the instance's bytes; NVML names it MIG-<the same>."""
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = names(0, torch_with(device(SLICE)), **given)
    assert f"MIG-{SLICE}" in found
    assert f"MIG-{OTHER}" not in found
    assert len(found) == len(set(found))


def test_an_older_drivers_mig_name_is_tried_last(names: Names) -> None:
    legacy = f"MIG-GPU-{GPU}/1/0"
    found = names(0, torch_with(device(SLICE)), CUDA_VISIBLE_DEVICES=legacy)
    assert found == (f"GPU-{SLICE}", f"MIG-{SLICE}", legacy)


def test_without_a_uuid_of_torchs_it_is_left_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with(device(None), device(None)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    target = locate(1)
    assert isinstance(target, Target)
    assert (target.uuids, target.torch_index, target.key) == ((), 1, "")
    assert target.visible == Variables("3,2", None, "torch 2.13.0")


CONNECT = """
import json, sys, time
from ranktop.probes.nvml.connect import Target, Variables, connect
from ranktop.probes.nvml.library import Library
nvml = Library(time.monotonic)
nvml.start()
for visible, order, ordinal in json.loads(sys.argv[1]):
    try:
        print(connect(nvml, Target(torch_index=ordinal, visible=Variables(visible, order))).uuid)
    except LookupError as error:
        print(error.args[0])
"""


def found_by(stub: NvmlStub, *asked: tuple[str | None, str | None, int]) -> list[str]:
    command = [sys.executable, "-c", CONNECT, json.dumps(asked)]
    ended = subprocess.run(command, env=stub.environment(), capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_the_environment_names_a_device_where_that_is_certain(nvml_stub: NvmlStub) -> None:
    same = {"name": "NVIDIA H100"}
    nvml_stub.devices(*(stand_in(n, **same) for n in range(3)), *mig(3, 4, (0, 2), **same))
    found = found_by(
        nvml_stub,
        *(("0,1,2", None, 1), ("2,0", None, 0), ("2,0", None, 1), (f"{device_uuid(1)[:12]}", None, 0)),
        *((mig_uuid(5), None, 0), (device_uuid(2), None, 0)),
    )
    assert found == [device_uuid(1), device_uuid(2), device_uuid(0), device_uuid(1), mig_uuid(5), device_uuid(2)]


def test_where_only_cuda_knows_nothing_is_guessed(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(stand_in(0), stand_in(1), *mig(2, 3, (0, 2)))
    asked = [("1", None, 0), ("2", "PCI_BUS_ID", 0), ("1", None, 3), ("1", "PCI_BUS_ID", 0)]
    kinds, instances, missing, ordered = found_by(nvml_stub, *asked)
    for why in (kinds, instances, missing):
        assert why.startswith("torch does not tell the device's UUID (2.4 and newer do), and by CUDA_VISIBLE_DEVICES ")
    assert "kinds of GPUs" in kinds
    assert "2 MIG instances" in instances
    assert "there is no cuda:3" in missing
    assert ordered == device_uuid(1)


def test_cuda_is_not_touched_first(names: Names) -> None:
    answer = names(0, torch_with(device(GPU), initialized=False))
    assert answer == "CUDA is not initialised in this process yet"


def test_a_rocm_device_is_said_to_be_one(names: Names) -> None:
    answer = names(0, torch_with(device(GPU), hip="6.2"))
    assert isinstance(answer, str)
    assert answer.startswith("never: a ROCm device")
