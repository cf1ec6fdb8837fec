"""Reads what ``nvidia-smi`` prints: ``-L``, ``-q`` and ``--query-...``."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

_GPU = re.compile(r"GPU (\d+): (.*) \(UUID: (GPU-[^)]+)\)")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")


@dataclass
class ListedMig:
    """A MIG instance in ``nvidia-smi -L``."""

    profile: str
    index: int
    uuid: str


@dataclass
class ListedGpu:
    """A GPU in ``nvidia-smi -L``."""

    index: int
    name: str
    uuid: str
    mig: list[ListedMig] = field(default_factory=list)


@dataclass
class Section:
    """A part of ``nvidia-smi -q``: a title or a line ``name : value``, and what is indented below it."""

    name: str
    value: str = ""
    parts: list[Section] = field(default_factory=list)

    def find(self, *path: str) -> str | None:
        """Return the value at a path of names, None if there is none."""
        for part in self.parts:
            if part.name == path[0]:
                return part.value if len(path) == 1 else part.find(*path[1:])
        return None

    def all(self, name: str) -> list[Section]:
        """Return the parts of this name."""
        return [part for part in self.parts if part.name == name]


def ask(*arguments: str) -> str:
    """Return what ``nvidia-smi`` prints."""
    run = subprocess.run(["nvidia-smi", *arguments], check=True, capture_output=True, text=True, timeout=60)
    return run.stdout


def listing(text: str) -> list[ListedGpu]:
    """Return the GPUs of ``nvidia-smi -L``."""
    gpus: list[ListedGpu] = []
    for line in text.splitlines():
        if found := _GPU.match(line):
            gpus.append(ListedGpu(int(found[1]), found[2], found[3]))
        elif found := _MIG.match(line):
            gpus[-1].mig.append(ListedMig(found[1], int(found[2]), found[3]))
    return gpus


def query(text: str) -> Section:
    """Return ``nvidia-smi -q`` as a tree; GPUs are its sections named ``GPU``, their bus ids the values."""
    root = Section("log")
    open_sections = [(-1, root)]
    for indent, name, value in _lines(text):
        if not indent and name.startswith("GPU ") and not value:
            name, value = "GPU", name[4:]
        while open_sections[-1][0] >= indent:
            open_sections.pop()
        section = Section(name, value)
        open_sections[-1][1].parts.append(section)
        open_sections.append((indent, section))
    return root


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    for line in text.splitlines():
        if not line.strip() or line.startswith("="):
            continue
        name, separator, value = line.partition(" : ")
        if not separator:
            name, value = line, ""
        yield len(line) - len(line.lstrip()), name.strip().rstrip(":").strip(), value.strip()


def rows(text: str, *columns: str) -> list[dict[str, str]]:
    """Return the rows of ``--query-gpu`` or ``--query-compute-apps`` with ``--format=csv,noheader,nounits``."""
    cells = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [dict(zip(columns, row, strict=True)) for row in cells]


def ask_rows(what: str, *columns: str) -> list[dict[str, str]]:
    """Ask for columns of ``gpu`` or ``compute-apps``; sizes are in MiB."""
    return rows(ask(f"--query-{what}={','.join(columns)}", "--format=csv,noheader,nounits"), *columns)


def mebibytes(text: str | None) -> int | None:
    """Return the number in ``81559 MiB`` or ``81559``, None for ``N/A`` and the like."""
    found = re.fullmatch(r"(\d+)( MiB)?", (text or "").strip())
    return int(found[1]) if found else None
