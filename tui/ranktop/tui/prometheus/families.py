"""The metrics: names, types, labels and help are a contract (``docs/prometheus.md``), by Prometheus' conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNITS: Final = ("bytes", "seconds", "celsius", "watts", "hertz", "joules", "ratio")

JOB: Final = ("job_id",)
"""Not ``job``: a server puts that label of its own on everything that it scrapes."""

RANK: Final = (*JOB, "rank", "node")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    """As it is asked for: counters end with ``_total``, a summary gives ``_sum`` and ``_count``."""
    kind: str
    """``gauge``, ``counter``, ``summary`` or ``info``."""
    labels: tuple[str, ...]
    help: str

    @property
    def base(self) -> str:
        """The name without what its type puts behind it."""
        return self.name.removesuffix({"counter": "_total", "info": "_info"}.get(self.kind, " "))

    @property
    def unit(self) -> str:
        """The unit that the name ends with; empty without one."""
        return next((unit for unit in UNITS if self.base.endswith(f"_{unit}")), "")


def _gauge(name: str, labels: tuple[str, ...], words: str) -> Family:
    return Family(name, "gauge", labels, words)


def _counter(name: str, labels: tuple[str, ...], words: str) -> Family:
    return Family(name, "counter", labels, words)


def _summary(name: str, labels: tuple[str, ...], words: str) -> Family:
    return Family(name, "summary", labels, words)


def _info(name: str, labels: tuple[str, ...], words: str) -> Family:
    return Family(name, "info", labels, words)


CATEGORY: Final = (*RANK, "category")

_EXPORTER: Final = (
    _info("ranktop_build_info", ("version",), "Version of ranktop that exports these metrics."),
    _gauge("ranktop_exporter_jobs", (), "Jobs that are exported."),
    _gauge("ranktop_exporter_left_out", ("what",), "Jobs and ranks that are not exported because there are too many."),
    _counter("ranktop_exporter_errors_total", (), "Failures inside the exporter, each of which costs some series."),
)

_JOBS: Final = (
    _info(
        "ranktop_job_info",
        (*JOB, "name", "launcher", "strategy", "trainer", "simulated"),
        "What a job is: its name, what launched it, its parallel strategy, its trainer.",
    ),
    _gauge("ranktop_job_up", JOB, "1 while the job's hub answers, 0 while it does not."),
    _gauge("ranktop_job_state", (*JOB, "state"), "1 for the state that the job is in, 0 for the others."),
    _gauge("ranktop_job_ranks", (*JOB, "state"), "Ranks of the job that are in a state; together its world size."),
    _counter("ranktop_job_steps_total", JOB, "Optimizer steps that the furthest rank has finished."),
    _gauge("ranktop_job_step_seconds", JOB, "Median of the job's last step times."),
    _gauge(
        "ranktop_job_tokens_per_second",
        JOB,
        "Tokens a second of the whole job: as told, else by the shapes of the inputs, else by batch and step time.",
    ),
    _gauge("ranktop_job_last_step_timestamp_seconds", JOB, "Unix time at which a rank last finished a step."),
    _gauge("ranktop_finding_active", (*JOB, "rule", "severity"), "Findings of a rule that stand now."),
    _gauge("ranktop_finding_ranks", (*JOB, "rule", "severity"), "Ranks that the findings of a rule are about."),
)

_RANKS: Final = (
    _info(
        "ranktop_rank_info",
        (*RANK, "local_rank", "device", "device_name", "device_kind"),
        "Where a rank runs: its place on its node, UUID, name and kind of its device.",
    ),
    _gauge("ranktop_rank_up", RANK, "1 while the rank speaks, 0 when it is silent for three intervals or has ended."),
    _gauge("ranktop_rank_last_sample_timestamp_seconds", RANK, "Unix time of the rank's last sample."),
    _counter("ranktop_rank_restarts_total", RANK, "Elastic restarts of the rank's process."),
    _gauge(
        "ranktop_rank_activity",
        (*RANK, "activity"),
        "1 while the script says that it does this: validation, save, or other.",
    ),
)

_MEMORY: Final = (
    _gauge(
        "ranktop_memory_measured_bytes",
        CATEGORY,
        "Memory at the peak moment of the last step that was read; the categories add up to the device's size.",
    ),
    _gauge("ranktop_memory_expected_bytes", CATEGORY, "Memory that the strategy's rules expect at the same moment."),
    _gauge(
        "ranktop_memory_tolerance_bytes",
        CATEGORY,
        "How far a right measurement may be from the expected one; absent where that is a guess.",
    ),
    _info("ranktop_memory_moment_info", (*RANK, "moment"), "The peak moment, at which measured and expected are told."),
    _gauge("ranktop_memory_measured_timestamp_seconds", RANK, "Unix time of the end of the step that was read."),
    _gauge("ranktop_memory_now_bytes", CATEGORY, "Memory at the last sample, wherever in a step that was."),
    _gauge("ranktop_allocator_peak_bytes", RANK, "The allocator's own running peak of allocated memory."),
    _gauge("ranktop_allocator_inactive_split_bytes", RANK, "Free parts of blocks that are in use: fragmentation."),
    _counter("ranktop_allocator_retries_total", RANK, "Times the allocator freed its cache because memory was short."),
    _counter("ranktop_allocator_out_of_memory_total", RANK, "Allocations that failed for want of memory."),
)

_DEVICE: Final = (
    _gauge("ranktop_device_up", RANK, "1 while the device answers, 0 when it is lost, to be reset or hangs."),
    _gauge("ranktop_device_memory_size_bytes", RANK, "Memory that the device has in all."),
    _gauge("ranktop_device_memory_used_bytes", RANK, "Memory of the device in use by anybody."),
    _gauge("ranktop_device_utilization_ratio", RANK, "Share of the time in which the device computed, 0 to 1."),
    _gauge("ranktop_device_power_watts", RANK, "Power that the device draws."),
    _gauge("ranktop_device_power_limit_watts", RANK, "Power that the device may draw."),
    _gauge("ranktop_device_temperature_celsius", RANK, "Temperature of the device."),
    _gauge("ranktop_device_clock_hertz", (*RANK, "clock"), "Clock of the device's multiprocessors and memory."),
    _gauge(
        "ranktop_device_throttled",
        (*RANK, "reason"),
        "1 while a reason keeps the clocks from being higher, 0 when it has passed.",
    ),
    _counter("ranktop_device_ecc_errors_total", (*RANK, "error"), "ECC errors since the driver was loaded."),
    _counter("ranktop_device_remapped_rows_total", (*RANK, "error"), "Memory rows replaced because of errors."),
    _counter("ranktop_device_pcie_replays_total", RANK, "PCIe packets that were sent again."),
    _counter("ranktop_device_energy_joules_total", RANK, "Energy used since the driver was loaded."),
)

_STEPS: Final = (
    _counter("ranktop_steps_total", RANK, "Optimizer steps that the rank has finished since it started."),
    _gauge("ranktop_last_step_timestamp_seconds", RANK, "Unix time at which the rank last finished a step."),
    _summary(
        "ranktop_step_duration_seconds",
        RANK,
        "Duration of the steps that were timed (all, up to about two a second) and seen by this exporter.",
    ),
    _summary(
        "ranktop_step_phase_duration_seconds",
        (*RANK, "phase"),
        "Duration of the phases of those steps: data, forward, backward, optimizer.",
    ),
    _counter(
        "ranktop_collectives_enqueued_total",
        (*RANK, "group"),
        "Collectives that the rank has enqueued in a process group.",
    ),
    _counter(
        "ranktop_collectives_completed_total", (*RANK, "group"), "Collectives that have completed in a process group."
    ),
    _gauge(
        "ranktop_cpu_starved_ratio",
        RANK,
        "Share of the last interval in which the training thread was ready to run and had no CPU, 0 to 1.",
    ),
)

_PROGRESS: Final = (
    _gauge("ranktop_progress_step", RANK, "The trainer's own count of optimizer steps."),
    _gauge("ranktop_progress_planned_steps", RANK, "Steps that the trainer will make in all."),
    _gauge("ranktop_progress_epoch", RANK, "Epochs that the trainer has come through."),
    _gauge("ranktop_progress_loss", RANK, "The last loss that was told; NaN or infinite where it was that."),
    _gauge("ranktop_progress_learning_rate", RANK, "The last learning rate that was told."),
    _gauge("ranktop_progress_gradient_norm", RANK, "The last norm of the gradients that was told."),
    _gauge("ranktop_progress_tokens_per_second", RANK, "Tokens a second of this rank, as the script told them."),
    _gauge("ranktop_progress_value", (*RANK, "name"), "Whatever else the script told by name, at most eight."),
    _gauge("ranktop_progress_timestamp_seconds", RANK, "Unix time at which the script last told of its progress."),
)

_AGENT: Final = (
    _counter("ranktop_agent_cpu_seconds_total", RANK, "CPU time of the agent's thread, as far as it was seen."),
    _counter("ranktop_agent_hook_seconds_total", RANK, "Time of the agent's hooks in the training thread, as seen."),
    _counter("ranktop_agent_dropped_messages_total", RANK, "Messages that the agent dropped because no hub read."),
    _counter("ranktop_agent_errors_total", RANK, "Failures inside the agent, each swallowed."),
)

FAMILIES: Final = {
    family.name: family for family in (*_EXPORTER, *_JOBS, *_RANKS, *_MEMORY, *_DEVICE, *_STEPS, *_PROGRESS, *_AGENT)
}
"""Name -> metric, in the order in which they are told. They are added to; none is renamed or changes its unit."""
