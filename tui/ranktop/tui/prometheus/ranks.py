"""One rank as metrics: what it holds, what its device and its steps do, what its script told."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.terms import BUDGETED, CATEGORIES
from ranktop.probes.reading import Collectives
from ranktop.tui.prometheus.labels import MOST_GROUPS, OTHER, THROTTLE, different, known, label
from ranktop.tui.prometheus.sheet import Labels, Sheet
from ranktop.tui.prometheus.tally import Tally
from ranktop.tui.session.gauges import Gauges
from ranktop.tui.session.nodes import NODE_LOST
from ranktop.tui.session.rank_view import SILENT_INTERVALS, RankView
from ranktop.wire.activity import kind_of
from ranktop.wire.schema import Progress, Sample

LONGEST_INTERVAL: Final = 3600.0
"""Seconds between two samples that an agent may be told to let pass."""

_READING: Final = (
    ("ranktop_device_memory_size_bytes", "total", 1.0),
    ("ranktop_device_memory_used_bytes", "used", 1.0),
    ("ranktop_device_utilization_ratio", "utilization", 0.01),
    ("ranktop_device_power_watts", "power", 1.0),
    ("ranktop_device_power_limit_watts", "power_limit", 1.0),
    ("ranktop_device_temperature_celsius", "temperature", 1.0),
    ("ranktop_device_pcie_replays_total", "pcie_replays", 1.0),
    ("ranktop_device_energy_joules_total", "energy", 1.0),
)
"""Metric, field of the device's reading or detail, factor to the metric's unit."""

_LABELLED: Final = (
    ("ranktop_device_clock_hertz", "clock", "sm", "sm_clock", 1e6),
    ("ranktop_device_clock_hertz", "clock", "memory", "memory_clock", 1e6),
    ("ranktop_device_ecc_errors_total", "error", "corrected", "ecc_corrected", 1.0),
    ("ranktop_device_ecc_errors_total", "error", "uncorrected", "ecc_uncorrected", 1.0),
    ("ranktop_device_remapped_rows_total", "error", "corrected", "remapped_corrected", 1.0),
    ("ranktop_device_remapped_rows_total", "error", "uncorrected", "remapped_uncorrected", 1.0),
)
"""The same with a label and its value in between."""

_PROGRESS: Final = (
    ("ranktop_progress_step", "step"),
    ("ranktop_progress_planned_steps", "total_steps"),
    ("ranktop_progress_epoch", "epoch"),
    ("ranktop_progress_loss", "loss"),
    ("ranktop_progress_learning_rate", "learning_rate"),
    ("ranktop_progress_gradient_norm", "gradient_norm"),
    ("ranktop_progress_tokens_per_second", "tokens_per_second"),
)

_MOST_VALUES: Final = 8


@dataclass(frozen=True, slots=True)
class When:
    """The time of a scrape."""

    now: float
    """Unix time, seconds."""
    late: float
    """Seconds by which all that is known of the job was old when it was drawn, and since."""

    def ago(self, seconds: float) -> float:
        """Return the Unix time so many seconds before."""
        return self.now - max(0.0, seconds)


def put_rank(sheet: Sheet, job: Labels, view: RankView, tally: Tally | None, when: When) -> None:
    """Say everything of one rank that is known and not old; of one that is silent or gone only that it is."""
    view = _older(view, when.late)
    who = {**job, "rank": str(view.rank), "node": label(view.card.node) if view.card is not None else ""}
    fresh = is_fresh(view)
    if view.card is not None:
        device = view.card.device
        sheet.put(
            "ranktop_rank_info", who, 1,
            local_rank=str(view.card.local_rank), device=label(device.uuid or ""), device_name=label(device.name),
            device_kind=label(device.kind),
        )  # fmt: skip
    sheet.put("ranktop_rank_up", who, 1 if fresh else 0)
    sheet.put("ranktop_rank_restarts_total", who, view.restart)
    if view.age is not None:
        sheet.put("ranktop_rank_last_sample_timestamp_seconds", who, when.ago(view.age))
    if not fresh or view.sample is None or view.age is None:
        return
    _memory(sheet, who, view, when)
    _device(sheet, who, view, tally)
    _steps(sheet, who, view.sample, view.age, tally, when)
    _collectives(sheet, who, view.sample.collectives)
    if view.sample.progress is not None:
        _progress(sheet, who, view.sample.progress, view.age, when)
    _agent(sheet, who, view.sample, tally)


def _older(view: RankView, late: float) -> RankView:
    """Return a rank with its ages as they are at the time of the scrape."""
    age = None if view.age is None else view.age + late
    described = None if view.detail_age is None else view.detail_age + late
    return replace(view, age=age, detail_age=described)


def is_fresh(view: RankView) -> bool:
    """Tell whether a rank speaks: its last sample is at most three intervals old, and its process not over."""
    if view.sample is None or view.age is None or view.end is not None or view.state == NODE_LOST:
        return False
    return view.age <= SILENT_INTERVALS * min(max(view.sample.interval, 0.1), LONGEST_INTERVAL)


def _memory(sheet: Sheet, who: Labels, view: RankView, when: When) -> None:
    sample = view.sample
    assert sample is not None
    assert view.age is not None
    for category, size in sample.now.by_category().items():
        sheet.put("ranktop_memory_now_bytes", who, size, category=category)
    sheet.put("ranktop_allocator_peak_bytes", who, sample.peak_allocated)
    sheet.put("ranktop_allocator_inactive_split_bytes", who, sample.inactive_split)
    sheet.put("ranktop_allocator_retries_total", who, sample.retries)
    sheet.put("ranktop_allocator_out_of_memory_total", who, sample.ooms)
    measured = sample.table.moments.get(view.peak) if sample.table is not None and view.peak is not None else None
    if measured is None or sample.table is None or view.peak is None:
        return
    for category in CATEGORIES:
        sheet.put("ranktop_memory_measured_bytes", who, getattr(measured, category), category=category)
    sheet.put("ranktop_memory_moment_info", who, 1, moment=view.peak)
    sheet.put("ranktop_memory_measured_timestamp_seconds", who, when.ago(sample.table.age + view.age))
    amounts = view.budget.at(view.peak) if view.budget is not None else {}
    for category in BUDGETED:
        amount = amounts.get(category)
        if amount is not None:
            sheet.put("ranktop_memory_expected_bytes", who, amount.bytes, category=category)
            sheet.put("ranktop_memory_tolerance_bytes", who, amount.tolerance, category=category)


def _device(sheet: Sheet, who: Labels, view: RankView, tally: Tally | None) -> None:
    gauges = Gauges.of(view)
    if gauges is None:
        return
    sheet.put("ranktop_device_up", who, 0 if gauges.trouble else 1)
    for name, field, factor in _READING:
        sheet.put(name, who, _value(gauges, field, factor))
    for name, key, value, field, factor in _LABELLED:
        sheet.put(name, who, _value(gauges, field, factor), **{key: value})
    if gauges.reading.throttle is None or gauges.old("throttle") is not None:
        return
    now = {known(word, THROTTLE) for word in gauges.reading.throttle}
    for reason in sorted(now | (tally.throttled if tally is not None else frozenset())):
        sheet.put("ranktop_device_throttled", who, 1 if reason in now else 0, reason=reason)


def _value(gauges: Gauges, field: str, factor: float) -> float | None:
    """Return a value in the metric's unit; None where it is unknown or older than it should be."""
    value = gauges.get(field)
    return None if value is None or gauges.old(field) is not None else float(value) * factor


def _steps(sheet: Sheet, who: Labels, sample: Sample, age: float, tally: Tally | None, when: When) -> None:
    sheet.put("ranktop_steps_total", who, sample.step)
    if sample.step_age is not None:
        sheet.put("ranktop_last_step_timestamp_seconds", who, when.ago(sample.step_age + age))
    sheet.put("ranktop_cpu_starved_ratio", who, sample.starved)
    if tally is not None and tally.steps.count:
        sheet.put_sum("ranktop_step_duration_seconds", who, tally.steps)
        for phase, total in tally.phases.items():
            sheet.put_sum("ranktop_step_phase_duration_seconds", who, total, phase=phase)
    if sample.activity:
        sheet.put("ranktop_rank_activity", who, 1, activity=kind_of(sample.activity) or OTHER)


def _collectives(sheet: Sheet, who: Labels, collectives: Collectives) -> None:
    groups = collectives.groups[:MOST_GROUPS]
    names = different(group.description or group.name for group in groups)
    for name, group in zip(names, groups, strict=True):
        sheet.put("ranktop_collectives_enqueued_total", who, group.enqueued, group=name)
        sheet.put("ranktop_collectives_completed_total", who, group.completed, group=name)


def _progress(sheet: Sheet, who: Labels, told: Progress, age: float, when: When) -> None:
    """Say what the script told; it tells seldom, so that the time at which it did stands beside."""
    for name, field in _PROGRESS:
        sheet.put(name, who, _told(told, field, getattr(told, field)))
    names = list(dict.fromkeys([*told.values, *(name for name in told.not_finite if name not in _FIELDS)]))
    names = names[:_MOST_VALUES]
    for value, name in zip(different(names), names, strict=True):
        sheet.put("ranktop_progress_value", who, _told(told, name, told.values.get(name)), name=value)
    sheet.put("ranktop_progress_timestamp_seconds", who, when.ago(told.age + age))


_FIELDS: Final = frozenset(field for _, field in _PROGRESS)


def _told(told: Progress, field: str, value: float | None) -> float | None:
    """Return a value, also one that no message can carry: a loss that is not a number is news."""
    word = told.not_finite.get(field)
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(word, value) if word is not None else value


def _agent(sheet: Sheet, who: Labels, sample: Sample, tally: Tally | None) -> None:
    if tally is not None:
        sheet.put("ranktop_agent_cpu_seconds_total", who, tally.cpu)
        sheet.put("ranktop_agent_hook_seconds_total", who, tally.hooks)
    sheet.put("ranktop_agent_dropped_messages_total", who, sample.cost.dropped)
    sheet.put("ranktop_agent_errors_total", who, sample.cost.errors)
