"""What lies on a rank's device: the budget of its plan, the runtime beside it, some luck, and its faults."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ranktop.agent.simulation.faults import Fault
from ranktop.agent.simulation.job import H100, Setup
from ranktop.budget.live import live_budget
from ranktop.budget.plan import Ddp, Layout, Plan
from ranktop.budget.terms import MOMENTS, STATES, Memory

GIB: Final = 2**30
MIB: Final = 2**20

CONTEXT: Final = 520 * MIB
"""What a context without tensors takes on an H100."""

ALIVE: Final = ("forward_end", "backward_start")
"""Moments at which the activations are there."""

LUCK: Final = 0.001
"""Standard deviation of the activations, as a share, from step to step and rank to rank."""

HELD_BACK: Final = GIB // 2
"""Device memory that the allocator never gets: rounding, other libraries."""

Table = Mapping[str, Mapping[str, int]]
"""moment -> category -> bytes."""

_budgets: dict[tuple[object, ...], Table] = {}
"""Few are different: ranks with as many rows of everything hold the same."""


def budgeted(setup: Setup, rank: int, *, first: bool) -> Table:
    """Return what the plan of a rank has it hold, in the categories as they are measured."""
    whole = setup.has("unsharded") is not None
    no_sync = setup.has("no_sync") is not None
    key = (setup.model, setup.strategy, setup.ranks, _chunks(setup, rank), first, whole, no_sync)
    found = _budgets.get(key)
    if found is None:
        plan = setup.plan(rank)
        found = _bytes(setup, plan, first)
        if whole and setup.strategy != "ddp":
            states = _bytes(setup, _whole(plan), first)
            found = {
                moment: {**table, **{name: states[moment][name] for name in STATES}} for moment, table in found.items()
            }
        _budgets[key] = found
    return found


def _chunks(setup: Setup, rank: int) -> tuple[int, ...]:
    """Return the rows that a rank has of parameters with each of the model's numbers of rows: what tells its shards."""
    if setup.strategy == "ddp":
        return ()
    model = setup.model
    sizes = (model.vocabulary, model.width, model.keys, model.inner)
    chunks = [-(-size // setup.ranks) for size in sizes]
    return tuple(min(max(size - rank * chunk, 0), chunk) for size, chunk in zip(sizes, chunks, strict=True))


def _bytes(setup: Setup, plan: Plan, first: bool) -> Table:
    budget = live_budget(setup.inventory, plan, "LlamaForCausalLM", first_step=first)
    names = (*STATES, "activations", "buffers")
    return {moment: {name: budget.at(moment)[name].bytes or 0 for name in names} for moment in MOMENTS}


def _whole(plan: Plan) -> Plan:
    layout = Layout(world_size=plan.layout.world_size, replicate=plan.layout.world_size)
    return replace(plan, strategy="ddp", fsdp=None, ddp=Ddp(), layout=layout)


@dataclass(frozen=True, slots=True)
class Held:
    """One step's memory of a rank, with what the allocator counts beside it."""

    moments: dict[str, Memory]
    reserved: int
    inactive_split: int
    retries: int


class Device:
    """The memory of one rank's device over the steps."""

    def __init__(self, setup: Setup, rank: int) -> None:
        self._setup, self._rank = setup, rank
        rng = random.Random(f"{setup.seed} memory {rank}")
        self._cache = int((1.2 + 0.6 * rng.random()) * GIB)
        self._runtime = int((2.35 + 0.05 * rng.random()) * GIB)
        self._faults = setup.of(rank)
        self.strays = tuple(other for other in setup.neighbours(rank) if other != rank) if self._has("strays") else ()

    def _has(self, name: str) -> Fault | None:
        return next((fault for fault in self._faults if fault.name == name), None)

    def full_at(self) -> int | None:
        """Return the step in which a leak has filled the device; None without a leak."""
        leak = self._has("leak")
        if leak is None:
            return None
        begin = max(2, leak.start)  # the job's first step lacks the optimizer's state
        peak = max(sum(self._tensors(moment, begin, 4 * LUCK).values()) for moment in MOMENTS)
        room = H100 - HELD_BACK - self._runtime - self._other(begin) - peak
        return begin + max(1, room // max(1, int(leak.by * H100)))

    def step(self, index: int) -> Held:
        """Return the moments of a finished step."""
        luck = random.Random(f"{self._setup.seed} {index} {self._rank}").gauss(0, LUCK)
        tensors = {moment: self._tensors(moment, index, luck) for moment in MOMENTS}
        most = max(sum(table.values()) for table in tensors.values())
        broken, retries = self._fragments(index)
        other = self._other(index)
        room = H100 - HELD_BACK - self._runtime - other - most
        cache = min(self._cache + broken, max(0, room))
        reserved = most + cache
        moments = {moment: self._memory(table, reserved, other) for moment, table in tensors.items()}
        return Held(moments, reserved, 96 * MIB + min(broken, cache) * 9 // 10, retries)

    def now(self, held: Held, phase: str, done: float) -> Memory:
        """Return what lies there within a phase of which a share is ``done``, the step's moments being ``held``."""
        rest, most = held.moments["step_start"], held.moments["forward_end"]
        low, high = rest.activations or 0, most.activations or 0
        share = {"forward": done, "backward": 1.0 - done}.get(phase, 0.0)
        activations = int(low + share * (high - low))
        cache = (rest.cache or 0) - (activations - low)
        return replace(rest, activations=activations, cache=cache)

    def before(self) -> Memory:
        """Return what lies there before the first step."""
        tensors = {"parameters": budgeted(self._setup, self._rank, first=True)["step_start"]["parameters"]}
        return self._memory(tensors, tensors["parameters"] + 64 * MIB, self._other(1))

    def _tensors(self, moment: str, index: int, luck: float) -> dict[str, int]:
        held = dict(budgeted(self._setup, self._rank, first=index == 1)[moment])
        if moment in ALIVE:
            share = 1.0 + luck
            for name in ("activations", "tokens"):
                fault = self._has(name)
                if fault is not None and fault.at(index):
                    share *= 1 + fault.by
            held["activations"] = int(held["activations"] * share)
        leak, copy = self._has("leak"), self._has("copy")
        if leak is not None and leak.at(index):
            held["activations"] += (index - leak.start) * int(leak.by * H100)
        if copy is not None and copy.at(index):
            held["activations"] += int(copy.by * self._setup.inventory.numel * 2)
        return held

    def _fragments(self, index: int) -> tuple[int, int]:
        fault = self._has("fragmentation")
        if fault is None or not fault.at(index):
            return 0, 0
        return int(fault.by * H100), (index - fault.start + 3) // 3

    def _other(self, index: int) -> int:
        fault = self._has("strays")
        if fault is None or not fault.at(index):
            return 0
        return int(len(self.strays) * fault.by * CONTEXT)

    def _memory(self, tensors: Mapping[str, int], reserved: int, other: int) -> Memory:
        parts = {name: tensors.get(name, 0) for name in (*STATES, "activations", "buffers")}
        cache = reserved - sum(parts.values())
        return Memory(
            **parts,
            cache=cache,
            runtime=self._runtime,
            other=other,
            free=H100 - reserved - self._runtime - other,
            total=H100,
        )
