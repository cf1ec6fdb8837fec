from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Fsdp, Layout, OptimizerPlan, Plan, State
from ranktop.budget.terms import Memory
from ranktop.probes.reading import Collectives, DeviceReading, GroupPosition, StepTimes
from ranktop.wire import codec
from ranktop.wire.progress import Progress
from ranktop.wire.schema import (
    MAX_MESSAGE,
    SCHEMA_VERSION,
    Ack,
    Ask,
    Batch,
    Body,
    Card,
    End,
    Header,
    History,
    Item,
    Job,
    Mark,
    Point,
    Sample,
    Table,
)

JOB = Job(id="00aa11", name="train", world_size=4)
PLAN = Plan(
    strategy="fsdp2",
    layout=Layout(world_size=4, shard=4),
    fsdp=Fsdp(reshard_after_forward=2),
    optimizer=OptimizerPlan(name="AdamW", count=1, options={"fused": True}, states=(State(name="exp_avg"),)),
)
CARD = Card(
    job=JOB,
    rank=3,
    inventory=Inventory.of([Kind((7, 3), "float32"), Kind((7,), "bfloat16"), Kind((7, 3), "float32")]),
    plan=PLAN,
)
SAMPLE = Sample(
    rank=3,
    now=Memory(parameters=2**40, free=0, total=2**41),
    table=Table(step=7, moments={"forward_end": Memory(activations=5)}),
    reasons={"cache": "no allocator"},
    device=DeviceReading(power=250.5, reasons={"temperature": "not supported"}),
    steps=(StepTimes(7, 0.25),),
    collectives=Collectives((GroupPosition("0", size=4, enqueued=9, completed=8),)),
)
BODIES: list[tuple[str, Body]] = [
    ("card", CARD),
    ("sample", SAMPLE),
    ("end", End(rank=3, how="signal", code=9, detail="SIGKILL")),
    ("history", History(rank=3, points=(Point(1.5, 2, None, 3, None, 4, 5, None, 6.5, None),))),
    ("mark", Mark(what="gap", detail="x")),
]


def header(kind: str) -> Header:
    return Header(kind, -1 if kind == "mark" else 3, 4242, 1, 17)


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_every_kind_survives_the_wire(kind: str, body: Body) -> None:
    head = header(kind)
    assert codec.decode_header(codec.encode_header(head)) == head
    assert codec.decode_body(head, codec.encode_body(body)) == body


def test_controls_survive_the_wire() -> None:
    ack, ask = Ack(hub="h", want_card=True), Ask(hub="h", since=4, wait=0.5)
    batch = Batch(hub="h", job=JOB, now=2.0, snapshot=True, last=9, items=(Item(9, 1.0, b"h", b"b"),), lost=3)
    assert codec.decode_ack(codec.encode_ack(ack)) == ack
    assert codec.decode_ask(codec.encode_ask(ask)) == ask
    assert codec.decode_batch(codec.encode_batch(batch)) == batch


def test_unknown_fields_of_a_newer_writer_are_skipped() -> None:
    fields = msgspec.to_builtins(End(rank=3, how="exit", code=0)) | {"added_later": [1, {"a": None}]}
    assert codec.decode_body(header("end"), msgspec.msgpack.encode(fields)) == End(rank=3, how="exit", code=0)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (SCHEMA_VERSION - 1, "the other side is older: upgrade ranktop there"),
        (SCHEMA_VERSION + 1, "this side is older: upgrade ranktop here"),
        (0xFFFF, "this side is older: upgrade ranktop here"),
    ],
)
def test_another_version_says_which_side_is_older(version: int, words: str) -> None:
    frame = codec.MAGIC + struct.pack(">H", version) + b"whatever a later version writes"
    for decode in (codec.decode_header, codec.decode_ack, codec.decode_ask, codec.decode_batch):
        with pytest.raises(codec.WrongVersion) as caught:
            decode(frame)
        assert (caught.value.theirs, caught.value.ours) == (version, SCHEMA_VERSION)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def harmless(decode: Callable[[bytes], object], data: bytes) -> bool:
    """Decode; anything but a WireError of one line is a failure."""
    try:
        decode(data)
    except codec.WireError as error:
        return "\n" not in str(error)
    return True


def decode_everything(data: bytes) -> None:
    """Give the bytes to every decoder."""
    for decode in (codec.decode_header, codec.decode_ack, codec.decode_ask, codec.decode_batch):
        assert harmless(decode, data)
        assert harmless(decode, codec.PREFIX + data)
    for kind in ("card", "sample", "end", "history", "mark", "other"):
        assert harmless(partial(codec.decode_body, header(kind)), data)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    decode_everything(data)


@settings(deadline=None)
@given(st.sampled_from(BODIES), st.data())
def test_damaged_messages_raise_nothing_else(message: tuple[str, Body], data: st.DataObject) -> None:
    encoded = bytearray(codec.encode_body(message[1]))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    decode_everything(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))


@pytest.mark.parametrize(
    "bomb", [b"\x91" * 1_000_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
)
def test_bombs_are_bad_messages(bomb: bytes) -> None:
    decode_everything(bomb)
    with pytest.raises(codec.BadMessage):
        codec.decode_body(header("history"), b"\x82\xa4rank\x03\xa6points" + bomb)


def test_oversized_frames_are_refused_unread() -> None:
    huge = b"\x80" + bytes(MAX_MESSAGE)
    with pytest.raises(codec.BadMessage, match="too large"):
        codec.decode_body(header("sample"), huge)
    with pytest.raises(codec.BadMessage, match="too large"):
        codec.decode_header(codec.PREFIX + huge)
    with pytest.raises(codec.BadMessage, match="too large"):
        codec.encode_body(Mark(what="gap", detail="x" * (MAX_MESSAGE + 1)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_harmless(value: float) -> None:
    with pytest.raises(codec.BadMessage):
        codec.decode_body(header("sample"), codec.encode_body(Sample(rank=3, uptime=value)))
    with pytest.raises(codec.BadMessage):
        codec.decode_ask(codec.encode_ask(Ask(wait=value)))
    batch = Batch(hub="h", job=JOB, now=1.0, snapshot=False, last=0, items=(Item(0, value, b"", b""),))
    with pytest.raises(codec.BadMessage):
        codec.decode_batch(codec.encode_batch(batch))


@pytest.mark.parametrize(
    "told",
    [
        {"values": {f"v{number}": 1.0 for number in range(10_000)}},
        {"not_finite": {f"v{number}": "nan" for number in range(100)}},
        {"values": {"v" * 300: 1.0}},
        {"not_finite": {"loss": "n" * 300}},
    ],
)
def test_more_than_an_agent_tells_is_refused_for_a_screen_would_stall(told: dict[str, dict[str, Any]]) -> None:
    data = codec.encode_body(Sample(rank=3, progress=Progress(**told)))  # type: ignore[arg-type]
    with pytest.raises(codec.BadMessage, match="progress"):
        codec.decode_body(header("sample"), data)


def test_bytes_that_only_look_like_a_nan_are_read() -> None:
    # 0xcb 0x7f 0xf8 inside an integer and a string: the quick look hits, the slow one clears it.
    sample = Sample(rank=3, step=0x00CB7FF8, phase="\u02ff\u07ff")
    assert codec.decode_body(header("sample"), codec.encode_body(sample)) == sample


def test_header_and_body_must_name_the_same_rank() -> None:
    with pytest.raises(codec.BadMessage, match="different ranks"):
        codec.decode_body(header("end"), codec.encode_body(End(rank=2, how="exit")))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [text] with ünïcode 日本 ▀", "plain [text] with ünïcode 日本 ▀"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\sixel", "sixel"),
        ("\x9b2Jcleared", "cleared"),
        ("unterminated \x1b]0;title", "unterminated 0;title"),
        ("a\x00b\x07c\x7fd\x85e\x9f", "abcd e"),
        ("two\r\nlines\tand\u2028more", "two lines and more"),
        ("abc\u202ecba\u2066x", "abccbax"),
        ("\x1b", ""),
    ],
)
def test_clean_leaves_one_harmless_line(text: str, shown: str) -> None:
    assert codec.clean(text) == shown


@settings(deadline=None)
@given(st.text())
def test_clean_text_has_nothing_left_to_clean(text: str) -> None:
    shown = codec.clean(text)
    assert codec.clean(shown) == shown
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
