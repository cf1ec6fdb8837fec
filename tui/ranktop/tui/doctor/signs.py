"""Signs of an NVIDIA GPU and its driver that need no driver to see."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ranktop.tui.doctor.scene import Scene

MODULE_FILE = "/proc/driver/nvidia/version"
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""PCI classes: VGA and 3D controllers."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What the machine shows of NVIDIA hardware by itself."""

    pci: tuple[str, ...]
    """PCI addresses of NVIDIA GPUs."""
    module: str | None
    """Version of the loaded kernel module."""
    module_loaded: bool
    nodes: tuple[str, ...]
    """Device files: ``nvidiactl``, ``nvidia-uvm``, ``nvidia0``, ..."""
    wsl: bool
    """Windows' driver serves the GPU (``/dev/dxg``)."""

    @property
    def driver(self) -> bool:
        """A driver was meant to be here: its module or its device files are."""
        return self.module_loaded or bool(self.nodes) or self.wsl

    @property
    def any(self) -> bool:
        """Something NVIDIA is here."""
        return self.driver or bool(self.pci)


def signs(scene: Scene) -> Signs:
    """Look at /sys, /proc and /dev."""
    version = scene.text(MODULE_FILE)
    return Signs(
        pci=_pci(scene),
        module=module_version(version or ""),
        module_loaded=version is not None,
        nodes=_nodes(scene),
        wsl=scene.exists("/dev/dxg"),
    )


def module_version(text: str) -> str | None:
    """Return the driver's version out of /proc/driver/nvidia/version, None when it does not tell.

    >>> module_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 22:50:36 UTC 2025")
    '570.86.15'
    """
    found = re.search(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)*)\s", text)
    return found.group(1) if found else None


def _pci(scene: Scene) -> tuple[str, ...]:
    found = []
    try:
        entries = sorted(scene.path("/sys/bus/pci/devices").iterdir())
    except OSError:
        return ()
    for entry in entries:
        vendor = (scene.text(f"/sys/bus/pci/devices/{entry.name}/vendor") or "").strip()
        kind = (scene.text(f"/sys/bus/pci/devices/{entry.name}/class") or "").strip()
        if vendor == _NVIDIA and kind.startswith(_DISPLAY):
            found.append(entry.name)
    return tuple(found)


def _nodes(scene: Scene) -> tuple[str, ...]:
    try:
        names = [entry.name for entry in scene.path("/dev").iterdir()]
    except OSError:
        return ()
    return tuple(sorted(name for name in names if re.fullmatch(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)", name)))
