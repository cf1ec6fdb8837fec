"""A job whose ranks hold what their budgets expect, with some noise and with what a test puts on top, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from fake_job import ADAMW, GIB, H100, MIB, FakeClock, llama_8b, small_gpt
from hand_made import advised

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.live import live_budget
from ranktop.budget.plan import Batch, Ddp, Forward, Fsdp, Layout, Plan, Precision
from ranktop.budget.terms import MOMENTS, Memory
from ranktop.probes.reading import AllocatorReading, Collectives, DeviceIdentity, GroupPosition, StepTimes
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.keeper import Keeper
from ranktop.tui.session.findings.rules import RULES
from ranktop.tui.session.findings.scene import scene
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session, Snapshot
from ranktop.wire.schema import Body, Card, Device, Header, Job, Sample, Table

MEMORY_RULES = (
    "memory", "growth", "fragmentation", "unsharded", "no_sync", "checkpointing", "offload", "forecast", "oom",
)  # fmt: skip
ALIVE = ("forward_end", "backward_start")
HOST_TOTAL = 24 * GIB
TENSORS = ("parameters", "gradients", "optimizer", "activations", "buffers")

Held = dict[str, int]
"""Category -> bytes."""

Change = Callable[[int, int, str, Held], None]
"""(rank, step, moment, what is held) -> changes it."""

BATCH = Batch(micro_batch=1, sequence_length=4096, accumulation=1)


def fsdp_plan(ranks: int, **more: Any) -> Plan:
    """FSDP2 of a llama-8b over all ranks."""
    plan = Plan(
        strategy="fsdp2", layout=Layout(world_size=ranks, shard=ranks), fsdp=Fsdp(version=2), optimizer=ADAMW,
        precision=Precision(parameters="float32", compute="bfloat16", reduce="float32"), batch=BATCH,
        checkpointing="none", gradients_at=MOMENTS, loss="hf",
        forward=Forward(heads=32, output_bytes=4096 * 128256 * 2 + 4, loss_inside=True),
    )  # fmt: skip
    return replace(plan, **more)


def ddp_plan(ranks: int, **more: Any) -> Plan:
    """DDP of a small model over all ranks."""
    plan = Plan(
        strategy="ddp", layout=Layout(world_size=ranks, replicate=ranks), ddp=Ddp(), optimizer=ADAMW,
        batch=replace(BATCH, micro_batch=8, sequence_length=1024), gradients_at=MOMENTS,
    )  # fmt: skip
    return replace(plan, **more)


@lru_cache(maxsize=4)
def gpt(copies: int = 1) -> Inventory:
    """A GPT of 1.2 GiB (times ``copies``) in parameters whose shapes no budget knows."""
    kinds = [Kind((4096, 4096), "float32", unit=1 + at % 4) for at in range(18 * copies)]
    return Inventory.of([*kinds, Kind((2048, 1000), "float32"), Kind((1000,), "float32")])


@lru_cache(maxsize=2)
def llama() -> Inventory:
    return llama_8b()


@lru_cache(maxsize=2)
def small() -> Inventory:
    return small_gpt()


_tables: dict[tuple[int, int, bool], tuple[Inventory, Plan, dict[str, Held]]] = {}
"""By identity, so that the objects are kept."""


def expected(inventory: Inventory, plan: Plan, first: bool = False) -> dict[str, Held]:
    """Return moment -> category -> bytes by the budget; 0 where it does not know."""
    key = (id(inventory), id(plan), first)
    known = _tables.get(key)
    if known is None:
        budget = live_budget(inventory, plan, "LlamaForCausalLM", first_step=first)
        table = {
            moment: {name: amount.bytes or 0 for name, amount in budget.at(moment).items() if name in TENSORS}
            for moment in MOMENTS
        }
        known = _tables[key] = (inventory, plan, table)
    return known[2]


@dataclass
class Lab:
    """One job. ``run`` lets it train; ``found`` asks a rule."""

    ranks: int = 8
    plan: Plan | None = None
    inventory: Inventory | None = None
    activations: int | None = None
    """At the end of forward; None: as the budget expects."""
    host: bool = False
    seed: int = 0
    noise: float = 0.002
    """Standard deviation of the activations as a share."""
    changes: list[Change] = field(default_factory=list)
    tokens: Callable[[int, int], int | None] = lambda rank, step: 4096
    place: Callable[[int, Plan], Plan] | None = None
    """(rank, plan) -> the rank's own plan; by default it gets its place among the shards."""
    other: int = 0
    runtime: int = int(2.4 * GIB)
    first_step: int = 1
    retries: Callable[[int, int], int] = lambda rank, step: 0
    inactive_split: Callable[[int, int], int] = lambda rank, step: 96 * MIB
    allocator: AllocatorReading | None = None
    collectives: Callable[[int, int], Collectives] = lambda rank, step: Collectives(
        (GroupPosition("0", "default", 8, 100 * step, 100 * step),)
    )
    card_changes: dict[str, Any] = field(default_factory=dict)
    seconds: float = 1.0

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.session = Session(self.clock)
        self.session.findings = Keeper(rules={name: RULES[name] for name in MEMORY_RULES})
        self.job = Job(id=f"lab{self.seed}", name="lab", world_size=self.ranks, launcher="torchrun")
        self.rng = random.Random(self.seed)
        self.plan = self.plan or fsdp_plan(self.ranks)
        self.inventory = self.inventory or llama()
        self.step = self.first_step - 1
        self._number = 0
        self._own: dict[int, Plan] = {}
        spread = (0.02, 0.02) if self.host else (0.5, 0.05)
        self._cache = [int((1.2 + spread[0] * self.rng.random()) * GIB) >> (5 if self.host else 0) for _ in self.each()]
        self._runtime = [int(self.runtime * (1 + spread[1] * self.rng.random())) for _ in self.each()]
        self.send([Reset(self.job, "hub", False)], [self.card(rank) for rank in self.each()])
        if self.allocator is not None:
            self.send([], [Device(rank=rank, allocator=self.allocator) for rank in self.each()])

    def each(self) -> range:
        return range(self.ranks)

    def own(self, rank: int) -> Plan:
        """Return a rank's plan, always the same object."""
        if rank not in self._own:
            self._own[rank] = self._place(rank)
        return self._own[rank]

    def _place(self, rank: int) -> Plan:
        assert self.plan is not None
        if self.place is not None:
            return self.place(rank, self.plan)
        layout = self.plan.layout
        if layout.shard > 1:
            return replace(self.plan, layout=replace(layout, shard_rank=rank % layout.shard))
        return replace(self.plan, layout=replace(layout, replicate_rank=rank % layout.replicate))

    def card(self, rank: int) -> Card:
        device = DeviceIdentity(kind="host", name="24 GiB of RAM", total=HOST_TOTAL)
        if not self.host:
            device = DeviceIdentity(kind="cuda", uuid=f"GPU-{rank}", name="NVIDIA H100 80GB HBM3", total=H100)
        facts: dict[str, Any] = {
            "job": self.job, "rank": rank, "local_rank": rank, "node": f"node{rank // 8}", "pid": 100 + rank,
            "device": device, "model": "LlamaForCausalLM", "inventory": self.inventory, "plan": self.own(rank),
        }  # fmt: skip
        return Card(**{**facts, **self.card_changes})

    def send(self, first: Iterable[Reset], bodies: Iterable[Body]) -> None:
        """Feed messages of ranks."""
        items: list[Received | Reset] = list(first)
        for body in bodies:
            self._number += 1
            rank = getattr(body, "rank", -1)
            kind = type(body).__name__.lower()
            items.append(Received(Header(kind, rank, 100 + rank, 0, self._number), body, 0.0, self._number))
        self.session.feed(items)

    def run(self, steps: int) -> Lab:
        """Train so many steps, each read on every rank."""
        for _ in range(steps):
            self.step += 1
            self.clock.advance(self.seconds)
            self.send([], [self.sample(rank) for rank in self.each()])
        return self

    def held(self, rank: int, moment: str, luck: float) -> Held:
        """Return what a rank's allocator has given out at a moment of this step."""
        assert self.inventory is not None
        table = dict(expected(self.inventory, self.own(rank), first=self.step == 1)[moment])
        table.setdefault("buffers", 0)
        if self.activations is not None:
            table["activations"] = self.activations if moment in ALIVE else 4 * MIB
        tokens, usual = self.tokens(rank, self.step), 4096
        if moment in ALIVE:
            share = (tokens or usual) / usual
            table["activations"] = int(table["activations"] * share * (1 + luck))
        if self.host:
            table["activations"] += int(MIB * self.rng.random())
        for change in self.changes:
            change(rank, self.step, moment, table)
        return table

    def sample(self, rank: int) -> Sample:
        luck = self.rng.gauss(0, self.noise)
        tensors = {moment: self.held(rank, moment, luck) for moment in MOMENTS}
        most = max(sum(table[name] for name in TENSORS) for table in tensors.values())
        cache = self._cache[rank] + int(200 * MIB * self.rng.random()) * (not self.host)
        moments = {moment: self.memory(rank, table, most, cache) for moment, table in tensors.items()}
        tokens = self.tokens(rank, self.step)
        times = StepTimes(index=self.step, seconds=self.seconds, tokens=tokens)
        return Sample(
            rank=rank, now=moments["step_end"], step=self.step, step_age=0.1, steps=(times,), interval=self.seconds,
            table=Table(step=self.step, first=self.step == 1, moments=moments, age=0.1),
            retries=self.retries(rank, self.step), inactive_split=self.inactive_split(rank, self.step),
            collectives=self.collectives(rank, self.step),
        )  # fmt: skip

    def memory(self, rank: int, table: Held, most: int, cache: int) -> Memory:
        """Return the whole device, the allocator having reserved ``most`` and ``cache`` bytes."""
        total = HOST_TOTAL if self.host else H100
        own = {name: table[name] for name in TENSORS}
        given = sum(own.values())
        runtime = self._runtime[rank] + table.get("runtime", 0)
        extra = table.get("cache", 0)
        parts = {**own, "cache": most - given + cache + extra, "runtime": runtime, "other": self.other}
        free = total - sum(parts.values())
        return Memory(**parts, free=free, total=total)

    def snapshot(self) -> Snapshot:
        """Return the job as it is now; no rule may have failed."""
        found = self.session.snapshot()
        assert not self.session.failure, self.session.failure
        return found

    def found(self, rule: str = "") -> list[Finding]:
        """Return what one rule says now, or all of the memory rules."""
        here = scene(self.snapshot())
        told = [one for name in ([rule] if rule else MEMORY_RULES) for one in RULES[name](here)]
        assert all(advised(one) for one in told)
        return told

    def the(self, rule: str) -> Finding:
        """Return the only finding of a rule, and of all rules about memory."""
        (one,) = self.found()
        assert one.rule == rule
        return one


def add(rank: int, category: str, size: int, moments: tuple[str, ...] = MOMENTS, since: int = 1) -> Change:
    """Return a change that puts bytes on a rank (-1: on every one) from a step on."""

    def change(who: int, step: int, moment: str, held: Held) -> None:
        if rank in (who, -1) and step >= since and moment in moments:
            held[category] = held.get(category, 0) + size

    return change
