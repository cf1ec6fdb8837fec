"""The exact bytes of schema 1: a change here is a change of the schema, and needs a new version."""

from __future__ import annotations

import msgspec
import pytest

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.terms import Memory
from ranktop.probes.reading import (
    AllocatorReading,
    Collectives,
    DeviceDetail,
    DeviceIdentity,
    DeviceProcess,
    GroupPosition,
    NvLink,
)
from ranktop.wire import codec
from ranktop.wire.progress import Progress
from ranktop.wire.schema import (
    SCHEMA_VERSION,
    Ack,
    Ask,
    Batch,
    Body,
    Box,
    Call,
    Card,
    Device,
    End,
    Header,
    History,
    Item,
    Job,
    Mark,
    Point,
    Sample,
    Stack,
    Table,
)

JOB = Job(id="0a1b", name="train", world_size=2)
BODIES: dict[str, Body] = {
    "card": Card(
        job=JOB,
        rank=1,
        device=DeviceIdentity(kind="cuda", uuid="GPU-1", total=80),
        inventory=Inventory.of([Kind((3, 2), "float32")]),
    ),
    "sample": Sample(
        rank=1,
        now=Memory(parameters=24, free=0, total=80),
        table=Table(step=3, moments={"step_end": Memory(parameters=24)}),
        reasons={"cache": "x"},
    ),
    "device": Device(
        rank=1,
        detail=DeviceDetail(
            energy=1.5,
            nvlinks=(NvLink(3, up=True, replay=2),),
            mps_processes=(DeviceProcess(7, 9),),
            of_parent=("power",),
            reasons={"fan": "x"},
            ages={"energy": 0.5},
        ),
        allocator=AllocatorReading(allocated=24, backend="native", elsewhere={1: 5}),
    ),
    "stack": Stack(rank=1, step=3, waited=6.5, calls=(Call("train.py", 12, "main"),), reason="x"),
    "box": Box(
        rank=1,
        error="OutOfMemoryError: x",
        step=3,
        phase="forward",
        asked=8,
        free=2,
        limit=80,
        memory=Memory(parameters=24, total=80),
        allocator=AllocatorReading(allocated=24),
        collectives=Collectives(groups=(GroupPosition("0", size=2, enqueued=5),)),
        inputs=("int64 [8, 1024]",),
        calls=(Call("torch/nn/modules/linear.py", 134, "forward"),),
        reasons={"cache": "x"},
    ),
    "end": End(rank=1, how="signal", code=9, detail="SIGKILL"),
    "history": History(rank=1, points=(Point(1.5, 3, None, 40, 24, 0, None, 7, 99.5, None),)),
    "mark": Mark(what="gap", detail="2"),
}
HEADER = Header("sample", 1, 4242, 0, 17)
ACK = Ack(hub="h1", want_card=True, seq=17)
ASK = Ask(hub="h1", since=7, wait=0.5)
BATCH = Batch(
    hub="h1",
    job=JOB,
    now=2.5,
    snapshot=True,
    last=7,
    items=(Item(7, 2.0, b"head", b"body"),),
    lost=1,
    refused=2,
    started=0.5,
)

FRAMES = {
    "header": ("72746f70000195a673616d706c6501cd10920011"),
    "ack": ("72746f70000184a3687562a26831a977616e745f63617264c3a373657111a4646f6f72c0"),
    "ask": ("72746f70000183a3687562a26831a573696e636507a477616974cb3fe0000000000000"),
    "batch": (
        "72746f70000189a3687562a26831a36a6f6285a26964a430613162a46e616d65a5747261696eaa776f726c645f73697a"
        "6502a86c61756e63686572a0a672756e5f6964a0a36e6f77cb4004000000000000a8736e617073686f74c3a46c617374"
        "07a56974656d73919407cb4000000000000000c40468656164c404626f6479a46c6f737401a77265667573656402a773"
        "746172746564cb3fe0000000000000"
    ),
}
GOLDEN = {
    "card": (
        "de0010a36a6f6285a26964a430613162a46e616d65a5747261696eaa776f726c645f73697a6502a86c61756e63686572"
        "a0a672756e5f6964a0a472616e6b01aa6c6f63616c5f72616e6b00a46e6f6465a0a370696400a77265737461727400a8"
        "7265766973696f6e00a664657669636586a46b696e64a463756461a475756964a54750552d31a46e616d65a0a5746f74"
        "616c50ab746f7263685f696e646578c0aa6e766d6c5f696e646578c0a876657273696f6e7386a772616e6b746f70a0a6"
        "707974686f6ea0a5746f726368a0a463756461a0a46e63636ca0a9646565707370656564a0a76261636b656e64a0a56d"
        "6f64656ca0a9696e76656e746f727983a56b696e6473918aa57368617065920302a56474797065a7666c6f61743332a9"
        "747261696e61626c65c3a4756e697400a567726f757000a973686172645f64696dc0af74656e736f725f706172616c6c"
        "656ca0aa73706c69745f73697a65c0a6736861726473c0aa73686172645f72616e6bc0a56f726465729100ac62756666"
        "65725f627974657300a4706c616ec0a6736372697074a0a973696d756c61746564c2a56e6f74657390"
    ),
    "sample": (
        "de0011a472616e6b01a6757074696d65cb0000000000000000a8696e74657276616ccb3ff0000000000000a36e6f778a"
        "aa706172616d657465727318a96772616469656e7473c0a96f7074696d697a6572c0ab61637469766174696f6e73c0a7"
        "62756666657273c0a56361636865c0a772756e74696d65c0a56f74686572c0a46672656500a5746f74616c50a5746162"
        "6c6584a47374657003a56669727374c2a76d6f6d656e747381a8737465705f656e648aaa706172616d657465727318a9"
        "6772616469656e7473c0a96f7074696d697a6572c0ab61637469766174696f6e73c0a762756666657273c0a563616368"
        "65c0a772756e74696d65c0a56f74686572c0a466726565c0a5746f74616cc0a3616765cb0000000000000000a7726561"
        "736f6e7381a56361636865a178a66465766963658da5746f74616cc0a475736564c0a466726565c0ac70726f63657373"
        "5f75736564c0ab7574696c697a6174696f6ec0a5706f776572c0ab706f7765725f6c696d6974c0ab74656d7065726174"
        "757265c0a8736d5f636c6f636bc0ac6d656d6f72795f636c6f636bc0a7726561736f6e7380a3616765cb000000000000"
        "0000a57374617465a26f6bae7065616b5f616c6c6f6361746564c0ae696e6163746976655f73706c6974c0a772657472"
        "696573c0a46f6f6d73c0a47374657000a8737465705f616765c0a5737465707390a57068617365a0ab636f6c6c656374"
        "6976657382a667726f75707390a6726561736f6ec0a4636f737484a56370755f73cb0000000000000000a6686f6f6b5f"
        "73cb0000000000000000a764726f7070656400a66572726f727300"
    ),
    "device": (
        "83a472616e6b01a664657461696cde002bb26d656d6f72795f7574696c697a6174696f6ec0b1706572666f726d616e63"
        "655f7374617465c0b26d656d6f72795f74656d7065726174757265c0b474656d70657261747572655f736c6f77646f77"
        "6ec0b474656d70657261747572655f73687574646f776ec0af74656d70657261747572655f6d6178c0b674656d706572"
        "61747572655f6d656d6f72795f6d6178c0af706f7765725f6d696e5f6c696d6974c0af706f7765725f6d61785f6c696d"
        "6974c0b3706f7765725f64656661756c745f6c696d6974c0ac6d61785f736d5f636c6f636bc0b06d61785f6d656d6f72"
        "795f636c6f636bc0a6656e65726779cb3ff8000000000000a366616ec0ab70657273697374656e6365c0ac636f6d7075"
        "74655f6d6f6465c0af706369655f67656e65726174696f6ec0b3706369655f6d61785f67656e65726174696f6ec0aa70"
        "6369655f7769647468c0ae706369655f6d61785f7769647468c0a7706369655f7478c0a7706369655f7278c0ac706369"
        "655f7265706c617973c0a76e766c696e6b739185a46c696e6b03a27570c3a67265706c617902a87265636f76657279c0"
        "a3637263c0ab6563635f656e61626c6564c0ad6563635f636f72726563746564c0af6563635f756e636f727265637465"
        "64c0b76563635f6167677265676174655f636f72726563746564c0b96563635f6167677265676174655f756e636f7272"
        "6563746564c0b272656d61707065645f636f72726563746564c0b472656d61707065645f756e636f72726563746564c0"
        "ad72656d61705f70656e64696e67c0ac72656d61705f6661696c6564c0a87265636f76657279c0b26772617068696373"
        "5f70726f636573736573c0ad6d70735f70726f6365737365739182a370696407a5627974657309a667706d5f736dc0ad"
        "67706d5f6f63637570616e6379c0aa67706d5f74656e736f72c0a867706d5f6472616dc0a96f665f706172656e7491a5"
        "706f776572a7726561736f6e7381a366616ea178a46167657381a6656e65726779cb3fe0000000000000a9616c6c6f63"
        "61746f728fa9616c6c6f636174656418a87265736572766564c0ae7065616b5f616c6c6f6361746564c0ae696e616374"
        "6976655f73706c6974c0a772657472696573c0a46f6f6d73c0a8626173656c696e6500a7726561736f6e7380a7626163"
        "6b656e64a66e6174697665aa657870616e6461626c65c2a6616374697665c0a9726571756573746564c0a87365676d65"
        "6e7473c0ac6c6172676573745f66726565c0a9656c73657768657265810105"
    ),
    "stack": (
        "85a472616e6b01a47374657003a6776169746564cb401a000000000000a563616c6c739193a8747261696e2e70790ca4"
        "6d61696ea6726561736f6ea178"
    ),
    "box": (
        "8da472616e6b01a56572726f72b34f75744f664d656d6f72794572726f723a2078a47374657003a57068617365a7666f"
        "7277617264a561736b656408a46672656502a56c696d697450a66d656d6f72798aaa706172616d657465727318a96772"
        "616469656e7473c0a96f7074696d697a6572c0ab61637469766174696f6e73c0a762756666657273c0a56361636865c0"
        "a772756e74696d65c0a56f74686572c0a466726565c0a5746f74616c50a9616c6c6f6361746f728fa9616c6c6f636174"
        "656418a87265736572766564c0ae7065616b5f616c6c6f6361746564c0ae696e6163746976655f73706c6974c0a77265"
        "7472696573c0a46f6f6d73c0a8626173656c696e6500a7726561736f6e7380a76261636b656e64a0aa657870616e6461"
        "626c65c2a6616374697665c0a9726571756573746564c0a87365676d656e7473c0ac6c6172676573745f66726565c0a9"
        "656c7365776865726580ab636f6c6c6563746976657382a667726f7570739185a46e616d65a130ab6465736372697074"
        "696f6ea0a473697a6502a8656e71756575656405a9636f6d706c65746564c0a6726561736f6ec0a6696e7075747391af"
        "696e743634205b382c20313032345da563616c6c739193ba746f7263682f6e6e2f6d6f64756c65732f6c696e6561722e"
        "7079cc86a7666f7277617264a7726561736f6e7381a56361636865a178"
    ),
    "end": ("84a472616e6b01a3686f77a67369676e616ca4636f646509a664657461696ca75349474b494c4c"),
    "history": ("82a472616e6b01a6706f696e7473919acb3ff800000000000003c0281800c007cb4058e00000000000c0"),
    "mark": ("82a477686174a3676170a664657461696ca132"),
}


def test_frames_are_these_bytes() -> None:
    assert codec.encode_header(HEADER).hex() == FRAMES["header"]
    assert codec.encode_ack(ACK).hex() == FRAMES["ack"]
    assert codec.encode_ask(ASK).hex() == FRAMES["ask"]
    assert codec.encode_batch(BATCH).hex() == FRAMES["batch"]


def test_frames_are_read() -> None:
    frames = {name: bytes.fromhex(text) for name, text in FRAMES.items()}
    assert codec.decode_header(frames["header"]) == HEADER
    assert codec.decode_ack(frames["ack"]) == ACK
    assert codec.decode_ask(frames["ask"]) == ASK
    assert codec.decode_batch(frames["batch"]) == BATCH


@pytest.mark.parametrize("kind", sorted(GOLDEN))
def test_body_of_schema_1_is_read(kind: str) -> None:
    header = Header(kind, -1 if kind == "mark" else 1, 4242, 0, 17)
    assert codec.decode_body(header, bytes.fromhex(GOLDEN[kind])) == BODIES[kind]


@pytest.mark.parametrize("kind", ["end", "mark", "stack"])
def test_small_bodies_are_these_bytes(kind: str) -> None:
    assert codec.encode_body(BODIES[kind]).hex() == GOLDEN[kind]


@pytest.mark.parametrize("kind", ["box", "card", "sample", "device", "history"])
def test_growing_bodies_still_say_all_that_schema_1_says(kind: str) -> None:
    """Fields may be added at the end; none may be renamed, moved, dropped or change its type.

    A struct that is written as an array grows by elements at its end, which say nothing here: the old body had none.
    """
    old = msgspec.msgpack.decode(bytes.fromhex(GOLDEN[kind]))
    assert_extends(msgspec.msgpack.decode(codec.encode_body(BODIES[kind])), old, kind)


def assert_extends(new: object, old: object, where: str) -> None:
    assert type(new) is type(old), where
    if isinstance(new, dict) and isinstance(old, dict):
        assert list(new)[: len(old)] == list(old), where
        for key in old:
            assert_extends(new[key], old[key], f"{where}.{key}")
    elif isinstance(new, list) and isinstance(old, list):
        assert new[len(old) :] == [None] * (len(new) - len(old)), where
        for one, other in zip(new[: len(old)], old, strict=True):
            assert_extends(one, other, f"{where}[]")
    else:
        assert new == old, where


def test_a_point_grew_by_numbers_that_old_readers_skip() -> None:
    """The history above was written before ``after`` existed; loss, learning rate and the loss's step came later."""
    point = Point(1.5, 3, None, 40, 24, 0, None, 7, 99.5, None, after=24, loss=2.5, learning_rate=1e-3, loss_step=1203)
    known = History(rank=1, points=(point,))
    old = msgspec.msgpack.decode(bytes.fromhex(GOLDEN["history"]))
    new = msgspec.msgpack.decode(codec.encode_body(known))
    assert new == {**old, "points": [[*old["points"][0], 24, 2.5, 1e-3, 1203]]}
    header = Header("history", 1, 4242, 0, 17)
    assert codec.decode_body(header, codec.encode_body(known)) == known


PROGRESS = Sample(
    rank=1,
    progress=Progress(
        step=1240,
        total_steps=5000,
        epoch=0.5,
        learning_rate=1e-3,
        tokens_per_second=512.0,
        values={"eval_loss": 2.5},
        age=0.5,
        source="script",
        steps={"eval_loss": 1200},
        ages={"eval_loss": 60.0},
        counted=40,
        every=2.0,
        not_finite={"loss": "nan"},
        bad_losses=3,
        bad_since=1238,
    ),
    activity="validation",
)
PROGRESS_BYTES = (
    "a870726f6772657373de000fa473746570cd04d8ab746f74616c5f7374657073cd1388a565706f6368cb3fe000000000"
    "0000ad6c6561726e696e675f72617465cb3f50624dd2f1a9fcb1746f6b656e735f7065725f7365636f6e64cb40800000"
    "00000000a676616c75657381a96576616c5f6c6f7373cb4004000000000000a3616765cb3fe0000000000000a6736f75"
    "726365a6736372697074a5737465707381a96576616c5f6c6f7373cd04b0a46167657381a96576616c5f6c6f7373cb40"
    "4e000000000000a7636f756e74656428a56576657279cb4000000000000000aa6e6f745f66696e69746581a46c6f7373"
    "a36e616eaa6261645f6c6f7373657303a96261645f73696e6365cd04d6a86163746976697479aa76616c69646174696f"
    "6e"
)


def test_what_a_script_tells_is_these_bytes_at_the_end_of_a_sample() -> None:
    whole, plain = (codec.encode_body(sample) for sample in (PROGRESS, Sample(rank=1)))
    assert whole.startswith(plain[: plain.index(b"\xa8progress")])
    assert whole[whole.index(b"\xa8progress") :].hex() == PROGRESS_BYTES
    assert codec.decode_body(HEADER, whole) == PROGRESS


def test_what_a_script_does_not_tell_takes_no_bytes() -> None:
    told = Sample(rank=1, progress=Progress(step=7, loss=2.5, age=0.5, source="script"))
    body = codec.encode_body(told)
    assert set(msgspec.msgpack.decode(body)["progress"]) == {"step", "loss", "age", "source"}
    assert codec.decode_body(HEADER, body) == told


def test_this_is_schema_1() -> None:
    assert SCHEMA_VERSION == 1
