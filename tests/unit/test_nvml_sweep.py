"""Every getter x every return code, on one GPU of eight: the other seven stay right, the eighth says what and why.

So do the screens: seven rows unchanged, and the eighth's are painted. One file, because the sweep takes half a minute
and is run once per file. ``pytest -s`` prints how many pairs have run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from fake_job import FakeClock, FakeJob, FakeSource, fsdp_job
from nvml_stub.client import difference
from nvml_stub.sweep import AT_START, CODES, COUNT, CURES, FIELDS, OLDER, SICK, WORDS, P, Pair, Sweep, words_of

from ranktop.probes.reading import DeviceDetail, DeviceIdentity, DeviceReading
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session
from ranktop.tui.view.device_screen import Look, device_lines
from ranktop.tui.view.frame import frame
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line

pytest_plugins = ["nvml_stub.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def wrong(pairs: list[Pair], check: Callable[[Pair], object]) -> list[str]:
    """Return what a check says of pairs that fail it."""
    return [f"{pair.name}: {problem}" for pair in pairs if (problem := check(pair))]


def test_every_function_that_is_called_is_swept(nvml_sweep: Sweep) -> None:
    asked = {name for name in nvml_sweep.called if name not in AT_START}
    assert asked == {*FIELDS, *OLDER}, "the probe and the table differ"
    assert len(nvml_sweep.pairs) == len({*FIELDS, *OLDER}) * len(CODES)


def test_the_reading_is_there_within_an_interval(nvml_sweep: Sweep) -> None:
    assert wrong(nvml_sweep.pairs, lambda pair: "" if pair.met and pair.seconds < 1 else f"{pair.seconds:.2f} s") == []


def test_the_other_seven_stay_as_they_were(nvml_sweep: Sweep) -> None:
    assert wrong(nvml_sweep.pairs, lambda pair: pair.others) == []


def test_everything_is_as_before_when_the_code_is_gone(nvml_sweep: Sweep) -> None:
    assert wrong(nvml_sweep.pairs, lambda pair: pair.after) == []


def test_a_code_costs_the_getters_own_fields_and_names_itself(nvml_sweep: Sweep) -> None:
    def check(pair: Pair) -> object:
        reading = pair.told["reading"]
        own = {name: "reading" if name in reading else "detail" for name in pair.fields}
        # Under the first version of memory info there is no "reserved" to lose.
        had = {name: part for name, part in own.items() if pair.before[part][name] is not None}
        expected = {f"{part}.{name}" for name, part in had.items()} | {f"{part}.reasons" for part in own.values()}
        changed = set(difference(pair.before, pair.told))
        if changed != expected or reading["state"] != "ok":
            return f"{reading['state']}, changed {sorted(changed ^ expected)}"
        for name, part in own.items():
            reason = pair.told[part]["reasons"].get(name, "")
            words: tuple[str, ...] = (words_of(pair.getter, pair.code, name),)
            if words[0].startswith("(NVML"):
                words = (*words, WORDS[pair.code], CURES.get(pair.code, ""))
            if pair.told[part][name] is not None or not all(word in reason for word in words):
                return f"{name} is {pair.told[part][name]}: {reason!r}"
        return ""

    pairs = [pair for pair in nvml_sweep.pairs if pair.fields]
    assert len(pairs) > 500
    assert wrong(pairs, check) == []


def test_an_older_form_answers_in_place_of_a_newer_one(nvml_sweep: Sweep) -> None:
    pairs = [pair for pair in nvml_sweep.pairs if not pair.fields]
    assert {pair.getter for pair in pairs} == {newer for names in OLDER.values() for newer in names}

    def check(pair: Pair) -> object:
        older = next(name for name, newer in OLDER.items() if newer[-1] == pair.getter)
        changed = set(difference(pair.before, pair.told))
        if pair.getter.endswith("MemoryInfo_v2"):
            reason = pair.told["reading"]["reasons"].get("reserved", "")
            if "counts what it reserves as used" not in reason or pair.told["reading"]["reserved"] is not None:
                return f"reserved is not said to be unknown: {reason!r}"
            changed -= {"reading.reserved", "reading.reasons"}
        return changed or ("" if older in pair.called else f"{older} was not called")

    assert wrong(pairs, check) == []


LIVE = Link(state="live", age=0.1)
SIZE = (120, 40)
TALL = (160, 120)


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


@dataclass
class Screen:
    """The real session and view, fed with the messages of eight ranks."""

    job: FakeJob = field(default_factory=lambda: fsdp_job(COUNT))
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.source = FakeSource(self.job, self.clock)
        self.session = Session(self.clock)
        self.session.feed(self.source.drain())

    def tell(self, rank: int, told: dict[str, Any]) -> None:
        """Have a rank say what a probe told."""
        sample, described = self.job.sample(rank, 0), self.job.described(rank)
        reading = msgspec.convert(told["reading"], DeviceReading)
        detail = msgspec.convert(told["detail"], DeviceDetail)
        identity = msgspec.convert(told["identity"], DeviceIdentity)
        for body, kind in (
            (msgspec.structs.replace(self.job.card(rank), device=identity), "card"),
            (msgspec.structs.replace(sample, device=reading), "sample"),
            (msgspec.structs.replace(described, detail=detail), "device"),
        ):
            self.session.feed([self.source.message(rank, body, kind)])
        assert self.session.failure == ""

    def rows(self) -> list[str]:
        """The rows of all ranks."""
        snapshot = self.session.snapshot()
        made = frame(snapshot, LIVE, Options(), SIZE, "", snapshot.now)
        return [text(left) + text(right) for left, right in zip(made.bars, made.numbers, strict=True)]

    def device(self, rank: int) -> str:
        """The device screen of a rank, as one line."""
        lines = device_lines(self.session.snapshot(), LIVE, Look(), Options(selected=rank), TALL, "")
        assert len(lines) == TALL[1]
        return " ".join(" ".join(text(line) for line in lines).split())


def test_every_pair_is_painted_and_named(nvml_sweep: Sweep) -> None:
    screen = Screen()
    problems = []
    for pair in nvml_sweep.pairs:
        screen.tell(SICK, pair.told)
        shown = screen.device(SICK)
        problems += [f"{pair.name}: {word!r} is not on the device screen" for word in missing(pair, shown)]
    assert problems == []


SAID: dict[str, tuple[str, ...]] = {
    f"{P}MemoryInfo_v2": ("used", "free"),
    f"{P}ComputeRunningProcesses_v3": ("processes", "own memory"),
    f"{P}UtilizationRates": ("utilization", "memory bus"),
    f"{P}PowerUsage": ("power",),
    f"{P}Temperature": ("temperature",),
    f"{P}ClockInfo": ("SM clock", "memory clock"),
    f"{P}CurrentClocksEventReasons": ("throttle",),
    f"{P}EnforcedPowerLimit": ("power limit",),
    f"{P}FieldValues": ("memory temperature", "NVLink"),
    f"{P}TotalEnergyConsumption": ("energy",),
    f"{P}RemappedRows": ("remapped rows",),
    f"{P}EccMode": ("ECC",),
    f"{P}FanSpeed": ("fan",),
}
"""Getter -> how a person knows what it tells."""


def missing(pair: Pair, shown: str) -> list[str]:
    """Return what should stand among the values that are not known, and does not."""
    if not pair.fields:
        return []
    unknown = shown.partition(" not known ")[2]
    words = [WORDS[pair.code], f"(NVML {pair.code})", *SAID.get(pair.getter, ())]
    return [word for word in words if word not in unknown]


def test_seven_rows_are_unchanged_whatever_the_eighth_says(nvml_sweep: Sweep) -> None:
    screen = Screen()
    # Each getter with some of the codes, each code with some of the getters.
    pairs = [pair for place, pair in enumerate(nvml_sweep.pairs) if place % 3 == 0]
    assert {pair.getter for pair in pairs} >= set(FIELDS)
    assert {pair.code for pair in pairs} == set(CODES)
    screen.tell(SICK, pairs[0].before)
    before = screen.rows()
    for pair in pairs:
        screen.tell(SICK, pair.told)
        rows = screen.rows()
        assert len(rows) == COUNT
        assert [row for n, row in enumerate(rows) if n != SICK] == [row for n, row in enumerate(before) if n != SICK]
    screen.tell(SICK, pairs[0].before)
    assert screen.rows() == before


STATES = {15: "lost", 16: "reset"}
"""Code -> the word in the rank's row; ``unavailable`` of the others."""


def test_a_whole_device_that_says_it_is_named_in_its_row_with_the_cure(nvml_sweep: Sweep) -> None:
    screen = Screen()
    screen.tell(SICK, nvml_sweep.pairs[0].before)
    before = screen.rows()
    assert list(nvml_sweep.whole) == list(CODES)
    for code, told in nvml_sweep.whole.items():
        screen.tell(SICK, told)
        rows, shown = screen.rows(), screen.device(SICK)
        assert rows[:SICK] + rows[SICK + 1 :] == before[:SICK] + before[SICK + 1 :]
        assert f"(NVML {code})" in shown
        assert CURES.get(code, "") in shown
        # Supporting nothing is no illness.
        word = "" if code == 3 else STATES.get(code, "unavailable")
        said = [one for one in ("unavailable", *STATES.values()) if one in rows[SICK]]
        assert said == [word] * bool(word), (code, rows[SICK])
    screen.tell(SICK, nvml_sweep.pairs[0].before)
    assert screen.rows() == before
