"""What a scrape says: of ranks that speak, that are silent, that are gone; and what no job may put into it."""

from __future__ import annotations

import contextlib
import errno
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_job import FakeClock, FakeJob, FakeSource, fsdp_job, host_job
from msgspec.structs import replace

from ranktop.probes.reading import Collectives, GroupPosition
from ranktop.tui.prometheus import follow
from ranktop.tui.prometheus.families import FAMILIES
from ranktop.tui.prometheus.follow import ENDED_SECONDS, Follower
from ranktop.tui.prometheus.labels import LONGEST, MOST_JOBS
from ranktop.tui.session.findings import limits
from ranktop.tui.session.source import Link, Received, Reset
from ranktop.wire.endpoints import Found, JobEntry
from ranktop.wire.progress import Progress
from ranktop.wire.schema import End, Sample

serve = pytest.importorskip("ranktop.tui.prometheus.serve", reason="prometheus-client is not installed")

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

GRAVE = ("info", "warning", "critical")

WALL = 1_800_000_000.0


class Altered(FakeSource):
    """A fake job whose messages a test may change."""

    def __init__(self, job: FakeJob, clock: Callable[[], float]) -> None:
        super().__init__(job, clock)
        self.change: Callable[[Received], Received] = lambda item: item

    def drain(self) -> list[Received | Reset]:
        return [self.change(item) if isinstance(item, Received) else item for item in super().drain()]


@dataclass
class Machine:
    """Jobs that come and go on a machine with an injected clock, scraped in process."""

    clock: FakeClock = field(default_factory=FakeClock)
    jobs: dict[str, Altered] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.follower = Follower(self.find, connect=lambda directory: self.jobs[directory.name], clock=self.clock)
        # Drawn by the test's own thread when it is asked for: no other runs.
        self.follower.picture = self.draw  # type: ignore[method-assign]
        self.application = serve.application(self.follower, lambda: WALL)

    def draw(self) -> follow.Picture:
        self.follower.beat()
        return self.follower._picture

    def find(self) -> Found:
        names = [name for name in self.jobs if name not in self.gone]
        jobs = [JobEntry(name, "train", Path("/run") / name, 8, 0.0, 1, 1, name in self.ended) for name in names]
        return Found(jobs, self.problems)

    def start(self, job: FakeJob, name: str = "5f2c9a") -> Altered:
        self.jobs[name] = Altered(job, self.clock)
        return self.jobs[name]

    def let_pass(self, seconds: float, every: float = 1.0) -> None:
        for _ in range(math.ceil(seconds / every)):
            self.clock.advance(every)
            self.follower.beat(asked=False)

    def text(self, accept: str = "text/plain", path: str = "/metrics") -> str:
        said: list[str] = []
        environ = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "HTTP_ACCEPT": accept, "HTTP_ACCEPT_ENCODING": "gzip"}
        body = b"".join(self.application(environ, lambda status, headers: said.extend([status, str(headers)])))
        odd = {"/nothing": "404 Not Found"} if "version=x" not in accept else {path: "500 Internal Server Error"}
        assert said[0] == odd.get(path, "200 OK")
        return body.decode()

    def scrape(self) -> Series:
        from prometheus_client.parser import text_string_to_metric_families

        found: Series = {}
        for family in text_string_to_metric_families(self.text()):
            for one in family.samples:
                key = one.name, frozenset(one.labels.items())
                assert key not in found, f"said twice: {key}"
                found[key] = one.value
        return found


def value(series: Series, name: str, /, **labels: Any) -> float | None:
    """The value of the one series of a name with these labels, whatever others it has; None without one."""
    wanted = {(key, str(text)) for key, text in labels.items()}
    found = [number for (told, has), number in series.items() if told == name and wanted <= has]
    assert len(found) <= 1, f"{name} {labels}: {len(found)} series"
    return found[0] if found else None


def names(series: Series, **labels: Any) -> set[str]:
    wanted = {(key, str(text)) for key, text in labels.items()}
    return {name for name, has in series if wanted <= has}


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_rank_is_told_in_base_units_with_the_expected_beside_the_measured(machine: Machine) -> None:
    job = fsdp_job()
    machine.start(job)
    machine.let_pass(3)
    series = machine.scrape()
    sample = job.sample(3, 3)
    assert sample.table is not None
    assert value(series, "ranktop_memory_moment_info", rank=3, moment="forward_end") == 1
    measured = sample.table.moments["forward_end"]
    told = {
        category: value(series, "ranktop_memory_measured_bytes", rank=3, category=category)
        for category in measured.by_category()
    }
    assert told == measured.by_category()
    assert sum(size or 0 for size in told.values()) == value(series, "ranktop_device_memory_size_bytes", rank=3)
    assert value(series, "ranktop_memory_expected_bytes", rank=3, category="parameters") == measured.parameters
    assert value(series, "ranktop_memory_tolerance_bytes", rank=3, category="parameters") == 0
    # The runtime is a guess: no tolerance. What others use is not planned: nothing expected.
    assert value(series, "ranktop_memory_expected_bytes", rank=3, category="runtime") is not None
    assert value(series, "ranktop_memory_tolerance_bytes", rank=3, category="runtime") is None
    assert value(series, "ranktop_memory_expected_bytes", rank=3, category="other") is None
    assert value(series, "ranktop_device_utilization_ratio", rank=3) == (sample.device.utilization or 0) / 100
    assert value(series, "ranktop_device_clock_hertz", rank=3, clock="sm") == (sample.device.sm_clock or 0) * 1e6
    assert value(series, "ranktop_device_power_watts", rank=3, node="node1", job_id="5f2c9a") == sample.device.power
    assert value(series, "ranktop_device_ecc_errors_total", rank=3, error="uncorrected") == 0
    assert value(series, "ranktop_rank_last_sample_timestamp_seconds", rank=3) == WALL
    assert value(series, "ranktop_last_step_timestamp_seconds", rank=3) == WALL - 0.4
    assert value(series, "ranktop_memory_measured_timestamp_seconds", rank=3) == WALL - 0.4
    assert value(series, "ranktop_rank_info", rank=3, device="GPU-00000003", local_rank=3, device_kind="cuda") == 1
    assert value(series, "ranktop_job_info", name="llama8b-sft", strategy="fsdp2", simulated="false") == 1
    assert value(series, "ranktop_job_state", state="running") == 1
    assert value(series, "ranktop_job_ranks", state="ok") == 8


def test_every_series_is_of_a_declared_metric_with_its_labels(machine: Machine) -> None:
    machine.start(fsdp_job())
    machine.start(host_job(), "a01")
    machine.let_pass(3)
    ends = ("_sum", "_count")
    for name, labels in machine.scrape():
        if name.startswith("process_"):
            continue
        family = FAMILIES.get(name) or FAMILIES[next(name.removesuffix(end) for end in ends if name.endswith(end))]
        assert {key for key, _ in labels} <= set(family.labels), name
        assert {"job_id", "rank", "node"} & set(family.labels) <= {key for key, _ in labels}, name


def test_what_is_not_known_is_left_out(machine: Machine) -> None:
    machine.start(host_job(), "a01")
    machine.let_pass(2)
    series = machine.scrape()
    assert value(series, "ranktop_rank_up", rank=0) == 1
    missing = {"ranktop_device_power_watts", "ranktop_device_temperature_celsius", "ranktop_device_utilization_ratio"}
    assert not names(series, rank=0) & missing


def test_a_silent_rank_keeps_nothing_but_that_it_is_down(machine: Machine) -> None:
    job = fsdp_job()
    machine.start(job)
    machine.let_pass(2)
    job.silent.add(3)
    machine.let_pass(3)
    assert value(machine.scrape(), "ranktop_rank_up", rank=3) == 1  # three intervals are allowed
    machine.let_pass(1)
    series = machine.scrape()
    assert value(series, "ranktop_rank_up", rank=3) == 0
    assert value(series, "ranktop_rank_last_sample_timestamp_seconds", rank=3) == WALL - 4
    assert names(series, rank=3) == {
        "ranktop_rank_info", "ranktop_rank_up", "ranktop_rank_restarts_total",
        "ranktop_rank_last_sample_timestamp_seconds",
    }  # fmt: skip
    assert value(series, "ranktop_job_ranks", state="silent") == 1
    assert value(series, "ranktop_rank_up", rank=4) == 1
    machine.let_pass(20)
    series = machine.scrape()
    found = {severity: value(series, "ranktop_finding_active", rule="silent", severity=severity) for severity in GRAVE}
    assert sum(number or 0 for number in found.values()) == 1
    [severity] = [severity for severity, number in found.items() if number]
    assert value(series, "ranktop_finding_ranks", rule="silent", severity=severity) == 1


def test_what_the_configuration_leaves_out_has_no_gauge(machine: Machine) -> None:
    limits.use(limits.Limits(off=frozenset({"silent"}), floors={"hang": "critical"}))
    machine.start(fsdp_job())
    machine.let_pass(1)
    series = machine.scrape()
    assert [value(series, "ranktop_finding_active", rule="silent", severity=severity) for severity in GRAVE] == [
        None
    ] * 3
    assert [value(series, "ranktop_finding_active", rule="hang", severity=severity) for severity in GRAVE] == [
        None, None, 0,
    ]  # fmt: skip


def test_old_values_of_a_device_that_does_not_answer_are_left_out(machine: Machine) -> None:
    job = fsdp_job()
    job.no_answer.add(2)
    machine.start(job)
    machine.let_pass(3)
    series = machine.scrape()
    assert value(series, "ranktop_device_up", rank=2) == 0
    assert value(series, "ranktop_device_power_watts", rank=2) is None  # it is 12 s old
    assert value(series, "ranktop_device_throttled", rank=2) is None
    assert value(series, "ranktop_device_up", rank=1) == 1
    assert value(series, "ranktop_device_power_watts", rank=1) is not None


def test_when_the_hub_is_dead_nothing_is_fresh_though_no_rank_is_known_to_be_silent(machine: Machine) -> None:
    source = machine.start(fsdp_job())
    machine.let_pass(3)
    source.drain = lambda: []  # type: ignore[method-assign]
    for _ in range(5):
        source.state = Link(state="lost", age=(source.state.age or 0.0) + 1)
        machine.let_pass(1)
    series = machine.scrape()
    assert value(series, "ranktop_job_up") == 0
    assert value(series, "ranktop_rank_up", rank=0) == 0
    assert not names(series, rank=0) & {"ranktop_memory_measured_bytes", "ranktop_steps_total"}
    assert not names(series, job_id="5f2c9a") & {"ranktop_job_state", "ranktop_finding_active", "ranktop_job_ranks"}


def test_jobs_come_and_go_and_come_again(machine: Machine) -> None:
    job = fsdp_job()
    machine.start(job)
    machine.let_pass(3)
    machine.start(host_job(), "a01")
    machine.let_pass(3)
    assert value(machine.scrape(), "ranktop_exporter_jobs") == 2
    for rank in range(8):
        job.ends[rank] = End(rank=rank, how="exit", code=0)
    machine.let_pass(1)
    machine.ended.add("5f2c9a")
    machine.let_pass(4)
    series = machine.scrape()
    assert value(series, "ranktop_job_state", job_id="5f2c9a", state="ended") == 1
    assert value(series, "ranktop_job_ranks", job_id="5f2c9a", state="ended") == 8
    assert value(series, "ranktop_memory_measured_bytes", job_id="5f2c9a", rank=0, category="parameters") is None
    machine.let_pass(ENDED_SECONDS, every=5)
    series = machine.scrape()
    assert not names(series, job_id="5f2c9a")
    assert value(series, "ranktop_exporter_jobs") == 1
    assert machine.jobs["5f2c9a"].closed
    machine.let_pass(10, every=2)
    assert not names(machine.scrape(), job_id="5f2c9a")  # though its hub lingers
    machine.ended.discard("5f2c9a")
    machine.start(fsdp_job())
    machine.let_pass(4)
    assert value(machine.scrape(), "ranktop_job_state", job_id="5f2c9a", state="running") == 1


def test_when_another_hub_takes_over_no_series_moves_to_another_node(machine: Machine) -> None:
    job = fsdp_job()
    source = machine.start(job)
    machine.let_pass(3)
    counted = value(machine.scrape(), "ranktop_step_duration_seconds_count", rank=0)
    source.sent, source.change = 10**9, lambda item: item  # the new hub has heard of nobody
    source.extra.append(Reset(job.job, "hub-2", True))
    source.extra.append(source.message(0, job.sample(0, 4), "sample"))
    machine.let_pass(1)
    series = machine.scrape()
    assert not [labels for name, labels in series if ("rank", "0") in labels or ("node", "") in labels]
    assert value(series, "ranktop_job_up") == 1
    source.extra.append(source.message(0, job.card(0), "card"))
    machine.let_pass(1)
    series = machine.scrape()
    assert value(series, "ranktop_rank_up", rank=0, node="node1") == 1
    assert (value(series, "ranktop_step_duration_seconds_count", rank=0) or 0) >= (counted or 0) > 0


def test_a_job_whose_hub_has_vanished_is_told_of_for_as_long(machine: Machine) -> None:
    source = machine.start(fsdp_job())
    machine.let_pass(3)
    source.state = Link(state="lost", age=5.0)
    machine.gone.add("5f2c9a")
    machine.let_pass(20, every=2)
    assert value(machine.scrape(), "ranktop_job_up", job_id="5f2c9a") == 0
    machine.let_pass(ENDED_SECONDS, every=5)
    assert not names(machine.scrape(), job_id="5f2c9a")


def test_steps_are_added_up_once_each_also_over_a_restart(machine: Machine) -> None:
    job = host_job()
    for spec in job.specs.values():
        object.__setattr__(spec, "step_s", 0.5)
    source = machine.start(job, "a01")
    machine.let_pass(1)
    before = value(machine.scrape(), "ranktop_step_duration_seconds_count", rank=0) or 0
    machine.let_pass(10)
    machine.follower.beat()
    machine.follower.beat()
    series = machine.scrape()
    counted = value(series, "ranktop_step_duration_seconds_count", rank=0)
    assert counted == before + 20
    mean = (value(series, "ranktop_step_duration_seconds_sum", rank=0) or 0) / counted
    assert mean == pytest.approx(0.5, rel=0.03)
    phases = [
        value(series, "ranktop_step_phase_duration_seconds_sum", rank=0, phase=phase) or 0
        for phase in ("data", "forward", "backward", "optimizer")
    ]
    assert sum(phases) == pytest.approx(value(series, "ranktop_step_duration_seconds_sum", rank=0))
    life = Received(replace(source.message(0, job.sample(0, 0), "sample").header, restart=1, pid=7, seq=0), Sample(
        rank=0, step=2, steps=tuple(job.step_times(0, index) for index in (1, 2)),
    ), 0.0, 10**6)  # fmt: skip
    source.extra.append(Received(replace(life.header, kind="card"), job.card(0), 0.0, 10**6))
    source.extra.append(life)
    machine.let_pass(1)
    assert value(machine.scrape(), "ranktop_step_duration_seconds_count", rank=0) == counted + 2
    assert value(machine.scrape(), "ranktop_rank_restarts_total", rank=0) == 1


def changed(**fields: Any) -> Callable[[Received], Received]:
    """Have every sample say something else."""

    def change(item: Received) -> Received:
        if not isinstance(item.body, Sample):
            return item
        return Received(item.header, replace(item.body, **fields), item.age, item.number)

    return change


def test_progress_is_told_with_its_time_and_a_loss_that_is_no_number_as_that(machine: Machine) -> None:
    source = machine.start(host_job(), "a01")
    told = Progress(
        step=70, total_steps=100, epoch=0.7, loss=2.5, learning_rate=3e-4, values={"eval_loss": 2.75}, age=6.0
    )
    source.change = changed(progress=told, activity="validation")
    machine.let_pass(2)
    series = machine.scrape()
    assert value(series, "ranktop_progress_loss", rank=1) == 2.5
    assert value(series, "ranktop_progress_planned_steps", rank=1) == 100
    assert value(series, "ranktop_progress_value", rank=1, name="eval_loss") == 2.75
    assert value(series, "ranktop_progress_gradient_norm", rank=1) is None
    assert value(series, "ranktop_progress_timestamp_seconds", rank=1) == WALL - 6
    assert value(series, "ranktop_rank_activity", rank=1, activity="validation") == 1
    source.change = changed(activity="Checkpoint")  # another word for it, as a trainer may have
    machine.let_pass(1)
    assert value(machine.scrape(), "ranktop_rank_activity", rank=1, activity="save") == 1
    source.change = changed(progress=replace(told, loss=None, not_finite={"loss": "nan", "other_loss": "-inf"}))
    machine.let_pass(1)
    series = machine.scrape()
    assert math.isnan(value(series, "ranktop_progress_loss", rank=1) or 0.0)
    assert value(series, "ranktop_progress_value", rank=1, name="other_loss") == -math.inf


def test_tokens_a_second_of_a_job_that_tells_none_are_those_of_the_screen(machine: Machine) -> None:
    machine.start(host_job(), "a01")
    machine.let_pass(20)
    series = machine.scrape()
    assert value(series, "ranktop_progress_tokens_per_second", rank=0) is None
    assert (value(series, "ranktop_job_tokens_per_second") or 0.0) > 0


def test_a_throttle_reason_that_has_passed_is_0(machine: Machine) -> None:
    job = fsdp_job()
    job.reading_changes[1] = {"throttle": ("software power cap", "made up by nobody")}
    machine.start(job)
    machine.let_pass(2)
    assert value(machine.scrape(), "ranktop_device_throttled", rank=1, reason="software power cap") == 1
    job.reading_changes[1] = {"throttle": ()}
    machine.let_pass(1)
    series = machine.scrape()
    assert value(series, "ranktop_device_throttled", rank=1, reason="software power cap") == 0
    assert value(series, "ranktop_device_throttled", rank=1, reason="other") == 0
    assert value(series, "ranktop_device_throttled", rank=2, reason="software power cap") is None


def test_no_text_of_a_job_makes_a_label_long_odd_or_double(machine: Machine) -> None:
    evil = '\x1b[31m"}\n\\{evil="1"} 7\n' + "x" * 500
    job = host_job()
    job.node = lambda rank: evil
    job.job = replace(job.job, name=evil, launcher=evil)
    job.model = evil
    source = machine.start(job, "a01")
    groups = tuple(GroupPosition(str(at), evil, 2, at, at) for at in range(30))
    loud = Progress(loss=-1e300, values={f"{evil}{at}": float(at) for at in range(30)})
    source.change = changed(collectives=Collectives(groups), progress=loud, activity=evil, step=-5)
    machine.let_pass(2)
    text = machine.text()
    series = machine.scrape()
    assert "\x1b" not in text
    assert all(len(word) <= LONGEST for _, labels in series for _, word in labels)
    assert len([1 for name, labels in series if "collectives_enqueued" in name and ("rank", "0") in labels]) == 8
    assert len([1 for name, labels in series if name == "ranktop_progress_value" and ("rank", "0") in labels]) == 8
    assert value(series, "ranktop_rank_activity", rank=0, activity="other") == 1
    assert value(series, "ranktop_steps_total", rank=0) is None  # a counter below 0 counts nothing
    assert value(series, "ranktop_exporter_errors_total") == 0


def test_too_many_jobs_and_ranks_are_left_out_and_that_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ranktop.tui.prometheus.collector.MOST_RANKS", 5)
    for at in range(MOST_JOBS + 3):
        machine.start(host_job(), f"j{at}")
    machine.let_pass(1)
    series = machine.scrape()
    assert value(series, "ranktop_exporter_jobs") == MOST_JOBS
    assert value(series, "ranktop_exporter_left_out", what="jobs") == 3
    assert value(series, "ranktop_exporter_left_out", what="ranks") == 2 * MOST_JOBS - 5
    assert len([1 for name, _ in series if name == "ranktop_rank_up"]) == 5


def test_one_job_that_cannot_be_read_costs_no_other(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> list[Received | Reset]:
        raise ValueError("a hub gone mad\x1b[2J")

    machine.problems.append("/run/other belongs to user root: refused")
    machine.start(fsdp_job()).drain = broken  # type: ignore[method-assign]
    machine.start(host_job(), "a01")
    machine.let_pass(2)
    series = machine.scrape()
    assert value(series, "ranktop_rank_up", job_id="a01", rank=0) == 1
    assert (value(series, "ranktop_exporter_errors_total") or 0) >= 2
    assert capsys.readouterr().err.splitlines() == [
        "ranktop: /run/other belongs to user root: refused", "ranktop: job 5f2c9a: ValueError: a hub gone mad",
    ]  # fmt: skip


def test_openmetrics_is_spoken_where_it_is_asked_for(machine: Machine) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    machine.start(fsdp_job())
    machine.let_pass(2)
    text = machine.text("application/openmetrics-text; version=1.0.0; q=0.8,text/plain;version=0.0.4;q=0.5")
    assert text.endswith("# EOF\n")
    families = {family.name: family for family in text_string_to_metric_families(text)}  # strict: it raises
    assert (families["ranktop_steps"].type, families["ranktop_job"].type) == ("counter", "info")
    assert families["ranktop_memory_measured_bytes"].unit == "bytes"
    assert families["ranktop_step_duration_seconds"].type == "summary"


def test_a_header_that_makes_no_sense_costs_a_line(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        assert "the metrics cannot be given" in machine.text("application/openmetrics-text;version=x")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ranktop: a scrape: ")


def test_a_machine_without_descriptors_is_no_reason_to_spin(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    slept: list[float] = []
    serving = serve.server("127.0.0.1", 0, machine.follower)
    with contextlib.closing(serving.socket):
        monkeypatch.setattr(time, "sleep", slept.append)
        monkeypatch.setattr(serving, "socket", Full())
        with pytest.raises(OSError, match="Too many"):
            serving.get_request()
    assert slept == [serve.PAUSE]


def test_other_pages_point_to_the_metrics(machine: Machine) -> None:
    assert "href=/metrics" in machine.text(path="/")
    assert machine.text(path="/nothing") == "the metrics are at /metrics\n"


def test_a_stream_that_lags_is_taken_without_a_pause(machine: Machine) -> None:
    source = machine.start(fsdp_job())
    waits: list[float] = []

    def wait(timeout: float | None = None) -> bool:
        waits.append(-1.0 if timeout is None else timeout)
        late = 2.0 if len(waits) < 3 else 0.0
        source.change = lambda item: Received(item.header, item.body, item.age + late, item.number)
        machine.clock.advance(1)
        if len(waits) == 5:
            machine.follower.stop()
        return False

    machine.follower._asked.wait = wait  # type: ignore[method-assign]
    machine.follower.run()
    assert waits == [follow.BEAT, 0.0, 0.0, follow.BEAT, follow.BEAT]


def test_a_scrape_waits_for_nothing_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PATIENCE", 0.05)
    follower = Follower(lambda: Found())  # nobody runs it
    began = time.perf_counter()
    assert follower.picture().jobs == ()
    assert time.perf_counter() - began < 2.0


def test_a_scrape_gets_what_is_so_now_from_the_thread_that_follows() -> None:
    follower = Follower(lambda: Found())
    thread = threading.Thread(target=follower.run)
    thread.start()
    try:
        pictures = [follower.picture() for _ in range(20)]
        assert len({picture.at for picture in pictures}) == 20
    finally:
        follower.stop()
        thread.join(10)
    assert not thread.is_alive()
