"""What a question to NVML is, and of what it is asked: a device, or a MIG instance and the GPU that it is a part of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ranktop.probes.nvml.codes import (
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    OTHER_VERSION,
    PARENT_REFUSED,
    Absent,
    code_of,
    explain,
)
from ranktop.probes.nvml.library import Library
from ranktop.probes.reading import NvLink

Values = dict[str, Any]
"""Field of DeviceReading or DeviceDetail -> value, or Absent in its place."""

_KEEP_VERSION: Final = 10
"""How often in a row an older form of a request is tried first after it was the one that worked."""


@dataclass(slots=True)
class Subject:
    """A device that has been found, with what is kept between two questions of the same kind."""

    nvml: Library
    handle: Any
    """Of the device or the MIG instance."""
    whole: Any
    """Of the whole GPU: ``handle`` unless that is a MIG instance; None where it could not be had."""
    whole_problem: str = ""
    mig: bool = False
    uuid: str = ""
    pids: Collection[int] = ()
    """This process's ids."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    integrated: bool | None = None
    """Whether the device has no memory of its own, as far as CUDA tells."""
    ecc_off: bool = False
    """The driver has said so."""
    mps_rest: int = 0
    """Rounds until MPS's processes are looked through again."""
    had_memory: bool = False
    """It has told of memory of its own."""
    spare: int = 1 << 30
    """Calls that may be made up to this count of ``nvml``."""
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Request -> (its form that works, times that it is still tried first)."""
    link_count: int | None = None
    links: dict[int, NvLink] = field(default_factory=dict)
    """Asked one by one, of drivers that tell them no other way."""
    link_cursor: int = 0
    links_known: bool = False
    """Each has been asked for at least once."""
    mig_cursor: int = 0
    samples: list[Any] = field(default_factory=list)
    """GPM's, the older first."""

    @property
    def left(self) -> int:
        """Calls that may still be made in this round."""
        return self.spare - self.nvml.count

    def gpu(self) -> Any:
        """Return the handle of the whole GPU; raises Absent where it could not be had."""
        if self.whole is None:
            raise Absent(self.whole_problem or "the whole GPU can't be asked from here")
        return self.whole


@dataclass(frozen=True, slots=True)
class Getter:
    """One question to NVML."""

    name: str
    """The NVML function."""
    fields: tuple[str, ...]
    """Fields of DeviceReading and DeviceDetail that it fills."""
    ask: Callable[[Subject], Values]
    """Raises NVMLError, Absent, or whatever else goes wrong in pynvml."""
    calls: int = 1
    """At most."""
    of_whole: bool = True
    """Of a MIG instance it is asked of the GPU that the instance is a part of."""
    hint: str = ""
    """Added to the reason of a MIG instance that does not support it."""

    def problem(self, subject: Subject, error: Exception) -> str:
        """Return why there is no answer, in words."""
        if subject.mig and self.of_whole and code_of(error) == NO_PERMISSION:
            return PARENT_REFUSED
        text = explain(error)
        return f"{text}; {self.hint}" if self.hint and subject.mig else text


def number(
    name: str, field_name: str, convert: Callable[[int], Any], *arguments: str | int, ways: Sequence[str] = ()
) -> Getter:
    """Return the getter of one number of the whole GPU: ``convert`` makes the value of it, or raises Absent.

    ``arguments`` follow the handle; names among them are pynvml's constants. ``ways``: other functions for the same.
    """

    def ask(subject: Subject) -> Values:
        handle, nvml = subject.gpu(), subject.nvml

        def call(function: str) -> Callable[[], Any]:
            return lambda: getattr(nvml, function)(
                handle, *(getattr(nvml, word) if isinstance(word, str) else word for word in arguments)
            )

        if not ways:
            return {field_name: convert(int(call(name)()))}
        answer = first(subject, name, [call(name), *(call(way) for way in ways)])[1]
        return {field_name: convert(int(answer))}

    return Getter(name, (field_name,), ask)


def first(
    subject: Subject, key: str, ways: Sequence[Callable[[], Any]], over: tuple[int, ...] = OTHER_VERSION
) -> tuple[int, Any]:
    """Return (position, answer) of the first way that works, passing over the codes ``over`` and what pynvml lacks.

    The way that worked is tried first for some time, so that an old driver is not asked in vain each time.
    """
    start, times = subject.versions.get(key, (0, 0))
    order = [start, *(position for position in range(len(ways)) if position != start)]
    problems: list[Exception] = []
    for position in order:
        try:
            answer = ways[position]()
        except Exception as error:
            if not isinstance(error, AttributeError) and code_of(error) not in over:
                raise
            problems.append(error)
            continue
        again = times - 1 if position == start and times else _KEEP_VERSION
        if position and again > 0:
            subject.versions[key] = (position, again)
        else:
            subject.versions.pop(key, None)
        return position, answer
    telling = [error for error in problems if code_of(error) not in (None, FUNCTION_NOT_FOUND)]
    raise telling[0] if telling else problems[-1]
