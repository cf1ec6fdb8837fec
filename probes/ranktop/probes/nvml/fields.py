"""Field values: several facts in one call, each with a return code of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ranktop.probes.nvml.codes import Absent, explain
from ranktop.probes.nvml.getter import Getter, Subject, Values
from ranktop.probes.nvml.limits import checked, degrees

_MEMORY_TEMP: Final = 82
_RECOVERY_ACTION: Final = 230
_LINK_COUNT: Final = 91
"""``NVML_FI_DEV_...``, by number for a pynvml that does not know them yet."""
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of ``nvmlValue_t`` by ``nvmlValueType_t``."""
_ACTIONS: Final = (
    "none",
    "reset",
    "reboot",
    "drain P2P",
    "drain and reset",
    "recover the IMEX domain",
    "bus reset",
    "reboot the system",
)
"""By ``nvmlDeviceGpuRecoveryAction_t``."""


def field_values(subject: Subject, wanted: Sequence[int | tuple[int, int]]) -> list[int | Exception]:
    """Ask the whole GPU for fields, each ``id`` or ``(id, scope)``; what could not be had is the exception of it.

    Raises what the call as a whole fails with.
    """
    nvml = subject.nvml
    return [_value(subject, entry) for entry in nvml.nvmlDeviceGetFieldValues(subject.gpu(), list(wanted))]


def _value(subject: Subject, entry: Any) -> int | Exception:
    if entry.nvmlReturn:
        return subject.nvml.error(int(entry.nvmlReturn))
    kind = int(entry.valueType)
    if not 0 <= kind < len(_MEMBERS):
        return Absent(f"the driver says a value of type {kind}")
    return int(getattr(entry.value, _MEMBERS[kind]))


def _action(value: int) -> str:
    return _ACTIONS[value] if 0 <= value < len(_ACTIONS) else f"action {value}"


def _at_once(subject: Subject) -> Values:
    heat, action, links = field_values(subject, (_MEMORY_TEMP, _RECOVERY_ACTION, _LINK_COUNT))
    subject.link_count = links if isinstance(links, int) and links <= 64 else None
    return {"memory_temperature": _or_absent(degrees, heat), "recovery": _or_absent(_action, action)}


def _or_absent(convert: Callable[[int], Any], value: int | Exception) -> Any:
    return Absent(explain(value)) if isinstance(value, Exception) else checked(convert, value)


FIELDS_AT_ONCE: Final = Getter("nvmlDeviceGetFieldValues", ("memory_temperature", "recovery"), _at_once)
