"""GPUs by name: memory and links; and sizes and counts as people type them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Final

from ranktop.budget.model import BadInput

GIB: Final = 1 << 30
MIB: Final = 1 << 20

_PCIE3: Final = 15.75e9
_PCIE4: Final = 31.5e9
_PCIE5: Final = 63.0e9
"""Bytes per second and direction of sixteen lanes."""


@dataclass(frozen=True, slots=True)
class Device:
    """One model of GPU."""

    name: str
    total_mib: int
    """MiB that NVML (``nvidia-smi``) calls its total; some of it is the driver's."""
    usable_gib: float
    """GiB that CUDA calls its capacity (``torch.cuda.mem_get_info``, the text of an out-of-memory error)."""
    nvlink: float | None
    """Bytes per second that one GPU can send to the others of its node over NVLink or Infinity Fabric, all links
    together; None = there is none, or not on every board."""
    pcie: float
    """Bytes per second and direction over PCIe, to the host and to other GPUs without NVLink."""

    @property
    def memory(self) -> int:
        """Bytes that a plan may fill: CUDA's capacity. The context of the process comes out of it."""
        return int(self.usable_gib * GIB)

    @property
    def link(self) -> float:
        """Bytes per second to the other GPUs of a node."""
        return self.nvlink or self.pcie


_DEVICES: Final = (
    Device("b200", 183359, 178.35, 900e9, _PCIE5),
    Device("h200", 143771, 139.80, 450e9, _PCIE5),
    Device("h100", 81559, 79.10, 450e9, _PCIE5),
    Device("h100-pcie", 81559, 79.10, None, _PCIE5),
    Device("h100-nvl", 95830, 93.09, None, _PCIE5),
    Device("rtx-pro-6000", 97887, 94.97, None, _PCIE5),
    Device("a100-80", 81920, 79.15, 300e9, _PCIE4),
    Device("a100-40", 40960, 39.38, 300e9, _PCIE4),
    Device("v100-32", 32768, 31.73, 150e9, _PCIE3),
    Device("v100-16", 16384, 15.77, 150e9, _PCIE3),
    Device("l40s", 46068, 44.39, None, _PCIE4),
    Device("l40", 46068, 44.39, None, _PCIE4),
    Device("a40", 46068, 44.34, None, _PCIE4),
    Device("a6000", 49140, 47.40, None, _PCIE4),
    Device("rtx-6000-ada", 49140, 47.40, None, _PCIE4),
    Device("l4", 23034, 22.03, None, _PCIE4),
    Device("a10", 23028, 22.03, None, _PCIE4),
    Device("a10g", 23028, 22.03, None, _PCIE4),
    Device("t4", 15360, 14.56, None, _PCIE3),
    Device("rtx-5090", 32607, 31.36, None, _PCIE5),
    Device("rtx-4090", 24564, 23.52, None, _PCIE4),
    Device("rtx-3090", 24576, 23.56, None, _PCIE4),
    Device("mi300x", 196592, 191.69, 448e9, _PCIE5),
)
"""Totals as NVML and CUDA report them, the smallest seen where drivers differ (a few hundred MiB); NVLink: 18 links of
50 GB/s both ways on Blackwell (100) and Hopper, 12 on Ampere, 6 on Volta; Infinity Fabric: 7 links of 64 GB/s."""

_BY_NAME: Final = {device.name: device for device in _DEVICES}

_WORDS_WITHOUT_MEANING: Final = frozenset(
    [
        "nvidia",
        "amd",
        "geforce",
        "tesla",
        "instinct",
        "quadro",
        "rtx",
        "gpu",
        "graphics",
        "generation",
        "blackwell",
        "server",
        "workstation",
        "edition",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
        "sxm",
        "sxm2",
        "sxm3",
        "sxm4",
        "sxm5",
        "oam",
    ]
)


def names() -> tuple[str, ...]:
    """Return the names of the GPUs that are known."""
    return tuple(_BY_NAME)


def find(name: str) -> Device:
    """Return a GPU by its name here or as its driver spells it (``NVIDIA A100-SXM4-80GB``).

    Raises BadInput with the nearest names, or with the sizes when it comes in several.
    """
    spaced = re.sub(r"rtx(?=\d)", "rtx ", name.lower())
    words = [word for word in re.split(r"[^a-z0-9]+", spaced) if word and word not in _WORDS_WITHOUT_MEANING]
    words = [re.sub(r"^(\d+)g(i?b)?$", r"\1", word) for word in words]
    spelled = "-".join(words)
    for candidate in (spelled, "-".join(words[:2]), "-".join(words[:1] + words[-1:]), "-".join(words[:1])):
        for known in (candidate, f"rtx-{candidate}"):
            if known in _BY_NAME:
                return _with_memory(_BY_NAME[known], words, name)
    sizes = [known for known in _BY_NAME if spelled and known.startswith(f"{spelled}-")]
    if sizes:
        raise BadInput(f"{name} comes in several sizes: {' or '.join(sizes)}")
    close = get_close_matches(spelled, _BY_NAME, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(_BY_NAME)}"
    raise BadInput(f"no GPU {name!r}; {hint}")


def _with_memory(device: Device, words: list[str], name: str) -> Device:
    """Refuse a name that gives a GPU a memory that it does not have."""
    said = next((int(word) for word in words[1:] if word.isdigit()), None)
    has = device.total_mib * MIB
    if said is not None and f"-{said}" not in device.name and not 0.9 < said * 1e9 / has < 1.1:
        raise BadInput(f"{name}: a {device.name} has {device.total_mib} MiB")
    return device


_UNITS: Final = {
    "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "k": 1 << 10, "m": MIB, "g": GIB, "t": 1 << 40, "kib": 1 << 10, "mib": MIB, "gib": GIB, "tib": 1 << 40,
}  # fmt: skip

_NUMBER: Final = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return bytes: GB = 10^9, GiB = 2^30, and a bare G is GiB, as NVIDIA's and Docker's tools mean it.

    Raises BadInput for what is no size, is not positive, or has no unit although it could not be meant in bytes.
    """
    number, unit = _split(text, "a size", "80GiB, 80GB or 81559MiB")
    if not unit:
        if number < MIB:
            raise BadInput(f"{text.strip()!r} needs a unit, e.g. {text.strip()}GiB")
        unit = "b"
    if unit not in _UNITS:
        raise BadInput(f"{text.strip()!r}: no unit {unit!r}; sizes are like 80GiB, 80GB or 81559MiB")
    return _positive(number * _UNITS[unit], text, "a size")


_COUNTS: Final = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def parse_count(text: str) -> int:
    """Return a number of parameters or tokens: ``7.5e9``, ``7.5B``, ``125M``, ``7_500_000_000``. Raises BadInput."""
    number, unit = _split(text, "a number", "7.5e9, 7.5B or 125M")
    if unit not in _COUNTS:
        raise BadInput(f"{text.strip()!r}: no unit {unit!r}; numbers are like 7.5e9, 7.5B or 125M")
    return _positive(number * _COUNTS[unit], text, "a number")


def _split(text: str, what: str, examples: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise BadInput(f"{text.strip()!r} is not {what}; write it like {examples}")
    digits, exponent, unit = found.groups()
    return float(re.sub("[_,]", "", digits) + (exponent or "")), unit.lower()


def _positive(value: float, text: str, what: str) -> int:
    if not isfinite(value) or not 1 <= value < 1e21:
        raise BadInput(f"{text.strip()!r} cannot be meant as {what}")
    return round(value)
