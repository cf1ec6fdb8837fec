"""Which strategy is marked as the best: the order that a practitioner would expect, on cases with a clear answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ranktop.tui.plan import plan


def best(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert plan([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["best"]


@pytest.mark.parametrize(
    ("strategies", "memory", "expected"),
    [
        ("single,ddp", "80GiB", "ddp"),  # idle GPUs cost more than an all-reduce
        ("zero1,zero1-offload", "80GiB", "zero1"),  # nothing goes to the host that needs not
        ("ddp,zero3", "80GiB", "ddp"),  # what is whole needs not be gathered
        ("fsdp-full,fsdp-grad-op", "80GiB", "fsdp-grad-op"),
        ("ddp,zero3", "14GiB", "zero3"),  # only one of them fits
        ("ddp,zero1", "1GiB", None),
    ],
)
def test_best(capsys: pytest.CaptureFixture[str], strategies: str, memory: str, expected: str | None) -> None:
    run = ("--model", "gpt2-xl", "--seq-len", "512", "--world-size", "8", "--device-memory", memory)
    assert best(capsys, *run, "--strategy", strategies) == expected


def test_a_pipeline_that_waits_is_not_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    run = [
        "--model",
        "llama-3-8b",
        "--seq-len",
        "4096",
        "--world-size",
        "8",
        "--gpu",
        "h200",
        "--strategy",
        "fsdp-full,pp-1f1b",
    ]
    assert best(capsys, *run) == "fsdp-full"
    assert best(capsys, *run, "--grad-accum", "1024") == "pp-1f1b"


def test_without_a_device_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert best(capsys, "--model", "gpt2") is None
