"""What reading a device costs: calls to the driver, the seconds of each, how old values get, and the training step."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict

import torch
from gpu_table import Check
from torch import nn

from ranktop.probes.device import open_device
from ranktop.probes.nvml.library import own_pynvml
from ranktop.probes.reading import DeviceProbe

MOST_CALLS = 12
"""A second and rank."""
WATCHED = 20.0
"""Seconds."""


class Calls:
    """Counts and times every call of ranktop's into libnvidia-ml, below pynvml's own functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.at: list[float] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def counted(self) -> Iterator[Calls]:
        """Count while inside."""
        module = own_pynvml()
        original = module._nvmlGetFunctionPointer

        def pointer(name: str) -> Callable[..., int]:
            function: Callable[..., int] = original(name)

            def call(*arguments: object) -> int:
                began = time.monotonic()
                try:
                    return function(*arguments)
                finally:
                    with self._lock:
                        self.at.append(began)
                        self.seconds[name].append(time.monotonic() - began)

            return call

        module._nvmlGetFunctionPointer = pointer
        try:
            yield self
        finally:
            module._nvmlGetFunctionPointer = original

    def most_in_a_second(self, since: float) -> int:
        """Return the largest number of calls that began within any one second after ``since``."""
        times = [moment for moment in self.at if moment >= since]
        return max((sum(start <= other < start + 1.0 for other in times) for start in times), default=0)


def watch(device: DeviceProbe, seconds: float) -> tuple[float, dict[str, float]]:
    """Read once a second as the agent does; return the highest age of a reading and of each value of the detail."""
    highest, ages = 0.0, defaultdict[str, float](float)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        highest = max(highest, device.read().age)
        detail = device.detail()
        for name, age in (detail.ages if detail is not None else {}).items():
            ages[name] = max(ages[name], age)
        time.sleep(1.0)
    return highest, dict(ages)


def driver_calls() -> list[Check]:
    """Read a device for some time and look at each call into the driver."""
    with Calls().counted() as calls:
        device = open_device(torch.device("cuda", 0))
        began = time.monotonic()
        watch(device, 5.0)  # The first turn of the slow getters is made at once.
        steady = time.monotonic()
        highest, ages = watch(device, WATCHED)
        detail = device.detail()
        device.close()
    rate = len([moment for moment in calls.at if moment >= steady]) / WATCHED
    most = calls.most_in_a_second(steady)
    costs = {name: statistics.median(spent) for name, spent in calls.seconds.items()}
    dearest = sorted(costs.items(), key=lambda pair: -pair[1])[:6]
    total = sum(sum(spent) for spent in calls.seconds.values())
    missing = [] if detail is None else [
        name for name, value in asdict(detail).items() if value is None and not detail.reasons.get(name)
    ]  # fmt: skip
    oldest = max(ages.items(), key=lambda pair: pair[1], default=("none", 0.0))
    return [
        Check("driver calls a second", rate <= MOST_CALLS, f"{rate:.2f} on average, {most} in the busiest second"),
        Check("first turn", True, f"{sum(began <= moment < steady for moment in calls.at)} calls in the first 5 s"),
        Check("cost of the calls", True, ", ".join(f"{name} {1e3 * cost:.2f} ms" for name, cost in dearest)),
        Check("driver's share of the time", True, f"{100 * total / (time.monotonic() - began):.2f} %"),
        Check("age of the fast values", highest < 3.0, f"at most {highest:.2f} s"),
        Check("age of the slow values", oldest[1] < 60.0, f"at most {oldest[1]:.1f} s ({oldest[0]})"),
        Check("slow values", detail is not None and not missing, str(missing or (detail and asdict(detail)))),
    ]


def make_step(device: torch.device, milliseconds: float) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """Return a model, its optimizer and a step of about this length, the device's work waited for."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(10)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    size = 1024 if device.type == "cuda" else 64
    data, filler = torch.randn(16, 64, device=device), torch.randn(size, size, device=device)

    def small() -> None:
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        for _ in range(50):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / 50

    for work in (small, lambda: filler @ filler):
        timed(work)
    base, unit = timed(small), timed(lambda: filler @ filler)
    fills = max(0, round((milliseconds / 1e3 - base) / unit))

    def step() -> None:
        small()
        for _ in range(fills):
            filler @ filler
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return model, optimizer, step


def overhead(
    device: torch.device, pairs: int = 8, block: int = 100, warm_up: float = 1.5, ms: float = 10.0, judged: bool = True
) -> list[Check]:
    """Alternate blocks of steps of ``ms`` milliseconds with the agent and without, and compare neighbours."""
    from ranktop.agent import attach, detach

    model, optimizer, step = make_step(device, ms)
    medians: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(RANKTOP_RUN_DIR=os.path.join(folder, "run"), RANKTOP_HUB_LINGER="1", RANKTOP_RECORD="off")
        for index in range(pairs):
            for attached in (True, False) if index % 2 == 0 else (False, True):
                if attached:
                    attach(model, optimizer)
                until = time.perf_counter() + warm_up
                while time.perf_counter() < until:
                    step()
                times = []
                for _ in range(block):
                    began = time.perf_counter()
                    step()
                    times.append(time.perf_counter() - began)
                medians[attached].append(statistics.fmean(sorted(times)[: int(0.98 * block)]))
                if attached:
                    detach()
    ratios = sorted(100 * (on / off - 1) for on, off in zip(medians[True], medians[False], strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios * 3)
    detail = (
        f"step {1e3 * statistics.median(medians[False]):.2f} ms, {middle:+.2f} % (quartiles {low:+.2f} .. {high:+.2f})"
    )
    # Only a slow-down that is told apart from the machine's own spread is a failure.
    return [Check(f"agent: slow-down of a {ms:g} ms step", low <= 0.5 if judged else None, detail)]
