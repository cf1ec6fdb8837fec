"""The doctor's lines on containers and limits, on machines made of files as the runtimes leave them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from doctor_machine import FIRST_NAMESPACE, Machine

from ranktop.tui.doctor import container, limits

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("files", "environ", "kinds"),
    [
        ({}, {}, []),
        ({"/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope\n"}, {}, []),
        ({"/.dockerenv": ""}, {}, ["docker"]),
        ({"/run/.containerenv": 'engine="podman-4.9.3"\n'}, {"container": "podman"}, ["podman"]),
        ({"/.singularity.d/env": ""}, {"APPTAINER_CONTAINER": "/x.sif"}, ["apptainer"]),
        (
            {"/proc/self/cgroup": "12:memory:/kubepods/burstable/pod1/0a\n"},
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            ["kubernetes"],
        ),
        ({"/proc/self/cgroup": "4:memory:/docker/0123456789abcdef\n"}, {}, ["docker"]),
        (
            {"/proc/self/mountinfo": "36 35 0:50 /enroot/data/user-1000/pyxis_1.0 / rw - tmpfs none rw\n"},
            {},
            ["enroot"],
        ),
        ({"/proc/self/mountinfo": "36 35 0:50 / / rw - ext4 /dev/vda1 rw\n37 36 0:9 / /docker rw - x y z\n"}, {}, []),
        ({}, {"container": "systemd-nspawn"}, ["systemd-nspawn"]),
        ({}, {"container": "\x1b[31m"}, []),
    ],
)
def test_the_kind_of_container(
    machine: Machine, files: dict[str, str], environ: dict[str, str], kinds: list[str]
) -> None:
    for name, text in files.items():
        machine.file(name, text)
    machine.environ.update(environ)
    assert container.runtimes(machine.scene()) == kinds
    assert container.look_at_runtime(machine.scene()).status == "pass"


def test_whose_process_ids(machine: Machine, tmp_path: Path) -> None:
    assert container.look_at_pids(machine.scene()).status == "skip"
    machine.link("/proc/self/ns/pid", FIRST_NAMESPACE).file("/proc/self/status", "Name:\tx\nNSpid:\t4711\t12\n")
    host = container.look_at_pids(machine.scene())
    assert (host.status, host.facts["own"], host.facts["ids"]) == ("pass", False, [4711, 12])
    (tmp_path / "proc/self/ns/pid").unlink()
    machine.link("/proc/self/ns/pid", "pid:[4026532837]")
    assert container.look_at_pids(machine.scene()).status == "pass"
    machine.driver()
    own = container.look_at_pids(machine.scene())
    assert (own.status, own.facts["own"]) == ("warn", True)
    assert "--pid=host" in own.advice


V2 = "/sys/fs/cgroup"
V1 = "/sys/fs/cgroup/memory"


def test_no_limit_is_told_as_such(machine: Machine) -> None:
    machine.file("/proc/meminfo", f"MemTotal:       {64 * GIB // 1024} kB\n")
    machine.file("/proc/self/cgroup", "0::/a/b\n").file(f"{V2}/a/b/memory.max", "max\n")
    result = container.look_at_memory(machine.scene())
    assert (result.status, result.facts["limit"], result.facts["ram"]) == ("pass", None, 64 * GIB)


def test_the_tightest_limit_above_a_process_counts(machine: Machine) -> None:
    machine.file("/proc/self/cgroup", "0::/slurm/job_1/step_0\n").file(f"{V2}/slurm/job_1/step_0/memory.max", "max\n")
    machine.file(f"{V2}/slurm/job_1/memory.max", f"{8 * GIB}\n").file(f"{V2}/slurm/memory.max", f"{32 * GIB}\n")
    machine.file(f"{V2}/slurm/job_1/memory.current", f"{6 * GIB}\n")
    machine.file(f"{V2}/slurm/job_1/memory.stat", f"anon 5\ninactive_file {2 * GIB}\n")
    assert container.memory_limit(machine.scene()) == (8 * GIB, 4 * GIB)


def test_inside_a_container_the_top_of_the_tree_is_its_own(machine: Machine) -> None:
    machine.file("/proc/self/cgroup", "0::/\n").file(f"{V2}/memory.max", str(GIB))
    assert container.memory_limit(machine.scene()) == (GIB, None)
    assert container.look_at_memory(machine.scene()).found == "at most 1.0 GiB"


def test_a_limit_of_cgroup_v1_that_is_nearly_used_up(machine: Machine) -> None:
    machine.file("/proc/meminfo", f"MemTotal: {16 * GIB // 1024} kB\n")
    machine.file("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/abc\n")
    machine.file(f"{V1}/memory.limit_in_bytes", str(4 * GIB)).file(f"{V1}/memory.usage_in_bytes", str(4 * GIB))
    machine.file(f"{V1}/memory.stat", "total_inactive_file 1024\n")
    result = container.look_at_memory(machine.scene())
    assert (result.status, result.facts["limit"]) == ("warn", 4 * GIB)
    assert "4.0 GiB of the machine's 16.0 GiB" in result.found


def test_an_unlimited_cgroup_of_v1_is_larger_than_the_ram(machine: Machine) -> None:
    machine.file("/proc/meminfo", f"MemTotal: {16 * GIB // 1024} kB\n").file("/proc/self/cgroup", "4:memory:/\n")
    machine.file(f"{V1}/memory.limit_in_bytes", "9223372036854771712")
    assert container.look_at_memory(machine.scene()).facts["limit"] is None


@pytest.mark.parametrize(
    ("total", "free", "writable", "inside", "status", "advice"),
    [
        (64 << 20, 64 << 20, True, ["docker"], "warn", "--shm-size"),
        (64 << 20, 60 << 20, True, ["docker", "kubernetes"], "warn", "emptyDir"),
        (64 << 20, 60 << 20, True, [], "warn", "remount"),
        (32 * GIB, 100 << 20, True, [], "warn", "ls -l /dev/shm"),
        (GIB, 512 << 20, True, ["podman"], "warn", "--shm-size"),
        (32 * GIB, 30 * GIB, True, ["docker"], "pass", ""),
        (32 * GIB, 30 * GIB, False, [], "fail", "chmod 1777"),
    ],
)
def test_shared_memory(total: int, free: int, writable: bool, inside: list[str], status: str, advice: str) -> None:
    result = limits.shared_memory(total, free, writable, inside)
    assert result.status == status
    assert advice in result.advice
    assert (result.facts["total"], result.facts["free"]) == (total, free)


def test_a_machine_without_shared_memory_fails(machine: Machine) -> None:
    assert limits.look_at_shared_memory(machine.scene()).status == "fail"


def test_locked_memory_matters_where_there_is_rdma(machine: Machine) -> None:
    assert limits.locked(8 << 20, 8 << 20, []).status == "pass"
    assert limits.locked(8 << 20, 8 << 20, ["mlx5_0"]).status == "warn"
    assert limits.locked(-1, -1, ["mlx5_0"]).status == "pass"
    machine.file("/sys/class/infiniband/mlx5_3/x")
    assert limits.look_at_locked(machine.scene()).facts["rdma"] == ["mlx5_3"]


@pytest.fixture
def _few_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_few_files")
def test_few_open_files_are_a_warning(machine: Machine) -> None:
    result = limits.look_at_files(machine.scene())
    assert (result.status, result.facts["soft"]) == ("warn", 1024)
    assert result.advice.startswith("ulimit -n ")


def test_ram(machine: Machine) -> None:
    assert limits.look_at_ram(machine.scene()).status == "skip"
    machine.file("/proc/meminfo", "MemTotal:  1000000 kB\nMemFree: 5 kB\nMemAvailable:  600000 kB\n")
    assert limits.look_at_ram(machine.scene()).facts["free"] == 600000 * 1024
    machine.file("/proc/meminfo", "MemTotal:  1000000 kB\nMemAvailable:  40000 kB\n")
    assert limits.look_at_ram(machine.scene()).status == "warn"
