"""Builds the stand-in libnvidia-ml.so.1 and steers it; see nvml_stub.c for what it can do."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stub.c")
GIB = 1 << 30


def compiler() -> str | None:
    """Return the C compiler of this machine, None when there is none."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


def build_library(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """Compile the library into ``folder``, leaving out the functions named, and return the folder."""
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    flags = [f"-DWITHOUT_{name}" for name in without]
    target = folder / "libnvidia-ml.so.1"
    command = [found, "-shared", "-fPIC", "-O1", *flags, "-o", str(target), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


def device_uuid(number: int) -> str:
    """Return the UUID of device ``number`` as the stub's default has it."""
    return f"GPU-{number:08x}-0000-0000-0000-{number:012x}"


def device(number: int, **changes: object) -> dict[str, object]:
    """Return the settings of a device that differ from those of every other, with ``changes``."""
    total = 80 * GIB
    settings: dict[str, object] = {
        "uuid": device_uuid(number),
        "name": f"NVIDIA Test {number}",
        "index": number,
        "total": total,
        "reserved": 600 << 20,
        "used": (10 + number) * GIB,
        "free": total - (600 << 20) - (10 + number) * GIB,
        "util": 50 + number,
        "power": 300_000 + number,
        "limit": 700_000,
        "temp": 60 + number,
        "sm": 1980 - number,
        "mem": 2619,
    }
    settings.update(changes)
    return settings


@dataclass(slots=True)
class NvmlStub:
    """One steered copy of the library: the files that it reads and writes, and the environment of its clients."""

    library: Path
    """Folder to put on the loader's path."""
    folder: Path
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def steering(self) -> Path:
        """File that the library reads."""
        return self.folder / "nvml_stub.txt"

    @property
    def calls_file(self) -> Path:
        """File to which the library appends its calls."""
        return self.folder / "nvml_calls.txt"

    def devices(self, *devices: dict[str, object]) -> None:
        """Replace all settings by these devices."""
        self.settings = {"devices": len(devices)}
        for number, settings in enumerate(devices):
            self.settings.update({f"d{number}.{key}": value for key, value in settings.items()})
        self.write()

    def set(self, **changes: object) -> None:
        """Change settings (``d0__util=3`` for ``d0.util``); None takes one away."""
        self.update({key.replace("__", "."): value for key, value in changes.items()})

    def update(self, changes: dict[str, object]) -> None:
        """Change settings by their names; None takes one away."""
        for key, value in changes.items():
            if value is None:
                self.settings.pop(key, None)
            else:
                self.settings[key] = value
        self.write()

    def write(self) -> None:
        """Put the settings where the library reads them, in one step."""
        partial = self.steering.with_suffix(".new")
        partial.write_text("".join(f"{key} {value}\n" for key, value in self.settings.items()), encoding="utf-8")
        partial.replace(self.steering)

    def calls(self) -> list[tuple[float, str]]:
        """Return (monotonic seconds, function) of every call so far."""
        if not self.calls_file.exists():
            return []
        pairs = [line.split() for line in self.calls_file.read_text(encoding="utf-8").splitlines()]
        return [(float(when), name) for when, name in pairs]

    def environment(self) -> dict[str, str]:
        """Return the environment for a client process."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library),
            "NVML_STUB_FILE": str(self.steering),
            "NVML_STUB_CALLS": str(self.calls_file),
        }
