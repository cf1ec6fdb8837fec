"""``python -m ranktop.probes.nvml_report``: what NVML says of this machine, as one line of JSON, whatever hangs.

The driver is asked on threads that are given up after a deadline: one for the library and its initialisation, then
one for each device, so that a device that does not answer costs its own line only. The process leaves without
``nvmlShutdown`` and without waiting for a call in flight.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from ranktop.probes.nvml.codes import GONE, NOT_FOUND, Absent, code_of, explain
from ranktop.probes.nvml.describe import cuda_version, most_instances, pci_bus_id
from ranktop.probes.nvml.getter import Subject
from ranktop.probes.nvml.library import Library, own_pynvml
from ranktop.probes.nvml.memory import ask_memory
from ranktop.probes.nvml.slow import SLOW

SCHEMA: Final = 1
INIT_SECONDS: Final = 5.0
"""Loading and initialising: drivers without persistence mode bring their devices up first, which takes seconds."""
DEVICE_SECONDS: Final = 3.0
"""For all that one device is asked."""

LIBRARY: Final = "libnvidia-ml.so.1"
ELSEWHERE: Final = (
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib64/nvidia",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)
"""Folders that drivers and container runtimes use and loaders do not always look into."""

_WANTED: Final = frozenset(
    {
        *("persistence", "compute_mode", "ecc_enabled", "ecc_corrected", "ecc_uncorrected"),
        *("ecc_aggregate_uncorrected", "remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed"),
        "recovery",
    }
)
"""Fields of DeviceDetail that tell of a device's health."""
_HANGING: Final = 0.5
"""Part of a device's time for which its last call must have been under way to say that the driver does not answer."""


class Asking:
    """Questions to the driver on a thread of their own, and what is known so far."""

    def __init__(self, work: Callable[[Asking], None]) -> None:
        self.facts: dict[str, Any] = {}
        self.errors: dict[str, dict[str, Any]] = {}
        """fact -> code (None without one) and words."""
        self.nvml = Library(time.monotonic)
        self._work = work
        self._done = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._work(self)
        except Exception as error:
            self.fail("device", error)
        self._done.set()

    def ask(self, fact: str, call: Callable[[], Any]) -> Any:
        """Ask for one fact; None, and an error beside it, when that fails."""
        try:
            value = call()
        except Exception as error:
            self.fail(fact, error)
            return None
        self.facts[fact] = value
        return value

    def fail(self, fact: str, error: Exception) -> None:
        """Note why a fact is not known."""
        self.errors[fact] = {"code": code_of(error), "words": explain(error)}

    def wait(self, until: float) -> dict[str, Any] | None:
        """Wait for the end; returns what does not answer, as ``calling`` and ``seconds``, or None when all is told."""
        if self._done.wait(max(0.0, until - time.monotonic())):
            return None
        calling = self.nvml.calling or ("", time.monotonic())
        return {"calling": calling[0], "seconds": round(time.monotonic() - calling[1], 1)}


def report(init_seconds: float = INIT_SECONDS, device_seconds: float = DEVICE_SECONDS) -> dict[str, Any]:
    """Return all that NVML tells within the deadlines. Sizes are bytes, unknown is None with an entry in ``errors``.

    ``init.state`` is ``ok``, ``failed``, ``no answer`` or ``no library``; a device's ``state`` is ``ok``, ``lost``,
    ``reset required``, ``unavailable``, ``no answer`` (``calling`` and ``seconds`` say of what and for how long) or
    ``slow`` (it was answering when the time was over: ``answered`` calls in ``seconds``).
    """
    started = time.monotonic()
    start = Asking(_start)
    hangs = start.wait(started + init_seconds)
    initialised = round(time.monotonic() - started, 3)
    facts = dict(start.facts)
    library = {
        "path": facts.get("path"),
        "version": version_of(facts.get("real_path")),
        "size": facts.get("size"),
        "error": facts.get("error"),
        "elsewhere": facts.get("elsewhere"),
    }
    state = _init_state(start, hangs)
    count = facts.get("count")
    devices = _devices(count, device_seconds) if state == "ok" and isinstance(count, int) else []
    return {
        "schema": SCHEMA,
        "library": library,
        "init": {
            "state": state,
            **start.errors.get("init", {"code": 0 if state == "ok" else None, "words": ""}),
            "seconds": initialised,
            "calling": (hangs or {}).get("calling"),
        },
        "seconds": round(time.monotonic() - started, 3),
        "driver": facts.get("driver"),
        "nvml": facts.get("nvml"),
        "cuda_driver": facts.get("cuda_driver"),
        "count": count,
        "devices": devices,
        "errors": dict(start.errors),
    }


def _init_state(start: Asking, hangs: dict[str, Any] | None) -> str:
    if hangs is not None:
        return "no answer"
    if start.facts.get("error"):
        return "no library"
    return "failed" if {"init", "count", "device"} & start.errors.keys() else "ok"


def version_of(path: str | None) -> str | None:
    """Return the driver's version that the name of a library file carries.

    >>> version_of("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15")
    '570.86.15'
    """
    found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)*)$", path or "")
    return found.group(1) if found else None


def _start(asking: Asking) -> None:
    """Load the library, initialise it, ask for what is the same for all devices."""
    nvml, facts = asking.nvml, asking.facts
    nvml.run(f"loading {LIBRARY}", _load, facts)
    if facts.get("error"):
        return
    try:
        nvml.start()
    except Exception as error:
        asking.fail("init", error)
        return
    asking.ask("driver", lambda: nvml.text("nvmlSystemGetDriverVersion"))
    asking.ask("nvml", lambda: nvml.text("nvmlSystemGetNVMLVersion"))
    asking.ask("cuda_driver", lambda: cuda_version(int(nvml.nvmlSystemGetCudaDriverVersion_v2())))
    asking.ask("count", lambda: int(nvml.nvmlDeviceGetCount()))


def _load(facts: dict[str, Any]) -> None:
    """Find out which file the loader takes, or why it takes none."""
    try:
        ctypes.CDLL(LIBRARY)
        path = _mapped() or LIBRARY
        facts.update(path=path, real_path=os.path.realpath(path))
        own_pynvml()
    except OSError as error:
        # "<path>: file too short", or the bare name: "cannot open shared object file"
        path, _, problem = str(error).partition(": ")
        facts.update(error=problem or path, path=path if os.path.isabs(path) else None)
    except ImportError as error:
        facts["error"] = f"the Python module pynvml cannot be imported: {error}"
    path = facts.get("path") or ""
    if os.path.exists(path):
        facts["size"] = os.stat(path).st_size
    elif facts.get("error"):
        found = (os.path.join(folder, LIBRARY) for folder in ELSEWHERE)
        facts["elsewhere"] = next((path for path in found if os.path.exists(path)), None)


def _mapped() -> str | None:
    """Return the file that this process has loaded as NVML."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in lines if "libnvidia-ml.so" in line)
    return next(paths, None)


def _devices(count: int, seconds: float) -> list[dict[str, Any]]:
    until = time.monotonic() + seconds
    asked = [Asking(partial(_device, index)) for index in range(count)]
    return [_described(index, asking, asking.wait(until), seconds) for index, asking in enumerate(asked)]


def _described(index: int, asking: Asking, hangs: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    errors = dict(asking.errors)
    gone = [error for error in errors.values() if error["code"] in GONE]
    first: dict[str, Any] = gone[0] if gone else next(iter(errors.values()), {"code": None, "words": ""})
    why: dict[str, Any] = dict(first)
    if hangs is not None and hangs["seconds"] < _HANGING * seconds:
        state, why = "slow", {**hangs, "seconds": seconds, "answered": asking.nvml.count - 1}
    elif hangs is not None:
        state, why = "no answer", hangs
    elif gone:
        state = GONE[first["code"]]
    elif {"uuid", "total"} & asking.facts.keys():
        state, why = "ok", {}
    else:
        state = "unavailable"
    return {"index": index, "state": state, **why, **asking.facts, "errors": errors}


def _device(index: int, asking: Asking) -> None:
    """Ask one device, its identity first."""
    nvml, facts = asking.nvml, asking.facts
    nvml.start()
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    subject = Subject(nvml, handle, handle)
    asking.ask("uuid", lambda: nvml.text("nvmlDeviceGetUUID", handle))
    asking.ask("name", lambda: nvml.text("nvmlDeviceGetName", handle))
    asking.ask("pci_bus_id", lambda: pci_bus_id(str(nvml.nvmlDeviceGetPciInfo(handle).busId)))
    _ask_values(asking, "memory", lambda: ask_memory(subject))
    asking.ask("minor", lambda: int(nvml.nvmlDeviceGetMinorNumber(handle)))
    for getter in SLOW:
        if _WANTED.intersection(getter.fields):
            _ask_values(asking, getter.fields[0], lambda getter=getter: getter.ask(subject))  # type: ignore[misc]
    mode = asking.ask("mig_mode", lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]))
    if mode:
        facts["mig"] = [
            found for place in range(most_instances(nvml, handle)) if (found := _instance(asking, handle, place))
        ]


def _ask_values(asking: Asking, name: str, call: Callable[[], dict[str, Any]]) -> None:
    """Ask what gives several facts at once; some of them may be absent."""
    try:
        values = call()
    except Exception as error:
        asking.fail(name, error)
        return
    for fact, value in values.items():
        if isinstance(value, Absent):
            asking.fail(fact, value)
        elif name == "memory" or fact in _WANTED:
            asking.facts[fact] = value


def _instance(asking: Asking, parent: Any, index: int) -> dict[str, Any] | None:
    """Return one MIG instance, None where there is none of this index: they have gaps."""
    nvml = asking.nvml
    try:
        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
        uuid = nvml.text("nvmlDeviceGetUUID", handle)
    except Exception as error:
        if code_of(error) != NOT_FOUND:
            asking.fail(f"mig.{index}", error)
        return None
    found: dict[str, Any] = {"index": index, "uuid": uuid, "total": None}
    for fact, call in (
        ("name", partial(nvml.text, "nvmlDeviceGetName", handle)),
        ("gpu_instance", partial(_number, nvml.nvmlDeviceGetGpuInstanceId, handle)),
        ("compute_instance", partial(_number, nvml.nvmlDeviceGetComputeInstanceId, handle)),
        ("total", lambda: ask_memory(Subject(nvml, handle, parent, mig=True))["total"]),
    ):
        try:
            found[fact] = call()
        except Exception as error:  # noqa: PERF203 (each on its own)
            found[fact] = None
            asking.fail(f"mig.{index}.{fact}", error)
    return found


def _number(function: Callable[[Any], Any], handle: Any) -> int:
    return int(function(handle))


def main() -> None:
    """Print the report and leave at once. Arguments: the two deadlines, in seconds."""
    text = json.dumps(report(*(float(word) for word in sys.argv[1:3])))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
