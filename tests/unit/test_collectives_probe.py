"""Positions of process groups, over real gloo groups of one rank and recorded flight recorders."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ranktop.probes.collectives import CollectiveProbe, Status, parse_status
from ranktop.probes.reading import GroupPosition

RECORDED = (
    b'{"comm_lib_version":"","nccl_comm_state":{},"pg_config":{"":{"desc":"","name":"","ranks":"[]"}},"pg_status":'
    b'{"0":{"last_completed_collective":"3","last_enqueued_collective":"4","last_started_collective":"-1"},'
    b'"2":{"last_completed_collective":"-1","last_enqueued_collective":"1","last_started_collective":"-1"}},'
    b'"version":"2.10"}'
)
"""As torch 2.13 gave it while a rank hung in its fourth all_reduce."""


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=30))
    try:
        yield
    finally:
        dist.destroy_process_group()


def positions() -> dict[str, GroupPosition]:
    found = CollectiveProbe().read()
    assert found.reason is None
    return {group.description: group for group in found.groups}


def reduce(times: int, group: dist.ProcessGroup | None = None) -> None:
    """Run collectives one by one, each noted as completed before the next.

    gloo's two threads note in no particular order what they completed, so a burst may leave an older number behind.
    """
    name = (group or dist.group.WORLD).group_name  # type: ignore[union-attr]
    for _ in range(times):
        dist.all_reduce(torch.ones(4), group=group)
        deadline = time.monotonic() + 10
        while True:
            mine = next(found for found in CollectiveProbe().read().groups if found.name == name)
            if mine.completed == mine.enqueued:
                break
            assert time.monotonic() < deadline, mine
            time.sleep(0.001)


def test_without_a_process_group_there_is_a_reason() -> None:
    assert CollectiveProbe().read().reason == "no process group"


def test_without_torch_there_is_a_reason() -> None:
    program = (
        "import sys; from ranktop.probes.collectives import CollectiveProbe; print(CollectiveProbe().read().reason);"
        "assert 'torch' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "torch.distributed is not loaded"


@pytest.mark.usefixtures("world")
def test_each_group_has_its_own_count() -> None:
    groups = {name: dist.new_group([0], group_desc=name) for name in ("data", "tensor", "unused")}
    counts = {"default_pg": 5, "data": 2, "tensor": 1, "unused": 0}
    for name, count in counts.items():
        reduce(count, groups.get(name))
    found = positions()
    assert {name: (group.enqueued, group.completed) for name, group in found.items()} == {
        name: (count, count) for name, count in counts.items()
    }
    assert {group.size for group in found.values()} == {1}
    assert len({group.name for group in found.values()}) == len(counts)


@pytest.mark.usefixtures("world")
def test_a_group_that_is_gone_does_not_lend_its_position_to_another() -> None:
    kept = dist.new_group([0], group_desc="kept")
    old = dist.new_group([0], group_desc="old")
    reduce(7, old)
    reduce(1, kept)
    dist.destroy_process_group(old)
    new = dist.new_group([0], group_desc="new")
    reduce(3, new)
    found = positions()
    assert set(found) == {"default_pg", "kept", "new"}
    assert (found["kept"].enqueued, found["kept"].completed) == (1, 1)
    assert (found["new"].enqueued, found["new"].completed) == (3, 3)


@pytest.mark.usefixtures("world")
def test_a_backend_without_a_name_does_not_hide_the_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    reduce(2)
    nameless = dist.ProcessGroup(0, 8)  # type: ignore[call-arg]
    monkeypatch.setitem(dist.distributed_c10d._world.pg_map, nameless, ("odd", None))
    found = {group.description: group for group in CollectiveProbe().read().groups}
    assert found["default_pg"].enqueued == 2
    assert (found[""].size, found[""].enqueued) == (8, None)


@pytest.mark.usefixtures("world")
def test_it_costs_little() -> None:
    for _ in range(3):
        dist.new_group([0])
    probe = CollectiveProbe()
    probe.read()
    best = float("inf")
    for _ in range(50):
        started = time.perf_counter()
        probe.read()
        best = min(best, time.perf_counter() - started)
    assert best < 0.001


def test_a_recorder_of_torch() -> None:
    assert parse_status(RECORDED) == {0: Status(enqueued=4, completed=3), 2: Status(enqueued=1, completed=0)}
    assert parse_status(b'{"pg_status":{}}') == {}


class NcclGroup:
    """What the probe touches of a ProcessGroup with an NCCL backend (torch/_C/_distributed_c10d.pyi)."""

    def __init__(self, name: str, uid: int | None, sequence: int) -> None:
        self.group_name = name
        self.group_desc = f"mesh_{name}"
        self.backend = SimpleNamespace(_get_sequence_number_for_group=lambda: sequence)
        if uid is not None:
            self.backend.uid = uid

    def size(self) -> int:
        return 8

    def _get_backend(self, _device: torch.device) -> SimpleNamespace:
        return self.backend


def pretend(monkeypatch: pytest.MonkeyPatch, groups: dict[NcclGroup, str], **functions: Any) -> None:
    """Put other groups and other flight recorders in torch's place: NCCL's exist only on a machine with GPUs."""
    made = {group: (backend, None) for group, backend in groups.items()}
    distributed = SimpleNamespace(is_initialized=lambda: True, _world=SimpleNamespace(pg_map=made))
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", distributed)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**functions))


def dump(statuses: dict[int, tuple[int, int]]) -> Any:
    status = {
        str(key): {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}
        for key, (enqueued, completed) in statuses.items()
    }
    text = json.dumps({"pg_status": status}).encode()
    return lambda includeCollectives: text


def test_nccl_groups_are_told_apart_by_their_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {
        NcclGroup("0", uid=0, sequence=40): "cpu:gloo,cuda:nccl",
        NcclGroup("3", uid=2, sequence=40): "nccl",
    }
    pretend(
        monkeypatch,
        groups,
        _dump_nccl_trace_json=dump({0: (40, 38), 1: (40, 40), 2: (40, 39)}),
        _dump_fr_trace_json=dump({}),
    )
    found = CollectiveProbe().read()
    by_name = {group.name: group for group in found.groups}
    assert by_name["0"] == GroupPosition(name="0", description="mesh_0", size=8, enqueued=40, completed=38)
    assert by_name["3"] == GroupPosition(name="3", description="mesh_3", size=8, enqueued=40, completed=39)


def test_groups_without_a_number_are_told_apart_by_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {NcclGroup(name, uid=None, sequence=4): "gloo" for name in ("0", "1")}
    pretend(monkeypatch, groups, _dump_fr_trace_json=dump({3: (4, 4), 5: (4, 2), 6: (9, 9)}))
    found = CollectiveProbe().read()
    assert [(group.name, group.completed) for group in found.groups] == [("0", 4), ("1", 2)]


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({}, "no flight recorder"),
        ({"_dump_nccl_trace_json": dump({})}, "TORCH_FR_BUFFER_SIZE=0"),
        ({"_dump_nccl_trace_json": lambda: b"{}"}, "not readable"),
        ({"_dump_nccl_trace_json": lambda includeCollectives: b"no json"}, "not readable"),
        ({"_dump_nccl_trace_json": dump({5: (3, 3)})}, "not known"),
    ],
    ids=["older torch", "switched off", "other signature", "other text", "other number"],
)
def test_without_the_recorder_the_own_count_remains(
    monkeypatch: pytest.MonkeyPatch, functions: dict[str, Any], words: str
) -> None:
    pretend(monkeypatch, {NcclGroup("0", uid=0, sequence=9): "nccl"}, **functions)
    found = CollectiveProbe().read()
    assert [(group.enqueued, group.completed) for group in found.groups] == [(9, None)]
    assert found.reason is not None
    assert words in found.reason


def test_a_torch_of_another_make_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace())
    found = CollectiveProbe().read()
    assert found.groups == ()
    assert "not readable with this torch" in (found.reason or "")
