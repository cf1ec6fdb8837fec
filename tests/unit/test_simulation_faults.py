"""Every fault of a simulated job changes what it should on its rank, and nothing on the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest

from ranktop.agent.simulation.faults import ENDING, KINDS, parse, placed, table
from ranktop.agent.simulation.job import PREFIX, Setup
from ranktop.agent.simulation.learning import loss_at
from ranktop.agent.simulation.memory import Device
from ranktop.agent.simulation.voice import LAUNCHER_SECONDS, Job, Said, Voice
from ranktop.budget.terms import CATEGORIES, Memory
from ranktop.tui.commands import FAULTS
from ranktop.wire.codec import decode_body, encode_body
from ranktop.wire.schema import BODIES, Box, Card, End, Header, Sample, Stack
from ranktop.wire.schema import Device as DeviceMessage

RANKS = 8
CULPRIT = 5
SECONDS = 16

TIMES = {"steps", "step", "step_age", "collectives", "looks", "phase", "now", "table", "device.used", "device.free",
         "device.process_used", "device.processes", "uptime", "progress"}  # fmt: skip
"""What follows from how long a step takes, and what lies in memory at a time."""

READ_WITH_STEPS = {"peak_allocated", "inactive_split", "allocator"}
"""Differs a little from step to step, so that it is of another one when steps take longer."""

CHANGES: dict[str, set[str]] = {
    "straggler": set(),
    "data": set(),
    "pcie": {"detail"},
    "throttle": {"device.sm_clock", "device.throttle", "device.temperature", "device.power"},
    "starved": {"starved"},
    "tokens": {"peak_allocated", "allocator"},
    "activations": {"peak_allocated", "allocator"},
    "copy": {"peak_allocated", "allocator"},
    "leak": {"peak_allocated", "allocator"},
    "fragmentation": {"inactive_split", "retries", "allocator"},
    "strays": set(),
    "version": {"versions"},
    "code": {"code"},
}
"""Fault -> what it changes on its rank beyond ``TIMES``, in samples, cards and messages about the device."""

HEAVY = {"tokens", "activations", "copy", "leak", "fragmentation", "strays"}
"""Those that change what lies in memory; and of them only the first takes time."""

SLOW = {"straggler", "data", "pcie", "throttle", "starved", "tokens"}


@lru_cache
def told(*texts: str, seconds: int = SECONDS, **more: Any) -> dict[int, list[Said]]:
    job = Job(Setup(ranks=RANKS, faults=placed(map(parse, texts), RANKS, 0), **more))
    voices = [Voice(job, rank, pid=77) for rank in range(RANKS)]
    said: dict[int, list[Said]] = {rank: [] for rank in range(RANKS)}
    for second in range(seconds):
        for voice in voices:
            said[voice.rank] += voice.speak(second + 0.4 + 0.01 * voice.rank, 9000.0 + second)
    return said


def facts(said: Iterable[Said]) -> Iterator[tuple[str, Any]]:
    """Flatten messages into named facts, the parts of what the device says one by one."""
    for body in said:
        if isinstance(body, (Sample, Card, DeviceMessage)):
            for name in body.__struct_fields__:
                value = getattr(body, name)
                if name == "device" and is_dataclass(value) and isinstance(body, Sample):
                    yield from ((f"device.{one.name}", getattr(value, one.name)) for one in fields(value))
                else:
                    yield name, value


def differences(one: list[Said], other: list[Said]) -> set[str]:
    pairs = zip(facts(one), facts(other), strict=True)
    return {name for (name, value), (_, changed) in pairs if value != changed}


def tables(said: list[Said]) -> dict[int, str]:
    """Step -> what lay in memory at its moments."""
    samples = [body for body in said if isinstance(body, Sample)]
    return {body.table.step: repr(body.table.moments) for body in samples if body.table is not None}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_fault_changes_its_rank_and_no_other(name: str) -> None:
    healthy, faulty = told(), told(f"{name}:rank={CULPRIT}")
    for rank in range(RANKS):
        changed = differences(healthy[rank], faulty[rank])
        if rank != CULPRIT:
            assert changed <= (TIMES | READ_WITH_STEPS if name in SLOW else set()), f"of rank {rank}"
            assert tables(faulty[rank]).items() <= tables(healthy[rank]).items()
            continue
        assert changed >= CHANGES[name]
        follows = TIMES | READ_WITH_STEPS if name in SLOW else TIMES if name in HEAVY else set()
        assert changed - CHANGES[name] <= follows
        assert changed


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_memory_adds_up_whatever_the_fault(name: str) -> None:
    for rank in (0, CULPRIT):
        for body in told(f"{name}:rank={CULPRIT}")[rank]:
            if isinstance(body, Sample):
                memories = [body.now, *(body.table.moments.values() if body.table else ())]
                assert all(adds_up(memory) for memory in memories)
                assert body.device.used == body.now.used()


def adds_up(memory: Memory) -> bool:
    parts = [getattr(memory, name) for name in CATEGORIES]
    return all(part >= 0 for part in parts) and sum(parts) == memory.total


def test_a_script_tells_a_loss_that_falls_and_nan_where_it_is_asked_for() -> None:
    said = told(f"nan:rank={CULPRIT}:from=6")
    for rank in range(RANKS):
        known = {body.progress.step: body.progress for body in said[rank] if isinstance(body, Sample) and body.progress}
        finite = [one.loss for step, one in sorted(known.items()) if (step and step < 6) or rank != CULPRIT]
        assert None not in finite
        assert len(finite) > 3
        bad = {step for step, one in known.items() if one.not_finite.get("loss") == "nan"}
        assert bad == ({step for step in known if step and step >= 6} if rank == CULPRIT else set())
    losses = [loss_at(step, 128256, 0) for step in (1, 100, 1000, 10_000)]
    assert losses == sorted(losses, reverse=True)
    assert 11 < losses[0] < 12


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_a_healthy_rank_holds_what_its_plan_says(strategy: str) -> None:
    from ranktop.tui.session.expected import difference, expected

    said = told(strategy=strategy)[3]
    card = next(body for body in said if isinstance(body, Card))
    tables = [body.table for body in said if isinstance(body, Sample) and body.table is not None]
    assert [entry.first for entry in tables[:2]] == [True, False]
    for entry in (tables[0], tables[-1]):
        budget = expected(card, entry)
        assert budget is not None
        for moment, memory in entry.moments.items():
            for category in ("parameters", "gradients", "optimizer", "activations", "buffers"):
                assert difference(getattr(memory, category), budget.at(moment)[category]) == 0, (moment, category)


def last_table(said: list[Said]) -> dict[str, Memory]:
    return [body.table for body in said if isinstance(body, Sample) and body.table is not None][-1].moments


def test_sharding_that_did_not_happen_shows_the_whole_model_on_every_rank() -> None:
    said = told("unsharded")
    whole = Setup(faults=(parse("unsharded"),)).inventory.numel * 4
    for rank in range(RANKS):
        for memory in last_table(said[rank]).values():
            assert memory.parameters == whole
            assert memory.optimizer is not None
            assert memory.optimizer >= 2 * whole
    card = next(body for body in said[0] if isinstance(body, Card))
    assert card.plan is not None
    assert (card.plan.strategy, card.plan.layout.shard) == ("fsdp2", RANKS)


def test_no_sync_holds_whole_gradients_and_sharded_parameters() -> None:
    memory = last_table(told("no_sync")[2])["backward_start"]
    assert memory.gradients is not None
    assert memory.parameters is not None
    assert memory.gradients > 0.9 * RANKS * memory.parameters


def test_a_leak_grows_with_every_step_until_the_device_is_full() -> None:
    setup = Setup(faults=placed([parse("leak:rank=2:by=0.01:from=3")], RANKS, 0))
    device = Device(setup, 2)
    rest = [device.step(index).moments["step_end"].activations or 0 for index in range(2, 12)]
    grown = [b - a for a, b in pairwise(rest)]
    assert grown[0] == 0
    assert set(grown[1:]) == {int(0.01 * (device.step(2).moments["step_end"].total or 0))}
    full = device.full_at()
    assert full is not None
    assert (device.step(full - 1).moments["forward_end"].free or 0) > 0


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_a_full_device_ends_the_rank_and_is_never_more_than_full(strategy: str) -> None:
    said = told("leak:rank=2:by=0.02", seconds=60, strategy=strategy)
    for body in said[2]:
        if isinstance(body, Sample) and body.table is not None:
            assert all(adds_up(memory) for memory in body.table.moments.values())
    held = max(memory.activations or 0 for memory in last_table(said[2]).values())
    box = next(body for body in said[2] if isinstance(body, Box))
    assert adds_up(box.memory)
    assert box.asked is not None
    assert box.free is not None
    assert box.asked > box.free
    assert box.memory.activations is not None
    assert box.memory.activations > held
    assert [body.how for body in said[2] if isinstance(body, End)] == ["exception"]


@pytest.mark.parametrize("name", ["kill", "oom", "oomkill"])
def test_one_rank_ends_and_the_launcher_ends_the_others(name: str) -> None:
    said = told(f"{name}:rank=5:from=3", seconds=14)
    ends = {rank: [body for body in bodies if isinstance(body, End)] for rank, bodies in said.items()}
    assert all(len(found) == 1 for found in ends.values())
    assert (ends[5][0].how, ends[5][0].code) == (("exception", 1) if name == "oom" else ("signal", 9))
    assert {(end.how, end.code) for rank, (end,) in ends.items() if rank != 5} == {("signal", 15)}
    assert all(isinstance(bodies[-1], End) for bodies in said.values()), "nothing is said after it"
    samples = {rank: sum(isinstance(body, Sample) for body in bodies) for rank, bodies in said.items()}
    assert samples[0] - samples[5] == LAUNCHER_SECONDS
    assert any(isinstance(body, Box) for body in said[5]) == (name == "oom")


def test_a_restart_begins_anew_with_a_new_life() -> None:
    said = told("restart:rank=1:from=3", seconds=20)
    for rank in range(RANKS):
        cards = [body for body in said[rank] if isinstance(body, Card)]
        assert [card.restart for card in cards] == [0, 1]
        samples = [body for body in said[rank] if isinstance(body, Sample)]
        again = [after.step for before, after in pairwise(samples) if after.step < before.step]
        assert again == [0]
        assert samples[-1].step > 3
        assert samples[-1].table is not None


def test_a_rank_that_hangs_is_elsewhere_and_idle_while_the_others_spin() -> None:
    said = told("hang:rank=5:from=3", seconds=20)
    stacks = {rank: [body for body in bodies if isinstance(body, Stack)] for rank, bodies in said.items()}
    assert all(len(found) == 1 for found in stacks.values())
    assert {stacks[rank][0].calls[-1].function for rank in range(RANKS) if rank != 5} == {"_engine_run_backward"}
    assert stacks[5][0].calls[-1].function == "wait"
    last = {rank: [body for body in bodies if isinstance(body, Sample)][-1] for rank, bodies in said.items()}
    assert [last[rank].device.utilization for rank in (4, 5, 6)] == [100, 0, 100]
    enqueued = [last[rank].collectives.groups[0].enqueued for rank in range(RANKS)]
    assert min(range(RANKS), key=lambda rank: enqueued[rank] or 0) == 5
    assert {sample.step for sample in last.values()} == {2}


def test_silence_and_absence() -> None:
    stopped = told("stop:rank=5:from=3", seconds=20)
    count = {rank: sum(isinstance(body, Sample) for body in bodies) for rank, bodies in stopped.items()}
    assert count[5] < count[0] == 20
    assert not any(isinstance(body, End) for bodies in stopped.values() for body in bodies)
    missing = told("missing:rank=5")
    assert missing[5] == []
    assert {body.step for body in missing[0] if isinstance(body, Sample)} == {0}
    lost = [body for body in told("lost:rank=5:from=3", seconds=20)[5] if isinstance(body, Sample)]
    assert (lost[0].device.state, lost[-1].device.state) == ("ok", "lost")
    assert lost[-1].device.age > 5
    assert lost[-1].device.reasons["device"]


def header_of(body: Said) -> Header:
    kinds = {kind for kind, body_type in BODIES.items() if type(body) is body_type}
    return Header(kinds.pop(), body.rank, 1, 0, 0)


def test_everything_said_survives_the_wire() -> None:
    seen = set()
    for texts in (("hang:from=2",), ("oom:from=2",), ("strays", "pcie", "throttle")):
        for bodies in told(*texts).values():
            for body in bodies:
                seen.add(type(body).__name__)
                assert decode_body(header_of(body), encode_body(body)) == body
    assert seen == {"Card", "Sample", "Device", "Stack", "Box", "End"}


def test_every_card_says_that_it_is_simulated() -> None:
    for strategy in ("fsdp2", "ddp"):
        for rank, bodies in told("restart:from=2", strategy=strategy).items():
            for body in bodies:
                if isinstance(body, Card):
                    assert body.simulated
                    assert body.rank == rank
                    assert body.job.name.startswith(PREFIX)


def test_the_same_seed_says_the_same() -> None:
    texts = ("straggler", "leak")
    one = told(*texts, seed=9)
    told.cache_clear()
    assert told(*texts, seed=9) == one
    assert told(*texts, seed=10) != one


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("slow", "no fault 'slow'; there are straggler, data"),
        ("straggler:rank=x", "'rank=x' is no value that rank can have"),
        ("straggler:rank=-1", "'rank=-1' is no value"),
        ("straggler:by=0", "'by=0' is no value"),
        ("straggler:by=nan", "'by=nan' is no value"),
        ("straggler:from=0", "'from=0' is no value"),
        ("straggler:to=9", "no option 'to=9'; straggler has rank, by, from"),
        ("unsharded:rank=1", "no option 'rank=1'; unsharded has from"),
        ("hang:by=2", "no option 'by=2'; hang has rank, from"),
    ],
)
def test_what_is_no_fault_is_said_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="fault") as raised:
        parse(text)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_faults_without_a_rank_get_different_ones() -> None:
    chosen = placed([parse("straggler"), parse("leak"), parse("copy:rank=1"), parse("no_sync")], 4, 7)
    assert len({fault.rank for fault in chosen[:3]} & set(range(4))) == 3
    assert chosen[3].rank == -1
    assert chosen == placed([parse("straggler"), parse("leak"), parse("copy:rank=1"), parse("no_sync")], 4, 7)
    with pytest.raises(ValueError, match="there is no rank 4 among 4"):
        placed([parse("straggler:rank=4")], 4, 0)


def test_the_lists_name_every_fault() -> None:
    assert FAULTS.split(", ") == list(KINDS)
    for name in KINDS:
        assert any(line.startswith(f"{name} ") for line in table().splitlines())
    tested = {*CHANGES, *ENDING, "unsharded", "no_sync", "missing", "nan"}
    assert tested == set(KINDS)
