"""The memory limit of a cgroup: from its files, and in a real one where this machine lets us make it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranktop.probes.cgroup import MemoryGroups, MemoryLimit

MIB = 1 << 20
GIB = 1 << 30
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")

CHILD = """
import json, mmap, sys
from ranktop.probes.host import HostDevice
host = HostDevice()
before = host.read()
with mmap.mmap(-1, 64 << 20) as block:
    for at in range(0, len(block), mmap.PAGESIZE):
        block[at] = 1
    after = host.read()
identity = host.identity()
print(json.dumps([identity.total, identity.note, before.total, before.used, before.free, after.used, after.free]))
"""


def groups(**files: str) -> MemoryGroups:
    """Return the groups of a machine whose files are these; ``__`` stands for a slash in a name."""
    by_name = {"/" + name.replace("__", "/"): text for name, text in files.items()}
    return MemoryGroups(by_name.get)


def test_a_machine_without_limits_has_none() -> None:
    assert groups().tightest() is None
    names = {
        "proc__self__cgroup": "4:memory:/\n",
        "sys__fs__cgroup__memory__memory.limit_in_bytes": f"{2**63 - 4096}\n",
    }
    assert groups(**names).tightest() is None


def test_idle_pages_of_files_do_not_count_as_used() -> None:
    names = {
        "proc__self__cgroup": "0::/job\n",
        "sys__fs__cgroup__job__memory.max": f"{8 * GIB}\n",
        "sys__fs__cgroup__job__memory.current": f"{5 * GIB}\n",
        "sys__fs__cgroup__job__memory.stat": f"anon 7\ninactive_file {2 * GIB}\n",
    }
    assert groups(**names).tightest() == MemoryLimit(8 * GIB, 3 * GIB)


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory cgroup of our own with a limit of 512 MiB."""
    top, name = (V1, "memory.limit_in_bytes") if (V1 / "memory.limit_in_bytes").exists() else (V2, "memory.max")
    group = top / f"ranktop-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / name).write_text(str(512 * MIB))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    group.rmdir()


def test_the_limit_is_the_total_of_a_host_device(limited: Path) -> None:
    def enter() -> None:
        (limited / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-c", CHILD]
    found = subprocess.run(command, preexec_fn=enter, capture_output=True, text=True, timeout=60, check=True)
    total, note, read_total, used, free, used_after, free_after = json.loads(found.stdout)
    assert total == read_total == 512 * MIB
    assert "0.5 GiB of the machine's" in note
    assert used + free == used_after + free_after == total
    assert 60 * MIB < used_after - used < 72 * MIB
