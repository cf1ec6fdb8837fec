"""What is asked of a device a few calls a round, in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ranktop.probes.nvml.codes import NOT_SUPPORTED, Absent, code_of
from ranktop.probes.nvml.fields import FIELDS_AT_ONCE
from ranktop.probes.nvml.getter import Getter, Subject, Values, first, number
from ranktop.probes.nvml.limits import (
    bytes_per_second,
    checked,
    counter,
    counter_64,
    degrees,
    fan,
    joules,
    megahertz,
    switch,
    watts,
    within,
)
from ranktop.probes.nvml.links import LINKS
from ranktop.probes.nvml.processes import SELDOM

_MODES: Final = ("default", "exclusive thread", "prohibited", "exclusive process")
"""By ``nvmlComputeMode_t``."""

POWER_LIMIT: Final = number("nvmlDeviceGetEnforcedPowerLimit", "power_limit", watts)


def _state(value: int) -> int:
    if not 0 <= value <= 15:
        raise Absent(f"the driver does not know it (it says {value})")  # 32 is NVML_PSTATE_UNKNOWN.
    return value


def _mode(value: int) -> str:
    if not 0 <= value < len(_MODES):
        raise Absent(f"the driver says mode {value}")
    return _MODES[value]


def _power_range(subject: Subject) -> Values:
    least, most = subject.nvml.nvmlDeviceGetPowerManagementLimitConstraints(subject.gpu())
    return {"power_min_limit": checked(watts, int(least)), "power_max_limit": checked(watts, int(most))}


def _fan(subject: Subject) -> Values:
    nvml, handle = subject.nvml, subject.gpu()
    # The plain one is announced to go with CUDA 14.
    ways = (lambda: nvml.nvmlDeviceGetFanSpeed(handle), lambda: nvml.nvmlDeviceGetFanSpeed_v2(handle, 0))
    return {"fan": fan(int(first(subject, "fan", ways)[1]))}


def _ecc(subject: Subject) -> Values:
    subject.ecc_off = False
    enabled = switch(int(subject.nvml.nvmlDeviceGetEccMode(subject.gpu())[0]))
    subject.ecc_off = not enabled
    return {"ecc_enabled": enabled}


def _remapped(subject: Subject) -> Values:
    corrected, uncorrected, pending, failed = subject.nvml.nvmlDeviceGetRemappedRows(subject.gpu())
    return {
        "remapped_corrected": checked(counter, int(corrected)),
        "remapped_uncorrected": checked(counter, int(uncorrected)),
        "remap_pending": checked(switch, int(pending)),
        "remap_failed": checked(switch, int(failed)),
    }


def _threshold(field: str, which: str) -> Getter:
    return number("nvmlDeviceGetTemperatureThreshold", field, degrees, f"NVML_TEMPERATURE_THRESHOLD_{which}")


def _errors(field: str, kind: str, since: str) -> Getter:
    plain = number(
        "nvmlDeviceGetTotalEccErrors", field, counter_64, f"NVML_MEMORY_ERROR_TYPE_{kind}", f"NVML_{since}_ECC"
    )

    def ask(subject: Subject) -> Values:
        try:
            return plain.ask(subject)
        except Exception as error:
            if subject.ecc_off and code_of(error) == NOT_SUPPORTED:
                raise Absent("ECC is off: errors are not counted") from None
            raise

    return replace(plain, ask=ask)


_generation, _width = within(1, 16, ""), within(1, 64, "")

SLOW: Final = (
    POWER_LIMIT,
    FIELDS_AT_ONCE,
    LINKS,
    Getter("nvmlDeviceGetEccMode", ("ecc_enabled",), _ecc),
    _errors("ecc_uncorrected", "UNCORRECTED", "VOLATILE"),
    _errors("ecc_corrected", "CORRECTED", "VOLATILE"),
    Getter(
        "nvmlDeviceGetRemappedRows",
        ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed"),
        _remapped,
    ),
    number("nvmlDeviceGetTotalEnergyConsumption", "energy", joules),
    number("nvmlDeviceGetPerformanceState", "performance_state", _state),
    number("nvmlDeviceGetCurrPcieLinkGeneration", "pcie_generation", _generation),
    number("nvmlDeviceGetCurrPcieLinkWidth", "pcie_width", _width),
    number("nvmlDeviceGetPcieReplayCounter", "pcie_replays", counter),
    number("nvmlDeviceGetPcieThroughput", "pcie_tx", bytes_per_second, "NVML_PCIE_UTIL_TX_BYTES"),
    number("nvmlDeviceGetPcieThroughput", "pcie_rx", bytes_per_second, "NVML_PCIE_UTIL_RX_BYTES"),
    *SELDOM,
    Getter("nvmlDeviceGetFanSpeed", ("fan",), _fan),
    _errors("ecc_aggregate_uncorrected", "UNCORRECTED", "AGGREGATE"),
    _errors("ecc_aggregate_corrected", "CORRECTED", "AGGREGATE"),
    _threshold("temperature_slowdown", "SLOWDOWN"),
    _threshold("temperature_shutdown", "SHUTDOWN"),
    _threshold("temperature_max", "GPU_MAX"),
    _threshold("temperature_memory_max", "MEM_MAX"),
    Getter("nvmlDeviceGetPowerManagementLimitConstraints", ("power_min_limit", "power_max_limit"), _power_range),
    number("nvmlDeviceGetPowerManagementDefaultLimit", "power_default_limit", watts),
    number("nvmlDeviceGetMaxClockInfo", "max_sm_clock", megahertz, "NVML_CLOCK_SM"),
    number("nvmlDeviceGetMaxClockInfo", "max_memory_clock", megahertz, "NVML_CLOCK_MEM"),
    number("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_max_generation", _generation),
    number("nvmlDeviceGetMaxPcieLinkWidth", "pcie_max_width", _width),
    number("nvmlDeviceGetPersistenceMode", "persistence", switch),
    number("nvmlDeviceGetComputeMode", "compute_mode", _mode),
)
"""In the order in which they take their turn; a whole turn is 34 calls."""
