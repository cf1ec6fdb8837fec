"""What happened in a recording beside its samples, as the export's JSON has it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ranktop.budget.words import strategy_words
from ranktop.tui.export.rows import Stretch
from ranktop.tui.view.text import plain
from ranktop.wire.codec import WireError, decode_body, decode_header
from ranktop.wire.schema import Card, Item

if TYPE_CHECKING:
    from ranktop.wire.recording import Recording


def events(recording: Recording, stretch: Stretch) -> Iterator[dict[str, Any]]:
    """Yield the events of the stretch in order of time; RecordingError. What can't be read is left out."""
    for item in recording.events():
        if stretch.after < item.t <= stretch.until:
            told = _event(recording, item)
            if told is not None:
                yield told


def _event(recording: Recording, item: Item) -> dict[str, Any] | None:
    try:
        header = decode_header(item.header)
        body = decode_body(header, item.body)
    except WireError:
        return None
    told = card_facts(body) if isinstance(body, Card) else msgspec.to_builtins(body)
    told.pop("rank", None)
    return {
        "time": recording.wall(item.t),
        "t": item.t,
        "kind": header.kind,
        "rank": header.rank if header.rank >= 0 else None,
        "pid": header.pid,
        "restart": header.restart,
        "body": harmless(told),
    }


def card_facts(card: Card) -> dict[str, Any]:
    """Return what a card says, without its list of parameters."""
    plan = card.plan
    return {
        "local_rank": card.local_rank,
        "node": card.node,
        "pids": list(card.pids or (card.pid,)),
        "device": {
            "kind": card.device.kind,
            "name": card.device.name,
            "uuid": card.device.uuid,
            "total": card.device.total,
        },
        "versions": msgspec.to_builtins(card.versions),
        "backend": card.backend,
        "model": card.model,
        "parameters": card.inventory.numel if card.inventory is not None else None,
        "strategy": plan.strategy if plan is not None else None,
        "strategy_words": strategy_words(plan) if plan is not None else None,
        "script": card.script,
        "code": card.code,
        "simulated": card.simulated,
        "notes": list(card.notes),
    }


def harmless(value: Any) -> Any:
    """Return a value from the wire as JSON can have it: no control characters, no infinities."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {plain(str(key)): harmless(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [harmless(inner) for inner in value]
    return value
