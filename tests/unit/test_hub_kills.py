"""Which deaths by SIGKILL are put down to the kernel's OOM killer, from the counters in its files."""

from __future__ import annotations

import signal

import pytest

from ranktop.agent.hub_kills import KILLED, MAYBE, WINDOW, KernelKills
from ranktop.agent.hub_watch import Gone

MIB = 1 << 20


class Machine:
    """The files of a machine, and what is done to them."""

    def __init__(self, groups: str) -> None:
        self.files: dict[str, str] = {}
        self.groups, self.machine = groups, 0
        self.kills = KernelKills(self.read)

    def read(self, name: str) -> str | None:
        if name.startswith("/proc/") and name.endswith("/cgroup"):
            return self.groups
        if name == "/proc/vmstat":
            return f"nr_free_pages 7\noom_kill {self.machine}\n"
        return self.files.get(name)

    def v1(self, folder: str, kills: int, failures: int, limit: int = 2**63 - 4096) -> None:
        folder = f"/sys/fs/cgroup/memory{folder}"
        self.files[f"{folder}/memory.oom_control"] = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
        self.files[f"{folder}/memory.failcnt"] = f"{failures}\n"
        self.files[f"{folder}/memory.limit_in_bytes"] = f"{limit}\n"

    def v2(self, folder: str, kills: int, hits: int, limit: str = "max") -> None:
        folder = f"/sys/fs/cgroup{folder}"
        self.files[f"{folder}/memory.events"] = f"low 0\nhigh 0\nmax 9\noom {hits}\noom_kill {kills}\n"
        self.files[f"{folder}/memory.max"] = f"{limit}\n"

    def dies(self, pid: int, now: float, number: int = signal.SIGKILL) -> str:
        gone = Gone(pid, "signal", number, signal.Signals(number).name)
        found = self.kills.explain(gone, now)
        assert (found.pid, found.how, found.code) == (pid, "signal", number)
        return found.detail


def test_a_kill_at_a_limit_of_v1_is_named_with_the_limit() -> None:
    machine = Machine("4:memory:/job/step\n0::/\n")
    machine.v1("/job/step", 3, 10)
    machine.v1("/job", 5, 100, 512 * MIB)
    machine.v1("", 0, 0)
    machine.kills.join(7, 0.0)
    machine.v1("/job/step", 4, 10)
    machine.v1("/job", 5, 130, 512 * MIB)
    assert machine.dies(7, 1.0) == f"{KILLED}: its cgroup's limit is 512 MiB"


def test_a_kill_at_a_limit_of_v2_is_named_with_the_limit_that_was_hit() -> None:
    machine = Machine("0::/pod/rank\n")
    machine.v2("/pod/rank", 0, 0, f"{3 * 512 * MIB}")
    machine.v2("/pod", 0, 0, f"{256 * MIB}")
    machine.kills.join(7, 0.0)
    machine.v2("/pod/rank", 1, 1, f"{3 * 512 * MIB}")
    machine.v2("/pod", 1, 0, f"{256 * MIB}")
    assert machine.dies(7, 1.0) == f"{KILLED}: its cgroup's limit is 1.5 GiB"


def test_a_machine_without_memory_kills_without_any_limit_of_a_cgroup() -> None:
    machine = Machine("0::/pod\n")
    machine.v2("/pod", 0, 0, f"{512 * MIB}")
    machine.kills.join(7, 0.0)
    machine.v2("/pod", 1, 0, f"{512 * MIB}")
    assert machine.dies(7, 1.0) == KILLED


def test_a_cgroup_that_went_with_its_last_process_is_told_by_the_one_around_it() -> None:
    machine = Machine("0::/pod/rank\n")
    machine.v2("/pod/rank", 0, 0, f"{512 * MIB}")
    machine.v2("/pod", 4, 4)
    machine.kills.join(7, 0.0)
    for name in [name for name in machine.files if "/rank/" in name]:
        del machine.files[name]
    machine.v2("/pod", 5, 5)
    assert machine.dies(7, 1.0) == KILLED


def test_where_no_cgroup_tells_the_machine_may() -> None:
    machine = Machine("0::/\n")
    machine.kills.join(7, 0.0)
    machine.kills.join(8, 0.0)
    machine.machine += 1
    assert machine.dies(7, 1.0) == MAYBE
    assert machine.dies(8, 1.1) == "SIGKILL", "one kill is one death"


def test_another_process_that_was_killed_on_the_machine_says_nothing_of_this_one() -> None:
    machine = Machine("0::/pod\n")
    machine.v2("/pod", 0, 0)
    machine.kills.join(7, 0.0)
    machine.machine += 1
    assert machine.dies(7, 1.0) == "SIGKILL"


@pytest.mark.parametrize(("after", "expected"), [(WINDOW - 1, KILLED), (WINDOW + 1, "SIGKILL")])
def test_a_kill_of_long_ago_is_not_this_death(after: float, expected: str) -> None:
    machine = Machine("0::/pod\n")
    machine.v2("/pod", 0, 0)
    machine.kills.join(7, 0.0)
    machine.v2("/pod", 1, 0)
    machine.kills.look(2.0)
    assert machine.dies(7, 2.0 + after) == expected


def test_each_kill_is_put_down_to_one_death_and_only_to_one_by_sigkill() -> None:
    machine = Machine("0::/pod\n")
    machine.v2("/pod", 0, 0)
    for pid in (6, 7, 8, 9):
        machine.kills.join(pid, 0.0)
    machine.v2("/pod", 2, 0)
    assert machine.dies(6, 1.0, signal.SIGTERM) == "SIGTERM"
    assert [machine.dies(pid, 1.0) for pid in (7, 8, 9)] == [KILLED, KILLED, "SIGKILL"]
    gone = Gone(9, "exit", 1, "exit code 1")
    assert machine.kills.explain(gone, 1.0) is gone


def test_a_process_that_was_moved_is_counted_where_it_is() -> None:
    machine = Machine("0::/a\n")
    for folder in ("/a", "/b"):
        machine.v2(folder, 0, 0)
    machine.kills.join(7, 0.0)
    machine.groups = "0::/b\n"
    machine.kills.look(5.0)
    machine.v2("/b", 1, 0)
    assert machine.dies(7, 6.0) == KILLED
    assert 7 not in machine.kills


def test_a_machine_that_tells_nothing_changes_nothing() -> None:
    kills = KernelKills(lambda _: None)
    kills.join(7, 0.0)
    gone = Gone(7, "signal", 9, "SIGKILL")
    assert kills.explain(gone, 1.0) == gone


@pytest.mark.parametrize("leaving", ["4:memory:/\n0::/\n", "0::/\n", ""])
def test_a_process_on_its_way_out_is_counted_where_it_was(leaving: str) -> None:
    machine = Machine("4:memory:/job\n0::/\n")
    machine.v1("/job", 0, 0, 512 * MIB)
    machine.v1("", 0, 0)
    machine.kills.join(7, 0.0)
    machine.v1("/job", 1, 3, 512 * MIB)
    machine.groups = leaving
    machine.kills.look(3.0)
    assert machine.dies(7, 3.5) == f"{KILLED}: its cgroup's limit is 512 MiB"
