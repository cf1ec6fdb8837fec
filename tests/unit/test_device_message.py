"""The device message on the wire: all of it survives, and what cannot be is refused before it is kept."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import msgspec
import pytest

from ranktop.agent.hub_state import HubState
from ranktop.probes.reading import AllocatorReading, DeviceDetail, DeviceProcess, NvLink
from ranktop.wire.codec import BadMessage, decode_body, encode_body, encode_header
from ranktop.wire.schema import MAX_MESSAGE, Device, Header, Job

HEADER = Header("device", 0, 100, 0, 1)
FULL = Device(
    rank=0,
    detail=DeviceDetail(
        energy=1.5e9,
        compute_mode="default",
        persistence=False,
        nvlinks=(NvLink(0, up=True, replay=1), NvLink(17, up=False)),
        graphics_processes=(DeviceProcess(5, None),),
        mps_processes=(),
        of_parent=("power",),
        reasons={"fan": "not supported"},
        ages={"energy": 2.5},
    ),
    allocator=AllocatorReading(allocated=1, reserved=2, backend="native", expandable=True, elsewhere={3: 1 << 40}),
)
HOSTILE: list[dict[str, Any]] = [
    {"rank": 0, "detail": {"energy": math.nan}},
    {"rank": 0, "detail": {"ages": {"fan": math.inf}}},
    {"rank": 0, "detail": {"nvlinks": [{"link": "zero"}]}},
    {"rank": 0, "detail": {"graphics_processes": [{"pid": 1.5}]}},
    {"rank": 0, "detail": {"reasons": {"fan": 3}}},
    {"rank": 0, "allocator": {"elsewhere": {"one": 5}}},
    {"rank": 0, "allocator": {"allocated": "all"}},
    {"rank": 1},
    {"detail": {}},
]


def test_everything_survives_the_wire() -> None:
    assert decode_body(HEADER, encode_body(FULL)) == FULL
    assert decode_body(HEADER, encode_body(Device(rank=0))) == Device(rank=0)


def test_the_longest_that_a_driver_can_say_is_far_from_the_limit() -> None:
    many = tuple(DeviceProcess(2**31 - 1 - number, 2**63 - 1) for number in range(64))
    reasons = {field.name: "x" * 200 for field in fields(DeviceDetail)}
    links = tuple(NvLink(link, up=True, replay=2**63, recovery=2**63, crc=2**63) for link in range(36))
    detail = DeviceDetail(nvlinks=links, graphics_processes=many, mps_processes=many, reasons=reasons)
    assert len(encode_body(Device(rank=0, detail=detail))) < MAX_MESSAGE // 100


@pytest.mark.parametrize("hostile", HOSTILE, ids=str)
def test_what_cannot_be_is_refused_and_the_one_before_stays(hostile: dict[str, Any]) -> None:
    state = HubState(Job(id="j", name="train", world_size=1), "hub", 0.0)
    state.accept(0.0, encode_header(HEADER), encode_body(FULL))
    for body in (msgspec.msgpack.encode(hostile), b"\x80" + bytes(MAX_MESSAGE)):
        with pytest.raises(BadMessage):
            state.accept(1.0, encode_header(HEADER), body)
    assert [decode_body(HEADER, item.body) for item in state.snapshot()] == [FULL]
