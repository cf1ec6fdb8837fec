"""What an out-of-memory says by its text, its traceback and the limits that were met."""

from __future__ import annotations

import builtins
import errno
import gc
import json
import os
import resource
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ranktop.agent.black_box import Failure, box_of, failure_of, out_of_memory
from ranktop.agent.watch import Watch
from ranktop.budget.terms import Memory
from ranktop.probes.reading import AllocatorReading, DeviceReading
from ranktop.wire.codec import encode_body
from ranktop.wire.schema import Sample

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40

# As torch prints them: 2.4 to 2.6; 2.7 to 2.9 (private pools); 2.10 and later (PYTORCH_ALLOC_CONF); a process under a
# memory fraction; HIP; XPU; cudaMallocAsync; before 2.1.
TEXTS: list[tuple[str, int | None, int | None, int | None]] = [
    (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.06 GiB is "
        "free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the allocated memory 75.20 "
        "GiB is allocated by PyTorch, and 1.95 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
        2 * GIB, round(1.06 * GIB), round(79.15 * GIB),
    ),
    (
        "CUDA out of memory. Tried to allocate 344.00 MiB. GPU 3 has a total capacity of 139.81 GiB of which 2.00 MiB "
        "is free. Process 3131906 has 139.80 GiB memory in use. Of the allocated memory 137.97 GiB is allocated by "
        "PyTorch, with 24.00 MiB allocated in private pools (e.g., CUDA Graphs), and 704.56 MiB is reserved by PyTorch "
        "but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        344 * MIB, 2 * MIB, round(139.81 * GIB),
    ),
    (
        "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 14.57 GiB of which 0 bytes is "
        "free. Process 2493055 has 12.02 GiB memory in use. 7.00 GiB allowed; Of the allocated memory 734.07 MiB is "
        "allocated by PyTorch, and 33.93 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        512, 0, 7 * GIB,
    ),
    (
        "HIP out of memory. Tried to allocate 76.00 MiB. GPU 1 has a total capacity of 287.98 GiB of which 0 bytes is "
        "free. Of the allocated memory 200.12 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
        "unallocated.",
        76 * MIB, 0, round(287.98 * GIB),
    ),
    (
        "XPU out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 15.91 GiB. Of the allocated "
        "memory 15.00 GiB is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated. Please use "
        "`empty_cache` to release all unoccupied cached memory.",
        round(1.5 * GIB), None, round(15.91 * GIB),
    ),
    (
        "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 9.43 GiB\n"
        "Requested               : 640.00 MiB\nDevice limit            : 11.59 GiB\n"
        "Free (according to CUDA): 7.12 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB",
        640 * MIB, round(7.12 * MIB), round(11.59 * GIB),
    ),
    (
        "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of which 0 bytes is "
        "free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
        "fragmentation.",
        round(1.7 * GIB), 0, 6 * GIB,
    ),
    (
        "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; "
        "9.28 GiB free; 4.68 MiB cached)",
        round(12.5 * MIB), round(9.28 * GIB), round(10.92 * GIB),
    ),
]  # fmt: skip


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def raiser(error: BaseException) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


def failure(error: BaseException, watch: Watch | None = None) -> Failure:
    found = failure_of(error, watch)
    assert found is not None
    return found


@pytest.mark.parametrize(("text", "asked", "free", "limit"), TEXTS)
def test_the_words_of_every_torch_are_read(text: str, asked: int | None, free: int | None, limit: int | None) -> None:
    found = failure(caught(raiser(torch.OutOfMemoryError(text))))
    assert (found.asked, found.free, found.limit) == (asked, free, limit)
    assert found.error == "OutOfMemoryError: " + text.splitlines()[0][: 300 - len("OutOfMemoryError: ")]


def test_a_fraction_that_a_script_set_is_told_as_the_limit() -> None:
    found = failure(torch.OutOfMemoryError(TEXTS[2][0]))
    assert found.reasons["limit"] == "what torch.cuda.set_per_process_memory_fraction allows"
    assert "limit" not in failure(torch.OutOfMemoryError(TEXTS[0][0])).reasons


def test_the_allocators_of_this_machine_are_understood() -> None:
    by_torch = failure(caught(lambda: torch.empty(10**15)))
    assert by_torch.asked == 4 * 10**15
    assert by_torch.calls[-1].file == "test_black_box.py"
    by_numpy = failure(caught(lambda: np.ones(10**15)))
    assert by_numpy.asked == pytest.approx(8 * 10**15, rel=0.01)
    by_python = failure(caught(lambda: bytearray(2**62)))
    assert (by_python.asked, by_python.reasons["asked"]) == (None, "the error does not tell the size")
    assert by_python.error == "MemoryError"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("NCCL error in: NCCLUtils.hpp:268, unhandled cuda error. Cuda failure 2 'out of memory'"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.86 GB, other allocations: 3.73 GB)."),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_other_ways_to_run_out_of_memory(error: BaseException) -> None:
    assert out_of_memory(error) is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("expected scalar type Float but found Half"),
        RuntimeError("can't start new thread"),
        ValueError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        OSError(errno.ENOSPC, "No space left on device"),
        KeyboardInterrupt(),
        SystemExit(1),
    ],
)
def test_other_errors_leave_no_box(error: BaseException) -> None:
    assert failure_of(error, None) is None


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.empty(10**15)


def test_an_out_of_memory_of_a_data_loaders_worker_is_told_by_what_it_was() -> None:
    found = failure(caught(lambda: next(iter(DataLoader(Samples(), num_workers=1)))))
    start, _, rest = found.error.partition(": RuntimeError: ")
    assert start == "RuntimeError: Caught RuntimeError in DataLoader worker process 0"
    assert "DefaultCPUAllocator: " in rest
    assert found.asked == 4 * 10**15


def test_an_out_of_memory_behind_or_in_the_last_error_counts() -> None:
    met = torch.OutOfMemoryError(TEXTS[0][0])

    def caused() -> None:
        try:
            raise met
        except RuntimeError as error:
            raise ValueError("step failed") from error

    def while_handled() -> None:
        try:
            raise met
        except RuntimeError:
            sys.exit(3)

    def put_aside() -> None:
        try:
            raise met
        except RuntimeError:
            raise ValueError("something else") from None

    assert out_of_memory(caught(caused)) is met
    assert out_of_memory(caught(while_handled)) is met
    assert out_of_memory(caught(put_aside)) is None
    group = getattr(builtins, "BaseExceptionGroup", None)
    assert group is None or out_of_memory(group("several", [ValueError(), met])) is met
    circle = ValueError()
    circle.__context__, circle.__cause__ = RuntimeError(), circle
    assert out_of_memory(circle) is None


@dataclass
class Pair:
    tokens: torch.Tensor
    name: str


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.error: BaseException | None = None

    def forward(self, x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return self.inner(x)  # type: ignore[no-any-return]


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch()
    made.install()
    yield made
    made.remove()


def train(net: Net, steps: int, **named: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.randn(8, 4), **named).sum().backward()
        optimizer.step()


def test_inputs_of_the_root_are_told_by_dtype_and_shape_alone(watch: Watch) -> None:
    net = Net()
    train(net, 3)
    net.error = MemoryError()
    batch = {"ids": torch.ones(2, 7, dtype=torch.int64), "scale": 3.0}
    pair = Pair(torch.ones(5, dtype=torch.bfloat16), "secret")
    error = caught(lambda: net(torch.randn(8, 4), batch, [pair], mask=torch.ones(1, dtype=torch.bool)))
    found = failure(error, watch)
    assert found.inputs == ("float32 [8, 4]", "ids: int64 [2, 7]", "tokens: bfloat16 [5]", "mask: bool [1]")
    assert (found.step, found.phase) == (3, "forward")
    assert [call.function for call in found.calls][-1] == "forward"
    assert "inputs" not in found.reasons


def test_a_step_that_has_ended_counts_before_the_next_begins(watch: Watch) -> None:
    net = Net()
    train(net, 40)
    found = failure(MemoryError(), watch)
    assert (found.step, found.phase) == (40, "data")


def test_inputs_of_another_module_are_not_taken_for_the_roots(watch: Watch) -> None:
    net, loss = Net(), Net()
    train(net, 3)
    loss.error = MemoryError()
    found = failure(caught(lambda: loss(net(torch.randn(8, 4)))), watch)
    assert (found.inputs, found.phase) == ((), "backward")
    assert found.reasons["inputs"].endswith("of an earlier step: 8 samples")


def test_a_failure_holds_no_tensor(watch: Watch) -> None:
    net = Net()
    train(net, 1)
    net.error = MemoryError()

    def step() -> tuple[Failure, weakref.ref[torch.Tensor]]:
        held = torch.randn(3, 4)
        return failure(caught(lambda: net(held)), watch), weakref.ref(held)

    found, gone = step()
    net.error = None
    gc.collect()
    assert gone() is None
    assert found.inputs == ("float32 [3, 4]",)


def test_no_model_is_said_to_be_none() -> None:
    assert failure(MemoryError()).reasons["inputs"] == "no model has run under the agent"


LIMITED = """
import mmap, resource, sys, json
from ranktop.agent.black_box import failure_of
kind, room = getattr(resource, sys.argv[1]), int(sys.argv[2])
held = mmap.mmap(-1, 2 << 30, mmap.MAP_PRIVATE)  # untouched: a process that is large beside its room
sizes = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("Vm"))
now = int(sizes[sys.argv[3]].split()[0]) * 1024
resource.setrlimit(kind, (now + room, now + room))
try:
    exec(sys.argv[4])
except BaseException as error:
    met = failure_of(error, None)
    print(json.dumps([met.asked, met.free, met.limit, met.limit - now, met.reasons]))
"""


@pytest.mark.parametrize(
    ("name", "size", "words"), [("RLIMIT_AS", "VmSize", "ulimit -v"), ("RLIMIT_DATA", "VmData", "ulimit -d")]
)
@pytest.mark.parametrize("call", ["bytearray(200 << 20)", "import numpy; numpy.ones(200 << 17)"])
def test_a_limit_of_the_process_itself_is_named_when_it_was_met(name: str, size: str, words: str, call: str) -> None:
    room = 64 * MIB
    done = subprocess.run(
        [sys.executable, "-c", "import numpy\n" + LIMITED, name, str(room), size, call],
        capture_output=True, text=True, timeout=60, check=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # a thread of its pool that starts late maps 64 MiB for itself
    )  # fmt: skip
    asked, free, limit, above, reasons = json.loads(done.stdout)
    assert above == room
    assert 0 < free <= room < limit
    assert words in reasons["limit"]
    assert asked == (None if call.startswith("bytearray") else 200 * MIB)


def test_a_limit_that_was_far_away_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 60, 1 << 60))
    found = failure(caught(lambda: torch.empty(10**15)))
    assert (found.limit, "limit" in found.reasons) == (None, False)
    assert failure(MemoryError()).limit is None


def test_the_box_is_completed_by_what_was_read_then_and_can_be_sent() -> None:
    found = failure(caught(lambda: torch.empty(10**15)))
    device = DeviceReading(total=100, free=30)
    sample = Sample(rank=3, now=Memory(parameters=7, total=100), device=device, reasons={"other": "why"})
    box = box_of(found, sample, AllocatorReading(allocated=50, largest_free=4))
    assert (box.rank, box.asked, box.free, box.limit) == (3, 4 * 10**15, 30, 100)
    assert (box.memory.parameters, box.allocator.largest_free, box.reasons["other"]) == (7, 4, "why")
    assert len(encode_body(box)) < 8192
    blind = Sample(rank=3, device=DeviceReading(reasons={"free": "not told by this driver"}))
    box = box_of(found, blind, AllocatorReading())
    assert (box.free, box.limit, box.reasons["free"], box.reasons["limit"]) == (
        None, None, "not told by this driver", "not told",
    )  # fmt: skip
