"""A machine of files for the doctor's checks, and the doctor as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranktop.tui.doctor.check import Result
from ranktop.tui.doctor.scene import Scene

MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 22:50:36 UTC 2025\nGCC version:\n"
"""/proc/driver/nvidia/version of a driver with the closed kernel module."""
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22-I3-B16-01-1)\n"
)
FIRST_NAMESPACE = "pid:[4026531836]"
LIBRARY = {"path": "/lib/libnvidia-ml.so.1", "version": "570.86.15", "size": 9, "error": None, "elsewhere": None}
NO_LIBRARY = {"path": None, "version": None, "size": None, "error": "cannot open shared object file", "elsewhere": None}


@dataclass(slots=True)
class Machine:
    """Files under a folder that stand for a machine's."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    nvml: dict[str, Any] | None = None

    def file(self, name: str, text: str = "") -> Machine:
        """Add a file."""
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return self

    def link(self, name: str, target: str) -> Machine:
        """Add a symbolic link."""
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return self

    def gpu(self, address: str = "0000:1b:00.0", vendor: str = "0x10de", kind: str = "0x030200") -> Machine:
        """Add a device to the PCI bus."""
        folder = f"/sys/bus/pci/devices/{address}"
        return self.file(f"{folder}/vendor", f"{vendor}\n").file(f"{folder}/class", f"{kind}\n")

    def driver(self, text: str = MODULE, nodes: Sequence[str] = ("nvidiactl", "nvidia-uvm", "nvidia0")) -> Machine:
        """Add a loaded kernel module and its device files."""
        for name in nodes:
            self.file(f"/dev/{name}")
        return self.file("/proc/driver/nvidia/version", text)

    def container(self) -> Machine:
        """Make it a docker container."""
        return self.file("/.dockerenv")

    def said(self, *devices: dict[str, Any], library: Mapping[str, Any] = LIBRARY, **changes: Any) -> Machine:
        """Have NVML's process say this."""
        self.nvml = {
            "library": dict(library),
            "init": {"state": "no library" if library["error"] else "ok", "code": 0, "words": "", "seconds": 0.1},
            "driver": "570.86.15",
            "nvml": "12.570.86.15",
            "cuda_driver": "12.8",
            "count": len(devices),
            "devices": list(devices),
            "errors": {},
            **changes,
        }
        return self

    def scene(self) -> Scene:
        """Return the machine as the checks see it."""
        return Scene(environ=self.environ, until=time.monotonic() + 5, root=self.root, nvml=lambda: self.nvml)


def one(result: Result | Sequence[Result]) -> Result:
    """Return the only result."""
    if isinstance(result, Result):
        return result
    (only,) = result
    return only


@dataclass(frozen=True, slots=True)
class Report:
    """What a doctor's process printed."""

    code: int
    out: str
    errors: str
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        """The output as JSON."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    def checks(self, id: str) -> list[dict[str, Any]]:
        """Return the checks of one id."""
        return [check for check in self.json["checks"] if check["id"] == id]

    def check(self, id: str) -> dict[str, Any]:
        """Return the only check of one id."""
        (only,) = self.checks(id)
        return only


def doctor(*arguments: str, environ: Mapping[str, str] | None = None, torch: bool = False) -> Report:
    """Run the command; without ``torch`` as in an environment that has none."""
    hide = "" if torch else "sys.modules['torch'] = None; "
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {hide}from ranktop.tui.cli import main; main()", "doctor", *arguments],
        env=dict(os.environ if environ is None else environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
    )
    return Report(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
