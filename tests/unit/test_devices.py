"""GPUs by the names that people and drivers give them; sizes and counts as they are typed."""

from __future__ import annotations

import pytest

from ranktop.budget.devices import GIB, MIB, find, names, parse_count, parse_size
from ranktop.budget.model import BadInput


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA B200", "b200"),
        ("a100-80", "a100-80"),
        ("a100 40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100 80GB PCIe", "a100-80"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("Tesla T4", "t4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("3090", "rtx-3090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_names(spelled: str, name: str) -> None:
    assert find(spelled).name == name


@pytest.mark.parametrize("name", names())
def test_numbers_hang_together(name: str) -> None:
    device = find(name)
    assert device.name == name
    assert 0.94 < device.memory / (device.total_mib * MIB) <= 1.0
    assert device.link >= device.pcie


def test_what_is_published() -> None:
    """nvidia-smi's totals; capacities as out-of-memory errors print them; NVLink's published total is both ways."""
    assert find("h100").total_mib == 81559
    assert find("h200").memory / GIB == pytest.approx(139.8, abs=0.05)
    assert find("b200").memory / GIB == pytest.approx(178.35, abs=0.05)
    assert 2 * find("h100").link == pytest.approx(900e9)
    assert 2 * find("a100-80").link == pytest.approx(600e9)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a100", "a100-80 or a100-40"),
        ("v100", "v100-32 or v100-16"),
        ("h10", "did you mean"),
        ("toaster", "known are b200"),
        ("", "known are"),
        ("h100 40GB", "has 81559 MiB"),
    ],
)
def test_names_that_are_none(name: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        find(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * GIB),
        ("80GB", 80_000_000_000),
        ("80 gb", 80_000_000_000),
        ("24g", 24 * GIB),
        ("81559MiB", 81559 * MIB),
        ("1.5TiB", 3 * 2**39),
        ("512m", 512 * MIB),
        ("85899345920", 80 * GIB),
        ("85899345920B", 80 * GIB),
        ("8e10b", 80_000_000_000),
        (".5 GiB", GIB // 2),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-80GiB", "80", "0GiB", "80GiBs", "8e999", "1e30GiB", "nan", "eighty", "80 80"]
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(BadInput):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7.5e9", 7_500_000_000),
        ("7.5B", 7_500_000_000),
        ("125M", 125_000_000),
        ("1.8t", 1_800_000_000_000),
        ("4k", 4000),
        ("7_500_000_000", 7_500_000_000),
        ("7,500,000,000", 7_500_000_000),
        ("1", 1),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "B", "-7B", "0", "0.2", "7.5 billions", "1e400", "7GiB", "inf"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(BadInput):
        parse_count(text)
