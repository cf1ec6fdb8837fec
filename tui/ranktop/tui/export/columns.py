"""The columns of an export: names, types and units are a contract (``docs/export.md``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ranktop.budget.terms import BUDGETED, CATEGORIES, MOMENTS
from ranktop.tui.export.rows import Row
from ranktop.tui.view.text import plain
from ranktop.wire.progress import loss_step

Value = int | float | str | None
"""None: not known."""

MEMORY: Final = (*CATEGORIES, "total")


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    type: str
    """``int``, ``float`` or ``text``."""
    unit: str
    """``B``, ``s``, ``%``, ``W``, ``°C``, ``MHz``, ``tokens``; empty for counts and texts."""
    value: Callable[[Row], Value]


def _sample(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.sample, name)


def _step(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.step, name) if row.step is not None else None


def _device(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.sample.device, name)


def _now(category: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.sample.now, category)


def _measured(category: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.measured, category) if row.measured is not None else None


def _expected(category: str) -> Callable[[Row], Value]:
    def value(row: Row) -> Value:
        amount = row.expected.get(category)
        return amount.bytes if amount is not None else None

    return value


def _moment(moment: str, category: str) -> Callable[[Row], Value]:
    def value(row: Row) -> Value:
        memory = row.at(moment)
        return getattr(memory, category) if memory is not None else None

    return value


def _collectives(name: str) -> Callable[[Row], Value]:
    """The position in the first process group, the default one."""

    def value(row: Row) -> Value:
        groups = row.sample.collectives.groups
        return getattr(groups[0], name) if groups else None

    return value


def _groups(row: Row) -> Value:
    parts = (
        f"{plain(group.description or group.name)}:{_known(group.enqueued)}/{_known(group.completed)}"
        for group in row.sample.collectives.groups
    )
    return "; ".join(parts) or None


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def _throttle(row: Row) -> Value:
    """Empty is for no reason; None is not known."""
    reasons = row.sample.device.throttle
    return None if reasons is None else "; ".join(map(plain, reasons))


def _bytes(prefix: str, of: Callable[[str], Callable[[Row], Value]], names: tuple[str, ...]) -> list[Column]:
    return [Column(f"{prefix}_{name}", "int", "B", of(name)) for name in names]


_WHO: Final = (
    Column("time", "float", "s", lambda row: row.time),
    Column("t", "float", "s", lambda row: row.t),
    Column("rank", "int", "", lambda row: row.header.rank),
    Column("local_rank", "int", "", lambda row: row.card.local_rank if row.card is not None else None),
    Column("node", "text", "", lambda row: plain(row.card.node) if row.card is not None else None),
    Column("node_rank", "int", "", lambda row: row.card.node_rank if row.card is not None else None),
    Column("pid", "int", "", lambda row: row.header.pid),
    Column("restart", "int", "", lambda row: row.header.restart),
)

_STEPS: Final = (
    Column("step", "int", "", _sample("step")),
    Column("step_age", "float", "s", _sample("step_age")),
    Column("phase", "text", "", lambda row: plain(row.sample.phase) or None),
    Column("steps_timed", "int", "", lambda row: len(row.steps)),
    Column("step_seconds", "float", "s", _step("seconds")),
    Column("data_seconds", "float", "s", _step("data")),
    Column("forward_seconds", "float", "s", _step("forward")),
    Column("backward_seconds", "float", "s", _step("backward")),
    Column("optimizer_seconds", "float", "s", _step("optimizer")),
    Column("step_clock", "text", "", lambda row: plain(row.step.clock) if row.step is not None else None),
    Column("micro_batches", "int", "", _step("micro_batches")),
    Column("tokens", "int", "tokens", _step("tokens")),
)

_DEVICE: Final = (
    Column("device_state", "text", "", lambda row: plain(row.sample.device.state)),
    Column("device_age", "float", "s", _device("age")),
    Column("device_used", "int", "B", _device("used")),
    Column("device_free", "int", "B", _device("free")),
    Column("device_reserved", "int", "B", _device("reserved")),
    Column("process_used", "int", "B", _device("process_used")),
    Column("utilization", "int", "%", _device("utilization")),
    Column("power", "float", "W", _device("power")),
    Column("power_limit", "float", "W", _device("power_limit")),
    Column("temperature", "int", "°C", _device("temperature")),
    Column("sm_clock", "int", "MHz", _device("sm_clock")),
    Column("memory_clock", "int", "MHz", _device("memory_clock")),
    Column("throttle", "text", "", _throttle),
)

_REST: Final = (
    Column("peak_allocated", "int", "B", _sample("peak_allocated")),
    Column("inactive_split", "int", "B", _sample("inactive_split")),
    Column("retries", "int", "", _sample("retries")),
    Column("ooms", "int", "", _sample("ooms")),
    Column("starved", "float", "", _sample("starved")),
    Column("collectives_enqueued", "int", "", _collectives("enqueued")),
    Column("collectives_completed", "int", "", _collectives("completed")),
    Column("groups", "text", "", _groups),
    Column("agent_cpu_seconds", "float", "s", lambda row: row.sample.cost.cpu_s),
    Column("agent_hook_seconds", "float", "s", lambda row: row.sample.cost.hook_s),
    Column("agent_dropped", "int", "", lambda row: row.sample.cost.dropped),
    Column("agent_errors", "int", "", lambda row: row.sample.cost.errors),
)


def _told(name: str) -> Callable[[Row], Value]:
    return lambda row: getattr(row.sample.progress, name) if row.sample.progress is not None else None


def _loss_step(row: Row) -> Value:
    return loss_step(row.sample.progress) if row.sample.progress is not None else None


def _loss_state(row: Row) -> Value:
    return plain(row.sample.progress.not_finite.get("loss", "")) or None if row.sample.progress is not None else None


def _values(row: Row) -> Value:
    """Whatever else was told: ``eval_loss=2.5; accuracy=0.81``."""
    told = row.sample.progress.values if row.sample.progress is not None else {}
    return "; ".join(f"{plain(name)}={value!r}" for name, value in told.items()) or None


_PROGRESS: Final = (
    Column("trainer_step", "int", "", _told("step")),
    Column("total_steps", "int", "", _told("total_steps")),
    Column("epoch", "float", "", _told("epoch")),
    Column("loss", "float", "", _told("loss")),
    Column("loss_step", "int", "", _loss_step),
    Column("loss_not_finite", "text", "", _loss_state),
    Column("learning_rate", "float", "", _told("learning_rate")),
    Column("gradient_norm", "float", "", _told("gradient_norm")),
    Column("tokens_per_second", "float", "tokens", _told("tokens_per_second")),
    Column("told_values", "text", "", _values),
    Column("activity", "text", "", lambda row: plain(row.sample.activity) or None),
)

COLUMNS: Final = (
    *_WHO,
    *_STEPS,
    Column("moment", "text", "", lambda row: row.moment),
    Column("moments_step", "int", "", lambda row: row.sample.table.step if row.sample.table is not None else None),
    *_bytes("measured", _measured, MEMORY),
    *_bytes("expected", _expected, BUDGETED),
    *_bytes("now", _now, MEMORY),
    *_DEVICE,
    *_REST,
    *(column for moment in MOMENTS for column in _bytes(moment, lambda name, at=moment: _moment(at, name), MEMORY)),  # type: ignore[misc]
    *_PROGRESS,
)
"""In their order. Columns are added at the end, none is renamed, none changes its meaning or its unit."""


def values(row: Row) -> list[Value]:
    """Return a row's values, in the order of the columns."""
    return [column.value(row) for column in COLUMNS]
