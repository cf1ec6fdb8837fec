"""What a rank leaves behind that ran out of memory: read by the thread that met it, completed by the agent's thread.

The thread that trained is at its end when it is asked; the tensors in its traceback are looked at only by itself, and
only for their dtypes and shapes. Nothing is allocated on a device.
"""

from __future__ import annotations

import errno
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ranktop.agent.runner import one_line
from ranktop.probes.reading import AllocatorReading
from ranktop.probes.stack import Place, calls_of_traceback
from ranktop.wire.schema import Box, Call, Sample

if TYPE_CHECKING:
    from ranktop.agent.watch import Watch

_CHAIN: Final = 16
"""Exceptions looked at behind the last one."""
_TEXT: Final = 20_000
"""Characters of an error's text that are read."""
_INPUTS: Final = 16
_DEPTH: Final = 3
_NEAR: Final = 0.5
"""Part of a limit from which on an allocation of unknown size counts as having met it."""

_UNITS: Final = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50}
_SIZE: Final = r"(\d+(?:\.\d*)?) ?(bytes|[KMGTP]iB)"

_TEXTS: Final = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|std::bad_alloc|Cannot allocate memory"
    r"|\b(?:CUDA|HIP|XPU|MPS)(?: driver)?(?: error:| backend)? out of memory|cudaErrorMemoryAllocation"
    r"|hipErrorOutOfMemory|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|failure(?: \d+)? 'out of memory'",
)
"""Out of memory in the words of torch's CPU allocator, the C++ library, CUDA, its libraries and NCCL."""

# The wording of torch's CUDACachingAllocator and cudaMallocAsync from 1.x on, and of numpy.
_ASKED: Final = (
    re.compile(rf"[Tt]ried to allocate {_SIZE}"),
    re.compile(rf"^Requested\s*: {_SIZE}", re.MULTILINE),
    re.compile(rf"^Unable to allocate {_SIZE} for an array"),
)
_FREE: Final = (
    re.compile(rf"of which {_SIZE} is free"),
    re.compile(rf"^Free \(according to CUDA\)\s*: {_SIZE}", re.MULTILINE),
    re.compile(rf"[;(] ?{_SIZE} free[;)]"),
)
_LIMIT: Final = (
    re.compile(rf"total capac(?:i)?ty of {_SIZE}"),
    re.compile(rf"^Device limit\s*: {_SIZE}", re.MULTILINE),
    re.compile(rf"[;(] ?{_SIZE} total capacity"),
)
_ALLOWED: Final = (
    re.compile(rf"\b{_SIZE} allowed;"),
    re.compile(rf"memory fraction\)\s*: {_SIZE}"),
)
"""What a process may use at most of a device (``torch.cuda.set_per_process_memory_fraction``)."""

_MODULE: Final = "torch/nn/modules/module.py"
_CALLS: Final = ("_wrapped_call_impl", "_call_impl")


@dataclass(frozen=True, slots=True)
class Failure:
    """An out-of-memory as the thread saw it that met it; the fields are those of the Box."""

    error: str
    asked: int | None = None
    free: int | None = None
    limit: int | None = None
    step: int = 0
    phase: str = ""
    inputs: tuple[str, ...] = ()
    calls: tuple[Place, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)


def failure_of(error: BaseException, watch: Watch | None) -> Failure | None:
    """Return what is known of an out-of-memory that ends the script, None when ``error`` is none.

    For the thread that raised it. Raises nothing that the error or the script's objects do not.
    """
    met = out_of_memory(error)
    if met is None:
        return None
    text = _text(met)
    reasons: dict[str, str] = {}
    asked, free = _first(_ASKED, text), _first(_FREE, text)
    limit = _limit(text, reasons)
    if asked is None:
        reasons["asked"] = "the error does not tell the size"
    if limit is None:
        limit, left = _ulimit(asked, reasons)
        free = left if free is None else free
    recorder = watch.recorder if watch is not None else None
    inputs = _inputs(met, watch)
    if not inputs:
        reasons["inputs"] = _no_inputs(watch)
    return Failure(
        error=one_line(met),
        asked=asked,
        free=free,
        limit=limit,
        step=recorder.count if recorder is not None else 0,
        phase=recorder.phase if recorder is not None else "",
        inputs=inputs,
        calls=calls_of_traceback(met.__traceback__),
        reasons=reasons,
    )


def box_of(failure: Failure, sample: Sample, allocator: AllocatorReading) -> Box:
    """Return the box of a rank, completed by what was read when it was at its end."""
    device, reasons = sample.device, dict(failure.reasons)
    free, limit = failure.free, failure.limit
    if limit is None:
        limit, free = device.total, device.free if free is None else free
    for name, value, source in (("free", free, "free"), ("limit", limit, "total")):
        if value is None:
            reasons.setdefault(name, device.reasons.get(source) or device.reasons.get("device") or "not told")
    return Box(
        rank=sample.rank,
        error=failure.error,
        step=failure.step,
        phase=failure.phase,
        asked=failure.asked,
        free=free,
        limit=limit,
        memory=sample.now,
        allocator=allocator,
        collectives=sample.collectives,
        inputs=failure.inputs,
        calls=tuple(Call(*place) for place in failure.calls),
        reasons={**sample.reasons, **reasons},
    )


# -- which error -------------------------------------------------------------------------------------------------------


def out_of_memory(error: BaseException) -> BaseException | None:
    """Return the out-of-memory among an exception, those in it, and those behind it; None without one.

    One that was caught, and after which the script ended by another error in the course of that, counts.
    """
    return next((each for each in _chain(error) if _is_one(each)), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    ahead, seen = [error], set[int]()
    while ahead and len(seen) < _CHAIN:
        each = ahead.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = getattr(each, "exceptions", None)  # an ExceptionGroup's
        ahead += [other for other in inner or () if isinstance(other, BaseException)][:_CHAIN] if inner else []
        behind = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        ahead += [behind] if behind is not None else []


def _is_one(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    torch = sys.modules.get("torch")
    own = getattr(torch, "OutOfMemoryError", None) or getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None)
    return (isinstance(own, type) and isinstance(error, own)) or _TEXTS.search(_text(error)) is not None


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_TEXT]
    except Exception:  # code of the user's
        return ""


# -- what it says ------------------------------------------------------------------------------------------------------


def _first(patterns: Iterable[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        found = pattern.search(text)
        if found is not None:
            return round(float(found[1]) * _UNITS[found[2].lower()])
    return None


def _limit(text: str, reasons: dict[str, str]) -> int | None:
    """Return the bytes that the device has, or that this process may have of it."""
    total, allowed = _first(_LIMIT, text), _first(_ALLOWED, text)
    if allowed is not None and (total is None or allowed < total):
        reasons["limit"] = "what torch.cuda.set_per_process_memory_fraction allows"
        return allowed
    return total


def _ulimit(asked: int | None, reasons: dict[str, str]) -> tuple[int | None, int | None]:
    """Return the limit of this process that was met and what is left within it; (None, None) when none was."""
    used = _sizes()
    for number, name, words in (
        (resource.RLIMIT_AS, "VmSize", "the process's own limit on its address space (ulimit -v)"),
        (resource.RLIMIT_DATA, "VmData", "the process's own limit on its data (ulimit -d)"),
    ):
        limit, _ = resource.getrlimit(number)
        if limit == resource.RLIM_INFINITY or name not in used:
            continue
        met = used[name] > _NEAR * limit if asked is None else used[name] + asked > limit
        if met:
            reasons["limit"] = words
            return limit, max(0, limit - used[name])
    return None, None


def _sizes() -> dict[str, int]:
    """Return the sizes in /proc/self/status (proc_pid_status(5)) in bytes by name."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file if line.startswith("Vm")]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[1].isdigit()}


# -- where it happened -------------------------------------------------------------------------------------------------


def _inputs(error: BaseException, watch: Watch | None) -> tuple[str, ...]:
    """Describe what the root module was called with, when the error came from within its forward."""
    root = _root(watch)
    trace: TracebackType | None = error.__traceback__
    while root is not None and trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name in _CALLS and code.co_filename.replace("\\", "/").endswith(_MODULE):
            names = trace.tb_frame.f_locals
            if names.get("self") is root:
                return _described(names.get("args", ()), names.get("kwargs", {}))
        trace = trace.tb_next
    return ()


def _root(watch: Watch | None) -> object | None:
    return watch.model.root if watch is not None and watch.model is not None else None


def _described(args: object, kwargs: object) -> tuple[str, ...]:
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        return tuple(_tensors(torch, args, "", 0))[:_INPUTS] + tuple(_tensors(torch, kwargs, "", 0))[:_INPUTS]


def _tensors(torch: Any, value: object, name: str, depth: int) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        tensor: Any = value
        dtype, shape = str(tensor.dtype).removeprefix("torch."), [int(size) for size in tensor.shape]
        yield f"{name}{dtype} {shape}"
        return
    if depth >= _DEPTH:
        return
    if isinstance(value, dict):
        for key, part in list(value.items())[:_INPUTS]:
            yield from _tensors(torch, part, f"{key[:40]}: " if isinstance(key, str) else name, depth + 1)
    elif isinstance(value, (tuple, list)):
        for part in value[:_INPUTS]:
            yield from _tensors(torch, part, name, depth + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value)[:_INPUTS]:
            yield from _tensors(torch, getattr(value, each.name, None), f"{each.name}: ", depth + 1)


def _no_inputs(watch: Watch | None) -> str:
    """Say why the inputs are not known, and what those of an earlier step were."""
    if watch is None or _root(watch) is None:
        return "no model has run under the agent"
    batch = watch.facts.plan.batch if watch.facts is not None else None
    sizes = [(batch.micro_batch, "samples"), (batch.sequence_length, "tokens")] if batch is not None else []
    seen = " x ".join(f"{size} {unit}" for size, unit in sizes if size)
    why = "it did not happen in the model's forward, and inputs are not held for longer"
    return f"{why}; of an earlier step: {seen}" if seen else why
