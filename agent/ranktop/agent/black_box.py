"""What a rank leaves behind that ran out of memory: read by the thread that met it, completed by the agent's thread.

The thread that trained is at its end when it is asked; the tensors in its traceback are looked at only by itself, and
only for their dtypes and shapes. Nothing is allocated on a device. What an error or a tensor says of itself is asked of
the interpreter and of torch, not of the script's own classes: their code may print, raise, or never come back.
"""

from __future__ import annotations

import builtins
import errno
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from types import TracebackType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Final

from ranktop.agent.runner import first_line
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
_GROUPS: Final = 32
"""Process groups told of: a hub takes no box of more than 64 KiB."""
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

_GROUP: Final[type | None] = getattr(builtins, "BaseExceptionGroup", None)
"""From Python 3.11 on."""

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

    For the thread that raised it.
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
    try:
        inputs = _inputs(met, watch)
    except Exception as problem:
        inputs, reasons["inputs"] = (), f"not readable: {type(problem).__name__}"
    if not inputs:
        reasons.setdefault("inputs", _no_inputs(watch))
    return Failure(
        error=first_line(type(met).__name__, text),
        asked=asked,
        free=free,
        limit=limit,
        step=recorder.ended if recorder is not None else 0,
        phase=recorder.phase if recorder is not None else "",
        inputs=inputs,
        calls=calls_of_traceback(_trace(met)),
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
        collectives=replace(sample.collectives, groups=sample.collectives.groups[:_GROUPS]),
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
        if _GROUP is not None and issubclass(type(each), _GROUP):
            ahead += _own(_GROUP, "exceptions", each)[:_CHAIN]
        behind = _own(BaseException, "__cause__", each)
        if behind is None and not _own(BaseException, "__suppress_context__", each):
            behind = _own(BaseException, "__context__", each)
        ahead += [behind] if behind is not None else []


def _own(kind: type, name: str, error: BaseException) -> Any:
    """Return a field as the interpreter keeps it, whatever the error's class makes of its name."""
    return vars(kind)[name].__get__(error)


def _trace(error: BaseException) -> TracebackType | None:
    found: TracebackType | None = _own(BaseException, "__traceback__", error)
    return found


def _is_one(error: BaseException) -> bool:
    kind = type(error)
    if issubclass(kind, MemoryError):
        return True
    if issubclass(kind, OSError):
        return bool(_own(OSError, "errno", error) == errno.ENOMEM)
    if not issubclass(kind, RuntimeError):
        return False
    torch = sys.modules.get("torch")
    own = getattr(torch, "OutOfMemoryError", None) or getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None)
    return (isinstance(own, type) and issubclass(kind, own)) or _TEXTS.search(_text(error)) is not None


def _text(error: BaseException) -> str:
    """Return an error's text, by its class's own words only where these are torch's or numpy's."""
    words, args = type(error).__str__, _own(BaseException, "args", error)
    if issubclass(type(error), OSError) and [type(each) for each in args] == [int, str]:
        return f"[Errno {args[0]}] {args[1][:_TEXT]}"  # without the file's path, which str() adds
    plain = isinstance(words, WrapperDescriptorType) and all(type(each) in (str, int, type(None)) for each in args)
    if plain or str(getattr(words, "__module__", "")).partition(".")[0] in ("torch", "numpy"):
        try:
            return str(error)[:_TEXT]
        except Exception:  # out of memory again
            return ""
    return " ".join(each[:_TEXT] for each in args if type(each) is str)[:_TEXT]


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
    trace = _trace(error)
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
        return tuple(text for part in (args, kwargs) for text in islice(_tensors(torch, part, "", 0), _INPUTS))


def _tensors(torch: Any, value: Any, name: str, depth: int) -> Iterator[str]:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield f"{name}{_tensor(torch._C.TensorBase, value)}"
        return
    if depth >= _DEPTH:
        return
    if issubclass(kind, dict):
        for key, part in islice(list(dict.items(value)), _INPUTS):
            yield from _tensors(torch, part, f"{key[:40]}: " if type(key) is str else name, depth + 1)
    elif issubclass(kind, (tuple, list)):
        parts = tuple.__iter__(value) if issubclass(kind, tuple) else list.__iter__(value)
        for part in islice(parts, _INPUTS):
            yield from _tensors(torch, part, name, depth + 1)
    elif is_dataclass(kind):
        for each in fields(kind)[:_INPUTS]:
            try:
                part = object.__getattribute__(value, each.name)
            except AttributeError:  # deleted, or never set
                continue
            yield from _tensors(torch, part, f"{each.name}: ", depth + 1)


def _tensor(base: Any, tensor: object) -> str:
    dtype = str(base.dtype.__get__(tensor)).removeprefix("torch.")
    try:
        return f"{dtype} {[int(size) for size in base.shape.__get__(tensor)]}"
    except Exception:  # nested, or a size that is only a symbol
        return f"{dtype}, shape not known"


def _no_inputs(watch: Watch | None) -> str:
    """Say why the inputs are not known, and what those of an earlier step were."""
    if watch is None or _root(watch) is None:
        return "no model has run under the agent"
    batch = watch.facts.plan.batch if watch.facts is not None else None
    sizes = [(batch.micro_batch, "samples"), (batch.sequence_length, "tokens")] if batch is not None else []
    seen = " x ".join(f"{size} {unit}" for size, unit in sizes if size)
    why = "it did not happen in the model's forward, and inputs are not held for longer"
    return f"{why}; of an earlier step: {seen}" if seen else why
