"""A black box is made without running the script's own code, and in bounded time, whatever its classes are made of."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from ranktop.agent.black_box import Failure, box_of, failure_of
from ranktop.agent.hub_state import MAX_LEFT
from ranktop.agent.watch import Watch
from ranktop.probes import stack
from ranktop.probes.reading import AllocatorReading, Collectives, GroupPosition
from ranktop.wire.codec import encode_body
from ranktop.wire.schema import Sample

TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"


def failure(error: BaseException, watch: Watch | None = None) -> Failure:
    found = failure_of(error, watch)
    assert found is not None
    return found


def never(*_: Any) -> Any:
    raise SystemExit("the script's own code has run")


ODD: list[type[Exception]] = [
    type("Text", (RuntimeError,), {"__str__": never}),
    type("Class", (RuntimeError,), {"__class__": property(never)}),
    type("Group", (RuntimeError,), {"exceptions": property(never)}),
    type("Number", (OSError,), {"errno": property(never)}),
    type("Chain", (RuntimeError,), {name: property(never) for name in ("__cause__", "__context__", "__traceback__")}),
    type("Anything", (ValueError,), {"__getattribute__": never}),
    type("Arguments", (RuntimeError,), {"args": property(never)}),
]


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.__name__)
def test_nothing_that_a_script_put_into_its_errors_is_run(kind: type[Exception]) -> None:
    assert failure_of(kind("no"), None) is None
    assert failure_of(kind(type("Argument", (), {"__str__": never})()), None) is None
    error = kind(TEXT)
    text = kind is not ODD[3] and issubclass(kind, RuntimeError)
    assert (failure_of(error, None) is not None) is text


def test_no_path_of_a_file_is_told() -> None:
    error = OSError(errno.ENOMEM, "Cannot allocate memory", "/home/ada/secret/data.bin")
    assert failure(error).error == f"OSError: [Errno {errno.ENOMEM}] Cannot allocate memory"


def test_an_endless_text_is_cut() -> None:
    found = failure(RuntimeError("CUDA out of memory. " + "x" * 50_000_000))
    assert len(found.error) == 300


def test_of_a_deep_traceback_only_the_end_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(depth: int) -> None:
        if depth:
            down(depth - 1)
        raise MemoryError

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        with pytest.raises(MemoryError) as met:
            down(5_000)
    finally:
        sys.setrecursionlimit(before)
    seen: list[int | None] = []
    place = stack._place

    def counted(frame: FrameType, line: int | None) -> stack.Place | None:
        seen.append(line)
        return place(frame, line)

    monkeypatch.setattr(stack, "_place", counted)
    assert [call.function for call in failure(met.value).calls] == ["down"] * stack.DEPTH
    assert len(seen) < 200


class Odd(torch.Tensor):
    shape = property(never)


class OddList(list[Any]):
    __iter__ = __getitem__ = never


@dataclass(slots=True)
class Slim:
    mask: torch.Tensor


class Net(nn.Linear):
    def forward(self, x: torch.Tensor, *rest: object) -> torch.Tensor:
        if rest:
            raise MemoryError
        return super().forward(x)


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch()
    made.install()
    yield made
    made.remove()


def test_inputs_of_the_scripts_own_classes_are_told_without_their_code(watch: Watch) -> None:
    net = Net(4, 4)
    net(torch.randn(8, 4)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is called a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    odd = torch.ones(8, 4).as_subclass(Odd)
    with pytest.raises(MemoryError) as met:
        net(odd, OddList([torch.ones(2)]), nested, Slim(torch.ones(1)))
    assert failure(met.value, watch).inputs == (
        "float32 [8, 4]", "float32 [2]", "float32, shape not known", "mask: float32 [1]",
    )  # fmt: skip


def test_the_largest_box_is_taken_by_the_hub() -> None:
    long = "\N{SNOWMAN}" * 120
    met = Failure(
        error="x" * 300,
        inputs=(f"{long[:40]}: float32 [1, 2, 3, 4]",) * 32,
        calls=(stack.Place(long, 10**6, long),) * stack.DEPTH,
        reasons=dict.fromkeys(("inputs", "asked", "free", "limit"), "why " * 50),
    )
    group = GroupPosition(name=long, description=long, size=8, enqueued=10**9, completed=10**9)
    sample = Sample(rank=0, collectives=Collectives(groups=(group,) * 1000))
    assert len(encode_body(box_of(met, sample, AllocatorReading()))) <= MAX_LEFT
