"""What differs between the plans of runs, and only that: strategy, layout, precision, batch, versions, devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

from ranktop.budget.plan import Plan
from ranktop.budget.words import dtype_words, optimizer_words, precision_words, strategy_words
from ranktop.tui.compare.side import Side
from ranktop.tui.view.text import count, human, plain
from ranktop.wire.schema import Card

Row = tuple[str, tuple[str | None, ...]]
"""Name and the value of each run; None: not known."""

_PLACES: Final = frozenset({"replicate_rank", "shard_rank", "tensor_rank", "pipeline_rank"})
"""A rank's place is no difference between runs."""

_SEEN: Final = frozenset({"forward", "notes", "gradients_at", "unsharded_gradients_at", "groups", "host"})
"""What was seen of a run rather than chosen for it; told below where it matters."""

_TOLD: Final = frozenset({"strategy", "precision", "optimizer", "layout.world_size", "stack"})
"""Fields that have words of their own."""

_NAMES: Final = {
    "layout.replicate": "replicas", "layout.shard": "shards", "layout.tensor": "tensor parallel",
    "layout.pipeline": "pipeline stages", "layout.context": "context parallel", "layout.expert": "expert parallel",
    "batch.micro_batch": "micro-batch", "batch.sequence_length": "sequence length",
    "batch.accumulation": "accumulation", "checkpointing": "checkpointing", "compiled": "torch.compile",
    "fsdp.sharding": "sharding", "fsdp.reshard_after_forward": "reshard after forward",
    "ddp.gradient_as_bucket_view": "gradients as bucket views", "ddp.bucket_cap_mb": "bucket size, MiB",
    "ddp.bucket_bytes": "bucket sizes", "zero.stage": "ZeRO stage",
}  # fmt: skip

_OF_A_STRATEGY: Final = ("ddp", "fsdp", "zero", "pipeline", "lora")
"""Parts that only some strategies have: their fields are told only between two runs that both have them."""


def plan_differences(sides: Sequence[Side]) -> list[Row]:
    """Return what differs, the most telling first; empty when nothing does."""
    rows: list[Row] = []
    for name, tell in _FACTS:
        values = tuple(tell(side.card) if side.card is not None else None for side in sides)
        rows += [(name, values)] if len(set(values)) > 1 else []
    for name, told in (("world size", _world), ("nodes", _nodes)):
        values = tuple(told(side) for side in sides)
        rows += [(name, values)] if len(set(values)) > 1 else []
    return [*rows, *_fields([side.card.plan if side.card is not None else None for side in sides])]


def _fields(plans: Sequence[Plan | None]) -> list[Row]:
    flat = [_flat(plan) if plan is not None else {} for plan in plans]
    names = dict.fromkeys(name for one in flat for name in one)
    rows: list[Row] = []
    for name in names:
        having = [one[name] for one in flat if name in one]
        part = name.partition(".")[0]
        if part in _OF_A_STRATEGY and len(having) < len(flat):
            continue
        values = tuple(_text(name, one.get(name)) if name in one else None for one in flat)
        if len(set(values)) > 1:
            rows.append((_NAMES.get(name) or name.rpartition(".")[2].replace("_", " "), values))
    return rows


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in fields(value):
        name, inner = f"{prefix}{one.name}", getattr(value, one.name)
        if one.name in _PLACES or name in _SEEN or name in _TOLD:
            continue
        if is_dataclass(inner):
            found |= _flat(inner, f"{name}.")
        elif not (inner is None and name in _OF_A_STRATEGY):
            found[name] = inner
    return found


def _text(name: str, value: Any) -> str:
    if value is None:
        return "not known" if name.startswith("batch") or name == "checkpointing" else "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "ddp.bucket_bytes":
        return f"{len(value)} of {human(max(value))} at most" if value else "not told"
    if isinstance(value, int):
        return count(value)
    if name.endswith("dtype"):
        return plain(dtype_words(value))
    if isinstance(value, (tuple, list)):
        return ", ".join(plain(str(part)) for part in value) or "none"
    return plain(str(value)) or "none"


def _plan(tell: Callable[[Plan], str]) -> Callable[[Card], str | None]:
    return lambda card: plain(tell(card.plan)) if card.plan is not None else None


def _world(side: Side) -> str:
    return f"{count(side.run.job.world_size)} ranks"


def _nodes(side: Side) -> str:
    return count(len({(card.node_rank, card.node) for card in side.cards()}))


def _short_strategy(plan: Plan) -> str:
    return strategy_words(plan).partition(" · ")[0]


_VERSIONS: Final = ("torch", "cuda", "nccl", "deepspeed", "python", "ranktop")

_FACTS: Final[tuple[tuple[str, Callable[[Card], str | None]], ...]] = (
    ("strategy", _plan(_short_strategy)),
    ("precision", _plan(lambda plan: precision_words(plan.precision))),
    ("optimizer", _plan(optimizer_words)),
    ("model", lambda card: plain(card.model) or None),
    ("parameters", lambda card: count(card.inventory.numel) if card.inventory is not None else None),
    ("device", lambda card: plain(card.device.name or card.device.kind)),
    ("backend", lambda card: plain(card.backend) or None),
    ("script", lambda card: plain(card.script) or None),
    ("code", lambda card: plain(card.code) or None),
    *((name, lambda card, name=name: plain(getattr(card.versions, name)) or None) for name in _VERSIONS),
    ("driver", lambda card: plain(card.device.driver) or None),
)
"""Name and how a card tells it."""
