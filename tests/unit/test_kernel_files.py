"""The kernel's small files as odd kernels and sandboxes write them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from ranktop.probes import kernel_files
from ranktop.probes.kernel_files import cpu_ticks, machine_memory, started, text_of, text_or_none

KIB = 1024
BOOT = "/proc/sys/kernel/random/boot_id"


def kernel(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Have the kernel tell these files and no other."""

    def told(name: str) -> str:
        if name not in files:
            raise FileNotFoundError(name)
        return files[name]

    monkeypatch.setattr(kernel_files, "text_of", told)


def test_a_file_is_read_whole_whatever_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff" + b"a" * 200_000)
    assert text_of(str(file)) == "\ufffd" + "a" * 200_000
    assert text_or_none(str(tmp_path / "none")) is None
    assert text_or_none(str(tmp_path)) is None


def test_a_process_is_told_from_a_later_one_of_its_number() -> None:
    ticks = int(Path(f"/proc/{os.getpid()}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    assert started(os.getpid()) == f"{Path(BOOT).read_text(encoding='ascii').strip()}:{ticks}"


def test_a_sandbox_that_does_not_tell_its_boot_still_tells_two_processes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = " ".join(["S", *map(str, range(4, 22)), "777", "23", "24"])
    kernel(monkeypatch, {"/proc/5/stat": f"5 (a) b (c) {rest}\n"})
    assert started(5) == ":777"
    assert started(6) == ""


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 300 kB\n", (900 * KIB, 300 * KIB)),
        ("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n", (900 * KIB, 10 * KIB)),
    ],
)
def test_memory_is_what_is_told_of_it(monkeypatch: pytest.MonkeyPatch, told: str, expected: tuple[int, int]) -> None:
    kernel(monkeypatch, {"/proc/meminfo": told})
    assert machine_memory() == expected


@pytest.mark.parametrize(
    "files",
    [{}, *({"/proc/meminfo": f"MemTotal: 900 kB\nMemFree: 10 kB\n{more}"} for more in ("", "MemAvailable: 0 kB\n"))],
)
def test_where_the_kernel_tells_nothing_available_it_is_estimated(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    kernel(monkeypatch, files)
    total, available = machine_memory()
    assert total == psutil.virtual_memory().total
    assert 0 < available < total


def test_guests_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(monkeypatch, {"/proc/stat": "cpu  100 20 30 1000 50 1 2 3 40 5\ncpu0 1 1 1 1\n"})
    assert cpu_ticks() == (156, 1206)
    kernel(monkeypatch, {"/proc/stat": "cpu  100 20 30 1000\n"})  # of Linux 2.4
    assert cpu_ticks() == (150, 1150)
