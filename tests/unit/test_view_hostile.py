"""Whatever numbers and texts a message carries, session and frame take them without an exception."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Plan, Precision
from ranktop.budget.terms import Memory
from ranktop.probes.reading import (
    DEVICE_STATES,
    AllocatorReading,
    Collectives,
    DeviceDetail,
    DeviceIdentity,
    DeviceProcess,
    DeviceReading,
    GroupPosition,
    MigInstance,
    NvLink,
    StepTimes,
)
from ranktop.tui.session.source import Link, Received, Reset
from ranktop.tui.session.state import Session
from ranktop.tui.view.chart import spark
from ranktop.tui.view.device_screen import Look, device_lines
from ranktop.tui.view.frame import frame
from ranktop.tui.view.options import MOMENT_CHOICES, SORTS, ZOOMS, Options
from ranktop.tui.view.text import ASCII, UNICODE, length
from ranktop.wire.schema import Body, Card, Device, End, Header, History, Job, Mark, Point, Sample, Table

WHOLE = st.one_of(st.none(), st.sampled_from([0, 1, -1, 2**63, 10**12]), st.integers(-(2**63), 2**64 - 1))
REAL = st.one_of(
    st.none(), st.sampled_from([0.0, -1.0, 1e300, 1e-300]), st.floats(allow_nan=False, allow_infinity=False)
)
NUMBER = st.floats(-1e9, 1e9)
TEXT = st.one_of(st.just("peak"), st.text(max_size=30), st.just("\x1b[2J[bold]日本\u202e"))
PIDS = st.sampled_from([1, 7, 48_109, 2**32 - 1])
PROCESSES = st.one_of(st.none(), st.lists(st.builds(DeviceProcess, PIDS, WHOLE), max_size=4).map(tuple))
LINK = st.builds(NvLink, st.integers(0, 40), st.sampled_from([None, True, False]), WHOLE, WHOLE, WHOLE)
MEMORY = st.builds(Memory, *[WHOLE] * 10)
REASONS = st.dictionaries(st.sampled_from(["optimizer", "power"]), TEXT, max_size=2)
STEP = st.builds(StepTimes, st.integers(-5, 2**40), REAL, REAL, REAL, REAL, REAL)
DEVICE = st.builds(
    DeviceReading, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, REAL, REAL, WHOLE, WHOLE, WHOLE, REASONS, NUMBER,
    st.sampled_from([*DEVICE_STATES, "odd"]), WHOLE, st.one_of(st.none(), st.lists(TEXT, max_size=3).map(tuple)),
    PROCESSES, WHOLE, st.dictionaries(st.sampled_from(["power", "odd", "throttle"]), NUMBER, max_size=2),
)  # fmt: skip
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int | None": WHOLE, "float | None": REAL, "bool | None": st.sampled_from([None, True, False]),
    "str | None": st.one_of(st.none(), TEXT), "tuple[DeviceProcess, ...] | None": PROCESSES,
    "tuple[NvLink, ...] | None": st.one_of(st.none(), st.lists(LINK, max_size=4).map(tuple)), "str": TEXT,
    "tuple[str, ...]": st.lists(st.sampled_from(["power", "processes", "odd"]), max_size=2).map(tuple),
    "bool": st.booleans(), "dict[str, str]": REASONS, "dict[str, float]": st.dictionaries(TEXT, NUMBER, max_size=2),
    "int": st.integers(0, 9), "dict[int, int]": st.dictionaries(st.integers(0, 9), st.integers(-5, 2**50), max_size=2),
}  # fmt: skip
"""What a field may hold, by its annotation."""


def anything(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Build a dataclass with anything in its fields."""
    return st.builds(kind, **{field.name: KINDS[str(field.type)] for field in fields(kind)})


DETAIL = st.builds(
    Device, rank=st.just(0), detail=anything(DeviceDetail), allocator=anything(AllocatorReading)
)  # fmt: skip
MIG = st.builds(MigInstance, st.one_of(st.none(), TEXT), WHOLE, WHOLE, WHOLE, TEXT)
IDENTITY = st.builds(
    DeviceIdentity, st.sampled_from(["cuda", "host", "\x1b[2J"]),
    st.sampled_from([None, "GPU-1", "\x1b]0;x\x07", "MIG-" * 40]), TEXT, WHOLE, WHOLE, WHOLE,
    st.one_of(st.none(), TEXT), st.one_of(st.none(), MIG), WHOLE, st.booleans(), TEXT, TEXT, TEXT,
)  # fmt: skip
TABLE = st.builds(Table, step=st.integers(0, 2**40), moments=st.dictionaries(st.sampled_from(MOMENT_CHOICES), MEMORY))
GROUP = st.builds(GroupPosition, TEXT, TEXT, WHOLE, WHOLE, WHOLE)
SAMPLE = st.builds(
    Sample, rank=st.just(0), interval=NUMBER, now=MEMORY, table=st.one_of(st.none(), TABLE), reasons=REASONS,
    device=DEVICE, peak_allocated=WHOLE, inactive_split=WHOLE, retries=WHOLE, ooms=WHOLE, step=st.integers(0, 2**50),
    step_age=st.one_of(st.none(), NUMBER), steps=st.lists(STEP, max_size=3).map(tuple), phase=TEXT,
    collectives=st.builds(Collectives, st.lists(GROUP, max_size=2).map(tuple), st.one_of(st.none(), TEXT)),
)  # fmt: skip
JOB = st.builds(Job, id=TEXT, name=TEXT, world_size=st.sampled_from([0, 1, 3, 2**40, -4]))
PLAN = st.builds(Plan, strategy=TEXT, precision=st.builds(Precision, parameters=TEXT), checkpointing=TEXT)
KIND = st.builds(Kind, st.tuples(st.integers(-3, 2**33)), TEXT)
CARD = st.builds(
    Card, job=JOB, rank=st.just(0), node=TEXT, device=IDENTITY, pid=PIDS, pids=st.lists(PIDS, max_size=2).map(tuple),
    model=TEXT, inventory=st.one_of(st.none(), st.lists(KIND, max_size=3).map(Inventory.of)),
    plan=st.one_of(st.none(), PLAN), notes=st.lists(TEXT, max_size=2).map(tuple), revision=st.integers(0, 2**30),
)  # fmt: skip
POINT = st.builds(Point, NUMBER, st.integers(0, 2**40), REAL, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, REAL, WHOLE)
END = st.builds(End, rank=st.just(0), how=TEXT, code=WHOLE, detail=TEXT)
BODY = st.one_of(
    SAMPLE, SAMPLE, CARD, END, DETAIL, st.builds(Mark, what=TEXT, detail=TEXT),
    st.builds(History, rank=st.just(0), points=st.lists(POINT, max_size=5).map(tuple)),
)  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(st.tuples(st.integers(0, 4), BODY), max_size=8),
    JOB,
    st.sampled_from([(1, 1), (33, 9), (80, 24), (140, 60)]),
    st.builds(
        Options, sort=st.sampled_from(SORTS), zoom=st.sampled_from(ZOOMS), moment=st.sampled_from(MOMENT_CHOICES),
        page=st.integers(0, 4), filter=st.sampled_from(["", "!", "0", "odd"]), reverse=st.booleans(),
        glyphs=st.sampled_from([ASCII, UNICODE]), letters=st.booleans(),
    ),
)  # fmt: skip
def test_a_frame_of_anything(
    messages: list[tuple[int, Body]], job: Job, size: tuple[int, int], options: Options
) -> None:
    session = Session(lambda: 100.0)
    received = [
        Received(Header(type(body).__name__.lower(), rank, 7, 0, 0), body, 1.0, number)
        for number, (rank, body) in enumerate(messages)
    ]
    session.feed([Reset(job, "h", False), *received])
    snapshot = session.snapshot()
    made = frame(snapshot, Link(state="live"), options, size, "", 100.0)
    for line in (made.header, made.heading, made.legend, made.footer):
        assert length(line) == size[0]
        assert "\x1b" not in "".join(text for text, _ in line)
    for left, right in [*zip(made.bars, made.numbers, strict=True), *zip(made.facts, made.side, strict=True)]:
        assert length(left) + length(right) == size[0]
        assert "\x1b" not in "".join(text for text, _ in (*left, *right))
    for selected in (None, 0):
        options.selected = selected
        screen = device_lines(snapshot, Link(state="live"), Look(top=3), options, size, "")
        assert len(screen) == size[1]
        for line in screen:
            assert length(line) == size[0]
            assert "\x1b" not in "".join(text for text, _ in line)


def test_numbers_far_apart_are_drawn_empty_and_full() -> None:
    assert spark([-2e7, 0.0, 1e-300, 1e300, float("inf")], 5, ASCII, 1e-300) == "  @@@"
