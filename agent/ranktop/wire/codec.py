"""Messages to bytes and back. A reader never raises anything but ``WireError``, whatever the bytes."""

from __future__ import annotations

import math
import re
import struct
import unicodedata
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from ranktop.wire.schema import (
    BODIES,
    MAX_MESSAGE,
    SCHEMA_VERSION,
    Ack,
    Ask,
    Batch,
    Body,
    Brief,
    Header,
)

MAGIC: Final = b"rtop"
"""First bytes of every message, so that a stranger's bytes are told from another version's."""

PREFIX: Final = MAGIC + struct.pack(">H", SCHEMA_VERSION)
"""Magic and schema version, in front of the header frame and of every Ack, Ask and Batch."""

BATCH_BYTES: Final = 1024 * 1024
"""Size at which a hub ends one Batch and leaves the rest to the next; a larger item travels alone."""

MAX_BATCH: Final = MAX_MESSAGE + 2 * BATCH_BYTES
"""Bytes; a larger Batch is refused unread."""

_T = TypeVar("_T")


class WireError(Exception):
    """A message cannot be used; the text is one line for a person."""


class BadMessage(WireError):
    """The bytes are no message of this schema: malformed, of an unknown kind, or too large."""


class WrongVersion(WireError):
    """The bytes are a message of another schema version."""

    def __init__(self, theirs: int, ours: int = SCHEMA_VERSION) -> None:
        self.theirs = theirs
        self.ours = ours
        if theirs < ours:
            advice = "the other side is older: upgrade ranktop there"
        else:
            advice = "this side is older: upgrade ranktop here"
        super().__init__(f"the other side speaks schema {theirs}, this side schema {ours}: {advice}")


_encode: Final = msgspec.msgpack.Encoder().encode
_header_decoder: Final = msgspec.msgpack.Decoder(Header)
_body_decoders: Final[dict[str, msgspec.msgpack.Decoder[Body]]] = {}
"""Made when the first message of a kind comes: an agent reads none, and all of them take 5 ms of its job's start."""
_brief_decoder: Final = msgspec.msgpack.Decoder(Brief)
_ack_decoder: Final = msgspec.msgpack.Decoder(Ack)
_ask_decoder: Final = msgspec.msgpack.Decoder(Ask)
_batch_decoder: Final = msgspec.msgpack.Decoder(Batch)

# A float that is infinite or not a number, as msgpack writes it (float32 0xca, float64 0xcb). The patterns may also
# match inside a string or an integer, so a match only asks for the slower look. Two that begin with one byte each are
# five times as fast as one that begins with either.
_NOT_FINITE_4: Final = re.compile(rb"\xca[\x7f\xff][\x80-\xff]")
_NOT_FINITE_8: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


def encode_header(header: Header) -> bytes:
    """Return the header frame of a message, with its prefix."""
    return PREFIX + _encode(header)


def decode_header(data: bytes) -> Header:
    """Read a header frame; WrongVersion or BadMessage when it is none."""
    return _decode(_header_decoder.decode, _unwrap(data, MAX_MESSAGE), "header")


def encode_body(body: Body) -> bytes:
    """Return the body frame of a message; BadMessage when it is larger than MAX_MESSAGE."""
    data = _encode(body)
    if len(data) > MAX_MESSAGE:
        raise BadMessage(f"a message of {len(data)} bytes is too large to send (at most {MAX_MESSAGE})")
    return data


def decode_body(header: Header, data: bytes) -> Body:
    """Read the body that belongs to a header; BadMessage when it does not fit."""
    _check_size(data, MAX_MESSAGE)
    decoder = _body_decoders.get(header.kind)
    if decoder is None:
        if header.kind not in BODIES:
            raise BadMessage(f"unknown kind of message {clean(header.kind)[:40]!r}")
        decoder = _body_decoders[header.kind] = msgspec.msgpack.Decoder(BODIES[header.kind])
    body = _decode(decoder.decode, data, header.kind)
    if getattr(body, "rank", header.rank) != header.rank:
        raise BadMessage(f"header and body of a {header.kind} name different ranks")
    return body


def decode_brief(header: Header, data: bytes) -> Brief:
    """Read the few fields of a sample that a hub needs of each; BadMessage when it is none.

    Numbers that are none are found anywhere in it; of the fields that are skipped, not that one is of another type.
    """
    _check_size(data, MAX_MESSAGE)
    if may_lack_numbers(data):
        decode_body(header, data)
    brief = _decode(_brief_decoder.decode, data, header.kind, checked=True)
    if brief.rank != header.rank:
        raise BadMessage(f"header and body of a {header.kind} name different ranks")
    return brief


def encode_ack(ack: Ack) -> bytes:
    """Return the only frame of an Ack."""
    return PREFIX + _encode(ack)


def decode_ack(data: bytes) -> Ack:
    """Read an Ack; WrongVersion or BadMessage when it is none."""
    return _decode(_ack_decoder.decode, _unwrap(data, MAX_MESSAGE), "ack")


def encode_ask(ask: Ask) -> bytes:
    """Return the only frame of an Ask."""
    return PREFIX + _encode(ask)


def decode_ask(data: bytes) -> Ask:
    """Read an Ask; WrongVersion or BadMessage when it is none."""
    return _decode(_ask_decoder.decode, _unwrap(data, MAX_MESSAGE), "ask")


def encode_batch(batch: Batch) -> bytes:
    """Return the only frame of a Batch."""
    return PREFIX + _encode(batch)


def decode_batch(data: bytes) -> Batch:
    """Read a Batch, its items still encoded; WrongVersion or BadMessage when it is none."""
    payload = _unwrap(data, MAX_BATCH)
    try:
        batch = _batch_decoder.decode(payload)
    except Exception as error:
        raise BadMessage(f"unreadable batch: {_reason(error)}") from None
    times = (batch.now, batch.started, *(item.t for item in batch.items))
    if not all(map(math.isfinite, times)):
        raise BadMessage("unreadable batch: a time is not a number")
    return batch


def _check_size(data: bytes, limit: int) -> None:
    if len(data) > limit:
        raise BadMessage(f"a frame of {len(data)} bytes is too large (at most {limit})")


def _unwrap(data: bytes, limit: int) -> memoryview:
    _check_size(data, limit)
    if data[: len(PREFIX)] != PREFIX:
        if len(data) < len(PREFIX) or data[: len(MAGIC)] != MAGIC:
            raise BadMessage("not a ranktop message")
        raise WrongVersion(int.from_bytes(data[len(MAGIC) : len(PREFIX)], "big"))
    return memoryview(data)[len(PREFIX) :]


def _decode(
    decode: Callable[[bytes | memoryview], _T], data: bytes | memoryview, what: str, *, checked: bool = False
) -> _T:
    try:
        message = decode(data)
        if not checked and may_lack_numbers(data) and not _finite(msgspec.to_builtins(message)):
            raise ValueError("a value is not a number")
    except Exception as error:
        # msgspec documents MsgspecError; deep nesting raises RecursionError, and a reader of foreign bytes
        # must not depend on that list being complete.
        raise BadMessage(f"unreadable {what}: {_reason(error)}") from None
    return message


def may_lack_numbers(data: bytes | memoryview) -> bool:
    """Tell whether a message may hold a float that is no finite number; False is certain."""
    return _NOT_FINITE_8.search(data) is not None or _NOT_FINITE_4.search(data) is not None


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return True


def _reason(error: Exception) -> str:
    return clean(str(error))[:200]


_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC with their terminator
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[ -/]*[0-~]"
)
_SPACES: Final = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """Return text from the wire as one line that is safe to show.

    Escape sequences, control characters and characters that turn the direction of writing are taken out.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _SPACES.sub(" ", _ESCAPES.sub("", text))
    return "".join(filter(_harmless, text))


def _harmless(character: str, unsafe: frozenset[str] = frozenset({"Cc", "Cs", "Co", "Cn"})) -> bool:
    return character not in _BIDI and unicodedata.category(character) not in unsafe


__all__ = [
    "BATCH_BYTES",
    "MAX_BATCH",
    "BadMessage",
    "WireError",
    "WrongVersion",
    "clean",
    "decode_ack",
    "decode_ask",
    "decode_batch",
    "decode_body",
    "decode_brief",
    "decode_header",
    "encode_ack",
    "encode_ask",
    "encode_batch",
    "encode_body",
    "encode_header",
]
