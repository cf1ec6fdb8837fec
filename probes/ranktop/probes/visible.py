"""Which devices a CUDA process sees, by ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``, without asking CUDA."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

LEGACY_MIG: Final = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")
"""What drivers before R470 call a MIG instance: the GPU, its GPU instance and its compute instance."""
_OTHER_WORDS: Final = {
    "NoDevFiles": "what Slurm writes for a job without a GPU",
    "all": "a word of NVIDIA_VISIBLE_DEVICES, not of CUDA_VISIBLE_DEVICES",
    "none": "a word of NVIDIA_VISIBLE_DEVICES, not of CUDA_VISIBLE_DEVICES",
    "void": "a word of NVIDIA_VISIBLE_DEVICES, not of CUDA_VISIBLE_DEVICES",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU as NVML lists it."""

    nvml_index: int
    uuid: str
    """``GPU-...``, as ``nvidia-smi -L`` prints it."""
    pci_bus_id: str | None = None
    name: str = ""
    mig: tuple[str, ...] = ()
    """UUIDs of its MIG instances in NVML's order; before R470 ``MIG-GPU-.../<gpu instance>/<compute instance>``."""
    instances: tuple[tuple[int | None, int | None], ...] = ()
    """(GPU instance, compute instance) of each entry of ``mig``, where known."""
    mig_enabled: bool = False
    """Its MIG mode is on: CUDA can't use the GPU as a whole."""


@dataclass(frozen=True, slots=True)
class Ordinal:
    """One device of the CUDA process."""

    ordinal: int
    """As in ``cuda:0``."""
    device: Seen
    """The GPU, also of a MIG instance."""
    mig: str | None = None
    """UUID of the MIG instance; None for a whole GPU, and for an instance that can't be told."""
    certain: bool = True
    """False: only CUDA itself knows; this is the likely one."""

    @property
    def uuid(self) -> str:
        """Name of the MIG instance if it is one, of the GPU otherwise."""
        return self.mig or self.device.uuid


@dataclass(frozen=True, slots=True)
class Visible:
    """What a CUDA process sees."""

    devices: tuple[Ordinal, ...] = ()
    notes: tuple[str, ...] = ()
    """What is remarkable about it, in words; each is one sentence without a full stop."""

    def at(self, ordinal: int) -> Ordinal | None:
        """Return the device that is ``cuda:<ordinal>``, None if the process sees fewer."""
        return self.devices[ordinal] if 0 <= ordinal < len(self.devices) else None


def resolve(visible: str | None, order: str | None, devices: Sequence[Seen]) -> Visible:
    """Return what a process sees whose environment says ``visible`` and ``order`` (None: not set).

    By the CUDA Programming Guide (CUDA Environment Variables) and the MIG User Guide (CUDA Device Enumeration): the
    list is read up to the first entry that names no device; an abbreviated UUID must fit one GPU alone; one MIG
    instance a process, and then no whole GPU. A device named twice leaves none, as torch has found. What counts is
    the environment at the time when CUDA was initialised.

    >>> a, b = Seen(0, "GPU-1a"), Seen(1, "GPU-2b")
    >>> [entry.uuid for entry in resolve("1,0", None, [a, b]).devices]
    ['GPU-2b', 'GPU-1a']
    """
    resolution = _Resolution(_in_order(devices), notes=[])
    _tell_order(order, devices, visible, resolution)
    if visible is None:
        found = [_Choice(device, resolution.indexes_certain) for device in resolution.devices]
    else:
        found = resolution.read(visible)
    return Visible(_enumerate(found, resolution.notes), tuple(resolution.notes))


@dataclass(frozen=True, slots=True)
class _Choice:
    device: Seen
    certain: bool
    mig: str | None = None
    named_mig: bool = False
    """The list names the instance itself."""


@dataclass(slots=True)
class _Resolution:
    """One reading of a list; says in ``notes`` what it stumbles over."""

    devices: list[Seen]
    """As CUDA numbers them."""
    notes: list[str] = field(default_factory=list)
    indexes_certain: bool = True

    def read(self, visible: str) -> list[_Choice]:
        entries = visible.split(",")
        if not visible.strip():
            self.notes.append("CUDA_VISIBLE_DEVICES is empty: CUDA sees no device")
            return []
        if self._twice(entries):
            return []
        found: list[_Choice] = []
        for place, entry in enumerate(entries):
            choice = self._entry(entry, self._why_unsure(entries, place))
            if choice is None:
                self._tell_end(entries, place, len(found))
                break
            if any((other.device, other.mig) == (choice.device, choice.mig) for other in found):
                self.notes.append(f"{entry.strip()} is named before in CUDA_VISIBLE_DEVICES: CUDA sees no device then")
                return []
            found.append(choice)
        return found

    def _twice(self, entries: list[str]) -> bool:
        """Whether an entry is repeated in the part that is read, which CUDA answers with no device at all."""
        seen: list[str | int] = []
        for entry in entries:
            name = entry if _is_uuid(entry) else _leading_number(entry)
            if name in seen:
                self.notes.append(f"{entry.strip()} stands twice in CUDA_VISIBLE_DEVICES: CUDA sees no device then")
                return True
            if isinstance(name, int) and name < 0:
                return False
            seen.append(name)
        return False

    def _entry(self, entry: str, unsure: bool) -> _Choice | None:
        text = entry.strip()
        if text.startswith("MIG-"):
            return self._instance(text, unsure)
        if text.startswith("GPU-"):
            fitting = [device for device in self.devices if device.uuid.startswith(text)]
            if len(fitting) > 1:
                self.notes.append(f"{text} fits {len(fitting)} GPUs")
            return _Choice(fitting[0], not unsure) if len(fitting) == 1 else None
        number = _leading_number(text)
        if not 0 <= number < len(self.devices):
            return None
        return _Choice(self.devices[number], self.indexes_certain and not unsure)

    def _instance(self, text: str, unsure: bool) -> _Choice | None:
        named = [(device, uuid) for device in self.devices for uuid in device.mig if uuid.startswith(text)]
        exact = [(device, uuid) for device, uuid in named if uuid == text]
        if exact or len(named) == 1:
            device, uuid = (exact or named)[0]
            # The guide speaks of abbreviated UUIDs for GPUs alone.
            return _Choice(device, bool(exact) and not unsure, uuid, True)
        legacy = LEGACY_MIG.fullmatch(text)
        parents = [device for device in self.devices if legacy and device.uuid.startswith(legacy[1])]
        if legacy is None or len(parents) != 1:
            return None
        wanted = (int(legacy[2]), int(legacy[3]))
        for uuid, ids in zip(parents[0].mig, parents[0].instances, strict=False):
            if ids == wanted:
                return _Choice(parents[0], not unsure, uuid, True)
        if parents[0].instances:
            return None
        self.notes.append(f"which MIG instance {text} is can't be told without the ids of its instances")
        return _Choice(parents[0], False, None, True)

    def _why_unsure(self, entries: list[str], place: int) -> bool:
        """Whether CUDA may read this entry otherwise; a note says so once."""
        entry, text = entries[place], entries[place].strip()
        why = ""
        if _is_uuid(text) != _is_uuid(entries[0].strip()):
            why = "indexes and UUIDs are mixed: what follows the first of the other kind, CUDA may leave out"
        elif _is_uuid(text) and text != entry:
            why = f"there is a space beside {text}: CUDA may take it for an end of the list"
        elif not _is_uuid(text) and _leading_number(text) >= 0 and not re.fullmatch(r"[+-]?[0-9]+", text):
            why = f"{text} is not a plain number: CUDA reads the digits that it begins with"
        if why and why not in self.notes:
            self.notes.append(why)
        return bool(why)

    def _tell_end(self, entries: list[str], place: int, found: int) -> None:
        text = entries[place].strip()
        rest = len(entries) - place - 1
        follows = f", and the {rest} after it are not read" if rest else ""
        number = _leading_number(text)
        if text == "" and not rest:
            return  # A comma at the end.
        if text in _OTHER_WORDS:
            why = f"{text} is {_OTHER_WORDS[text]}"
        elif text == "-1":
            why = "-1 ends CUDA_VISIBLE_DEVICES"
        elif not _is_uuid(text) and number >= len(self.devices):
            why = f"there is no GPU {number}"
        else:
            why = f"{text or 'an empty entry'} in CUDA_VISIBLE_DEVICES names no device"
        none = ": CUDA sees no device" if not found else ""
        self.notes.append(f"{why}{none}{follows}")


def _in_order(devices: Sequence[Seen]) -> list[Seen]:
    """Return them by PCI bus id, which is NVML's order too and CUDA's for GPUs of one kind."""
    keys = [(_bus(device.pci_bus_id), device.nvml_index) for device in devices]
    if any(bus is None for bus, _ in keys):
        return sorted(devices, key=lambda device: device.nvml_index)
    return [device for _, device in sorted(zip(keys, devices, strict=True), key=lambda pair: pair[0])]


def _bus(pci_bus_id: str | None) -> tuple[int, ...] | None:
    """Return domain, bus, device and function; NVML writes the domain with four or with eight digits.

    >>> _bus("00000000:81:00.0") == _bus("0000:81:00.0")
    True
    """
    parts = re.split("[:.]", pci_bus_id or "")
    try:
        return tuple(int(part, 16) for part in parts)
    except ValueError:
        return None


def _tell_order(order: str | None, devices: Sequence[Seen], visible: str | None, resolution: _Resolution) -> None:
    kinds = len({device.name for device in devices})
    resolution.indexes_certain = order == "PCI_BUS_ID" or kinds <= 1
    by_index = visible is None or not _is_uuid(visible.strip())
    if not resolution.indexes_certain and by_index and (visible is None or visible.strip()):
        resolution.notes.append(
            f"{kinds} kinds of GPUs, and CUDA numbers the fastest first: its order is only known with "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID or with UUIDs in CUDA_VISIBLE_DEVICES"
        )
    if order not in (None, "", "FASTEST_FIRST", "PCI_BUS_ID"):
        resolution.notes.append(f"CUDA_DEVICE_ORDER={order} is no order that CUDA knows")


def _enumerate(found: list[_Choice], notes: list[str]) -> tuple[Ordinal, ...]:
    """Number the choices, as MIG allows it."""
    usable = [choice for choice in found if choice.named_mig or choice.device.mig or not choice.device.mig_enabled]
    notes.extend(
        f"GPU {choice.device.nvml_index} is in MIG mode and has no instance: CUDA does not see it"
        for choice in found
        if choice not in usable
    )
    sliced = [choice for choice in usable if choice.named_mig or choice.device.mig]
    if not sliced:
        return tuple(Ordinal(place, choice.device, None, choice.certain) for place, choice in enumerate(usable))
    first, certain = sliced[0], sliced[0].certain
    if len(usable) > 1:
        certain = certain and first is usable[0] and first.named_mig
        notes.append("a process sees one MIG instance and no other device beside it, though more are listed")
    mig = first.mig
    if not first.named_mig:
        mig = first.device.mig[0]
        if len(first.device.mig) > 1:
            certain = False
            notes.append(
                f"GPU {first.device.nvml_index} has {len(first.device.mig)} MIG instances, and CUDA takes the first "
                "that it can: only the instance's UUID in CUDA_VISIBLE_DEVICES tells which"
            )
    return (Ordinal(0, first.device, mig, certain),)


def _is_uuid(entry: str) -> bool:
    return entry.startswith(("GPU-", "MIG-"))


def _leading_number(entry: str) -> int:
    """Return the number that ``entry`` begins with, -1 if none (``strtol`` of the C library, base 10).

    >>> _leading_number("1gpu2"), _leading_number(" +3"), _leading_number("two")
    (1, 3, -1)
    """
    match = re.match(r"\s*([+-]?[0-9]+)", entry)
    return int(match[1]) if match else -1
