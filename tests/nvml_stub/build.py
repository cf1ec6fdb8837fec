"""Builds the stand-in libnvidia-ml.so.1 and steers it; see stub.h for what it can do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nvml_stub.hardware import device as device
from nvml_stub.hardware import device_uuid as device_uuid

SOURCES: Final = tuple(sorted(Path(__file__).parent.glob("*.c")))


def compiler() -> str | None:
    """Return the C compiler of this machine, None when there is none."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


def build_library(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """Compile the library into ``folder``, leaving out the functions named, and return the folder."""
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    # A function that is left out gets a name that nobody looks for.
    flags = [f"-D{name}=without_{name}" for name in without]
    options = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", *flags]
    target = folder / "libnvidia-ml.so.1"
    command = [found, *options, "-o", str(target), *map(str, SOURCES), "-lpthread"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


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
        self.settings.update(changes)
        self.write()

    def write(self) -> None:
        """Put the settings where the library reads them, in one step."""
        partial = self.steering.with_suffix(".new")
        lines = (f"{key} {value}\n" for key, value in self.settings.items() if value is not None)
        partial.write_text("".join(lines), encoding="utf-8")
        partial.replace(self.steering)

    def call_lines(self, since: int = 0) -> tuple[list[tuple[float, str, int]], int]:
        """Return (monotonic seconds, function, device or -1) of the calls since a place in the file, and the end."""
        if not self.calls_file.exists():
            return [], since
        with self.calls_file.open("rb") as file:
            file.seek(since)
            data = file.read()
        words = [line.split() for line in data.decode("ascii").splitlines()]
        return [(float(when), name, int(number)) for when, name, number in words], since + len(data)

    def calls_end(self) -> int:
        """Return the place behind the last call, for ``call_lines``."""
        return self.calls_file.stat().st_size if self.calls_file.exists() else 0

    def calls(self) -> list[tuple[float, str]]:
        """Return (monotonic seconds, function) of every call so far."""
        return [(when, name) for when, name, _ in self.call_lines()[0]]

    def counts(self) -> Counter[str]:
        """Return how often each function has been called."""
        return Counter(name for _, name, _ in self.call_lines()[0])

    def environment(self) -> dict[str, str]:
        """Return the environment for a client process."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library),
            "NVML_STUB_FILE": str(self.steering),
            "NVML_STUB_CALLS": str(self.calls_file),
        }
