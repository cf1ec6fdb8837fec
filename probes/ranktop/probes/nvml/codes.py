"""NVML's return codes in words, with the cure where there is one (nvml.h, ``nvmlReturn_t``)."""

from __future__ import annotations

from typing import Final

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
ARGUMENT_VERSION_MISMATCH: Final = 25
UNKNOWN: Final = 999

GONE: Final = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset required"}
"""Code -> state of a device that says it of everything."""

OTHER_VERSION: Final = (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH)
"""The driver is older or newer than the request: it may know it in another form."""

PARENT_REFUSED: Final = "the whole GPU may not be asked from here: not permitted (NVML 4)"
LOST_BY_CONTAINER: Final = (
    "the container lost access to its devices (NVML 999); restart it (a systemctl daemon-reload on the host can take"
    " them away; outside of a container see dmesg for Xid errors)"
)

_WORDS: Final = {
    1: ("the driver's library is not initialised", ""),
    2: ("the driver refuses the request (invalid argument)", ""),
    3: ("not supported by this device", ""),
    4: ("not permitted", "inside a container only the device or MIG instance given to it may be asked"),
    6: ("not found", "is the device given to this container, and not hidden?"),
    7: ("no data: the answer did not fit", ""),
    8: ("the power cables are not attached", "attach the device's external power"),
    9: ("the driver is not loaded", "load the nvidia kernel module"),
    10: ("the driver timed out", "see dmesg for Xid errors"),
    11: ("the kernel can't deliver the device's interrupts", "see dmesg"),
    12: ("no libnvidia-ml.so.1 that can be loaded", "the NVIDIA driver brings it"),
    13: ("this driver is too old to tell", ""),
    14: ("the device's information ROM is corrupted", "reflash or replace the device"),
    15: ("the GPU is lost: it does not answer on the bus", "see dmesg for Xid 79; reset the GPU or reboot"),
    16: ("the GPU needs a reset", "nvidia-smi --gpu-reset, or reboot"),
    17: ("blocked by the operating system", "does the cgroup allow the device?"),
    18: ("driver and library differ in version", "updated while in use: reboot, or reload its module"),
    19: ("in use by another program", "end the profiler or the other monitor that holds it"),
    20: ("the driver is short of memory", ""),
    21: ("no data", ""),
    22: ("not supported by a virtual GPU with ECC", ""),
    23: ("the driver is short of resources", ""),
    24: ("not supported at this frequency", ""),
    25: ("the driver knows another version of this request", ""),
    26: ("deprecated", ""),
    27: ("not ready", ""),
    28: ("no such GPU", ""),
    29: ("the device is in the wrong state for it", ""),
    999: ("the driver gives no reason", "a container that lost its devices has to be restarted"),
}  # fmt: skip
"""code -> (what it means, what to do)."""


class Absent(Exception):
    """The driver answered, but with something that is no value; the text says what."""


def words(code: int) -> str:
    """Return what a return code means and what to do, with the code; a code that is not known is named."""
    meaning, cure = _WORDS.get(code, ("an error that is not known", ""))
    return f"{meaning} (NVML {code})" + (f"; {cure}" if cure else "")


def code_of(error: BaseException | None) -> int | None:
    """Return the NVML code of an exception, None for any other exception."""
    value = getattr(error, "value", None)
    known = any(base.__name__ == "NVMLError" for base in type(error).__mro__)
    return value if known and isinstance(value, int) else None


def explain(error: Exception) -> str:
    """Return why there is no value, in words."""
    if isinstance(error, Absent | LookupError):
        return str(error.args[0]) if error.args else str(error)
    code = code_of(error)
    if code is not None:
        return words(code)
    if isinstance(error, AttributeError):
        return "this version of pynvml can't ask for it"
    if isinstance(error, ImportError):
        return "pynvml is missing; pip install nvidia-ml-py"
    return f"pynvml failed: {type(error).__name__}: {error}"
