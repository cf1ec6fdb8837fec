"""Which device torch's index is: by the UUID that torch reports, whatever CUDA_VISIBLE_DEVICES says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ranktop.probes.device import locate

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
        f"GPU-{OTHER},GPU-{GPU}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [None, "PCI_BUS_ID", "FASTEST_FIRST"])
def test_the_uuid_that_torch_reports_wins_always(names: Names, visible: str | None, order: str | None) -> None:
    """The variable may have changed since CUDA was initialised, and an index means nothing to NVML."""
    environment = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    given = {name: value for name, value in environment.items() if value is not None}
    torch = torch_with(device(OTHER), device(GPU))
    assert names(1, torch, **given)[0] == f"GPU-{GPU}"
    assert f"GPU-{OTHER}" not in names(1, torch, **given)


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


def test_an_older_drivers_mig_name_is_tried_too(names: Names) -> None:
    legacy = f"MIG-GPU-{GPU}/1/0"
    assert legacy in names(0, torch_with(device(SLICE)), CUDA_VISIBLE_DEVICES=legacy)


@pytest.mark.parametrize(
    ("index", "visible", "expected"),
    [
        (0, f"GPU-{GPU}", (f"GPU-{GPU}",)),
        (1, f"GPU-{OTHER}, GPU-{GPU}", (f"GPU-{GPU}",)),
        (0, f"MIG-{SLICE}", (f"MIG-{SLICE}",)),
    ],
)
def test_without_a_uuid_of_torchs_only_a_full_name_in_the_variable_helps(
    names: Names, index: int, visible: str, expected: tuple[str, ...]
) -> None:
    found = names(index, torch_with(device(None), device(None)), CUDA_VISIBLE_DEVICES=visible)
    assert found[: len(expected)] == expected


def test_without_any_uuid_it_says_so(names: Names) -> None:
    answer = names(0, torch_with(device(None)))
    assert isinstance(answer, str)
    assert answer.startswith("never: ")
    assert "UUID" in answer


def test_cuda_is_not_touched_first(names: Names) -> None:
    answer = names(0, torch_with(device(GPU), initialized=False))
    assert answer == "CUDA is not initialised in this process yet"


def test_a_rocm_device_is_said_to_be_one(names: Names) -> None:
    answer = names(0, torch_with(device(GPU), hip="6.2"))
    assert isinstance(answer, str)
    assert answer.startswith("never: a ROCm device")
