"""What is asked of NVML for one device, each getter by itself: one that fails takes nothing else along."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from ranktop.probes.nvml_codes import ARGUMENT_VERSION_MISMATCH, FUNCTION_NOT_FOUND, words

Values = dict[str, "int | float | None"]
"""Field of DeviceReading -> value."""

_NO_NUMBER: Final = (1 << 32) - 1
_NO_NUMBER_64: Final = (1 << 64) - 1
"""What drivers put where they have no number, unsigned (``NVML_VALUE_NOT_AVAILABLE``)."""
_HOTTEST: Final = 250
"""Degrees Celsius; more is no temperature."""
_FASTEST: Final = 100_000
"""MHz; more is no clock."""
_STRONGEST: Final = 100_000
"""Watts; more is no power."""


class Absent(Exception):
    """A getter answered, but with something that is no value; the text says what."""


@dataclass(frozen=True, slots=True)
class Getter:
    """One question to NVML."""

    name: str
    """The NVML function, as shown while it does not answer."""
    fields: tuple[str, ...]
    """Fields of DeviceReading that it fills."""
    ask: Callable[[Any, Any, Collection[int]], Values]
    """(pynvml, handle, this process's ids) -> values; raises NVMLError or Absent."""
    every: int = 1
    """Asked in one of so many rounds."""


def code_of(error: Exception) -> int | None:
    """Return the NVML code of an exception, None for any other exception."""
    value = getattr(error, "value", None)
    known = any(base.__name__ == "NVMLError" for base in type(error).__mro__)
    return value if known and isinstance(value, int) else None


def explain(error: Exception) -> str:
    """Return why a getter gave no value, in words."""
    if isinstance(error, Absent):
        return str(error)
    code = code_of(error)
    if code is not None:
        return words(code)
    if isinstance(error, AttributeError):
        return "this version of pynvml can't ask for it"
    return f"{type(error).__name__}: {error}"


def _first(*calls: Callable[[], Any]) -> Any:
    """Return the first answer, passing over calls that the driver or pynvml lacks or has in another form."""
    for call in calls[:-1]:
        answered, answer = _attempt(call)
        if answered:
            return answer
    return calls[-1]()


def _attempt(call: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, call()
    except AttributeError:
        return False, None
    except Exception as error:
        if code_of(error) in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
            return False, None
        raise


def _memory(nvml: Any, handle: Any, _pids: Collection[int]) -> Values:
    # The first version counts the driver's reserved bytes as used, the second apart from it: total - free
    # is the same of both.
    info = _first(
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2),
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
    )
    total, free = int(info.total), int(info.free)
    if total == 0:
        raise Absent("the device has no memory of its own (it shares the host's)")
    if _NO_NUMBER_64 in (total, free) or free > total:
        raise Absent(f"the driver says {free} bytes free of {total}")
    return {"total": total, "used": total - free, "free": free}


def _utilization(nvml: Any, handle: Any, _pids: Collection[int]) -> Values:
    percent = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    if percent > 100:
        raise Absent(f"the driver says {percent} %")
    return {"utilization": percent}


def _watts(milliwatts: int) -> float:
    if milliwatts == _NO_NUMBER or milliwatts > _STRONGEST * 1000:
        raise Absent(f"the driver says {milliwatts} mW")
    return milliwatts / 1000


def _power(nvml: Any, handle: Any, _pids: Collection[int]) -> Values:
    return {"power": _watts(int(nvml.nvmlDeviceGetPowerUsage(handle)))}


def _power_limit(nvml: Any, handle: Any, _pids: Collection[int]) -> Values:
    return {"power_limit": _watts(int(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)))}


def _temperature(nvml: Any, handle: Any, _pids: Collection[int]) -> Values:
    sensor = nvml.NVML_TEMPERATURE_GPU
    # The plain one is announced to go with CUDA 14; older drivers have no other.
    degrees = int(
        _first(
            lambda: nvml.nvmlDeviceGetTemperature(handle, sensor),
            lambda: nvml.nvmlDeviceGetTemperatureV(handle, sensor),
        )
    )
    if not -100 < degrees < _HOTTEST:
        raise Absent(f"the driver says {degrees} °C")
    return {"temperature": degrees}


def _clock(field: str, kind: str) -> Callable[[Any, Any, Collection[int]], Values]:
    def ask(nvml: Any, handle: Any, _pids: Collection[int]) -> Values:
        megahertz = int(nvml.nvmlDeviceGetClockInfo(handle, getattr(nvml, kind)))
        if megahertz > _FASTEST:
            raise Absent(f"the driver says {megahertz} MHz")
        return {field: megahertz}

    return ask


def _process(nvml: Any, handle: Any, pids: Collection[int]) -> Values:
    processes = _first(
        lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
        lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle),
        lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle),
    )
    mine = [process for process in processes if process.pid in pids]
    if not mine:
        others = f"; it lists {len(processes)} others" if processes else ""
        raise Absent(
            "this process is not in the driver's list (no CUDA context yet, or a container's own process ids)" + others
        )
    used = [process.usedGpuMemory for process in mine]
    if any(size is None or size == _NO_NUMBER_64 for size in used):
        raise Absent("the driver does not tell the memory of processes here")
    return {"process_used": sum(int(size) for size in used)}


GETTERS: Final = (
    Getter("nvmlDeviceGetMemoryInfo", ("total", "used", "free"), _memory),
    Getter("nvmlDeviceGetComputeRunningProcesses", ("process_used",), _process),
    Getter("nvmlDeviceGetUtilizationRates", ("utilization",), _utilization),
    Getter("nvmlDeviceGetPowerUsage", ("power",), _power),
    Getter("nvmlDeviceGetTemperature", ("temperature",), _temperature),
    Getter("nvmlDeviceGetClockInfo", ("sm_clock",), _clock("sm_clock", "NVML_CLOCK_SM")),
    Getter("nvmlDeviceGetClockInfo", ("memory_clock",), _clock("memory_clock", "NVML_CLOCK_MEM")),
    Getter("nvmlDeviceGetEnforcedPowerLimit", ("power_limit",), _power_limit, every=10),
)
"""At most 12 calls a round: the list of processes takes two, and older versions are tried after newer."""
