"""All jobs as metrics: what ``prometheus_client`` asks for at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prometheus_client.core import Metric

from ranktop.tui.prometheus.follow import Follower, JobNow
from ranktop.tui.prometheus.labels import MOST_RANKS, label
from ranktop.tui.prometheus.ranks import When, put_rank
from ranktop.tui.prometheus.sheet import Labels, Sheet
from ranktop.tui.session.findings.finding import SEVERITIES
from ranktop.tui.session.findings.rules import RULES
from ranktop.tui.session.progress import rate_of_job
from ranktop.tui.view.label import simulated

STATES: Final = ("starting", "running", "stalled", "ended")
"""Of a job."""

RANK_STATES: Final = (
    *("ok", "starting", "silent", "missing", "node lost", "device", "ended", "failed", "killed", "vanished"),
)
"""Of a rank; ``device`` is any trouble with its device."""

_FRESH: Final = 3.0
"""Seconds by which the news is late from which on nothing is said of what the job as a whole does now."""


class Collector:
    """Turns the follower's picture into metrics. Registered with a registry of its own."""

    def __init__(self, follower: Follower, wall: Callable[[], float]) -> None:
        self._follower = follower
        self._wall = wall
        try:
            self._version = version("ranktop")
        except PackageNotFoundError:
            self._version = ""

    def describe(self) -> Iterable[Metric]:
        """Give nothing: what there is depends on the jobs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Give what is known now."""
        picture = self._follower.picture()
        now, since = self._wall(), max(0.0, self._follower.clock() - picture.at)
        sheet = Sheet()
        room = MOST_RANKS
        without = 0
        for job in picture.jobs:
            ranks = job.snapshot.ranks[: max(0, room)]
            room -= len(ranks)
            without += len(job.snapshot.ranks) - len(ranks)
            try:
                _put_job(sheet, job, When(now, since + job.snapshot.behind), len(ranks))
            except Exception as error:  # impossible values in one job's messages must not cost the others
                self._follower.failed(f"job {job.id}", error)
        sheet.put("ranktop_build_info", {}, 1, version=label(self._version))
        sheet.put("ranktop_exporter_jobs", {}, len(picture.jobs))
        sheet.put("ranktop_exporter_left_out", {}, picture.left_out, what="jobs")
        sheet.put("ranktop_exporter_left_out", {}, without, what="ranks")
        sheet.put("ranktop_exporter_errors_total", {}, self._follower.errors)
        yield from sheet.metrics()


def _put_job(sheet: Sheet, now: JobNow, when: When, ranks: int) -> None:
    snapshot, job = now.snapshot, {"job_id": now.id}
    _identity(sheet, job, now)
    sheet.put("ranktop_job_up", job, 1 if now.link.state == "live" else 0)
    for view in snapshot.ranks[:ranks]:
        if view.rank not in now.awaited:  # it would be another series, on no node
            put_rank(sheet, job, view, now.tallies.get(view.rank), when)
    if now.link.state != "live" or when.late > _FRESH:
        return
    for state in STATES:
        sheet.put("ranktop_job_state", job, 1 if snapshot.state == state else 0, state=state)
    states = Counter("device" if view.state.startswith("device") else view.state for view in snapshot.ranks)
    for state in RANK_STATES:
        sheet.put("ranktop_job_ranks", job, states[state], state=state)
    sheet.put("ranktop_job_steps_total", job, snapshot.step)
    sheet.put("ranktop_job_step_seconds", job, snapshot.step_seconds)
    sheet.put("ranktop_job_tokens_per_second", job, rate_of_job(snapshot).value)
    if snapshot.step_age is not None:
        sheet.put("ranktop_job_last_step_timestamp_seconds", job, when.ago(snapshot.step_age + when.late))
    _findings(sheet, job, now)


def _identity(sheet: Sheet, job: Labels, now: JobNow) -> None:
    snapshot = now.snapshot
    cards = [view.card for view in snapshot.ranks if view.card is not None]
    plan = next((card.plan for card in cards if card.plan is not None), None)
    sheet.put(
        "ranktop_job_info", job, 1,
        name=label(snapshot.job.name) if snapshot.job is not None else "",
        launcher=label(snapshot.job.launcher) if snapshot.job is not None else "",
        strategy=label(plan.strategy) if plan is not None else "",
        trainer=label(next((card.trainer for card in cards if card.trainer), "")),
        simulated="true" if simulated(cards) else "false",
    )  # fmt: skip


def _findings(sheet: Sheet, job: Labels, now: JobNow) -> None:
    """Count what the rules say, by rule and gravity: never a sentence, whose numbers would be series without end."""
    found: Counter[tuple[str, str]] = Counter()
    about: dict[tuple[str, str], set[int]] = {}
    for finding in now.snapshot.findings:
        key = finding.rule, finding.severity
        found[key] += 1
        about.setdefault(key, set()).update(finding.ranks)
    for rule in RULES:
        for severity in SEVERITIES:
            if not now.snapshot.limits.tells(rule, severity):
                continue  # by the configuration: 0 would say that it was looked for
            key = rule, severity
            sheet.put("ranktop_finding_active", job, found[key], rule=rule, severity=severity)
            if key in about:
                sheet.put("ranktop_finding_ranks", job, len(about[key]), rule=rule, severity=severity)
