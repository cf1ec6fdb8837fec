"""The running job under every strategy, and under what the person at the keyboard changes of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

from ranktop.budget.desk import Desk
from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.naming import own_strategy
from ranktop.budget.plan import Fsdp, OptimizerPlan
from ranktop.budget.run import CHECKPOINTING, STRATEGIES, Projection, Run
from ranktop.budget.terms import Amount, Memory
from ranktop.budget.whatif import Job, as_run
from ranktop.budget.words import optimizer_name
from ranktop.tui.session.expected import allocated, difference, peak_moment
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.wire.schema import Card

if TYPE_CHECKING:
    from ranktop.budget.fit import Speeds

PRECISIONS: Final = ("fp32", "amp-bf16", "bf16-master", "bf16")
OPTIMIZERS: Final = ("adamw", "adamw8bit", "adafactor", "lion", "muon", "momentum", "sgd")
OFFLOAD: Final = ("none", "cpu")

_CHOICES: Final = {
    "precision": PRECISIONS,
    "checkpointing": CHECKPOINTING,
    "optimizer": OPTIMIZERS,
    "offload": OFFLOAD,
}

NOISE: Final = 0.03
"""Share by which the activations that were measured may move before everything is projected anew."""

HOST_NOISE: Final = 2**22
"""Bytes of it on a host, where Python and torch's records of collectives are in the same malloc."""

SAME: Final = 0.01
"""Share by which another rank must hold more to be shown instead."""

LARGEST: Final = {"world_size": 65536, "micro_batch": 4096, "sequence_length": 4 * 1024 * 1024}
"""Where doubling stops."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs from the running job; None = as it runs."""

    world_size: int | None = None
    micro_batch: int | None = None
    sequence_length: int | None = None
    precision: str | None = None
    checkpointing: str | None = None
    optimizer: str | None = None
    offload: str | None = None

    def __bool__(self) -> bool:
        return self != Changes()


@dataclass(frozen=True, slots=True)
class Measured:
    """The own row's other half: the rank that uses the most, at its peak."""

    rank: int
    memory: Memory
    moment: str
    total: int
    """Bytes of the process without the allocator's cache, which nothing expects."""
    expected: Mapping[str, Amount] = field(default_factory=dict)
    """category -> what the rank should hold at that moment."""

    @property
    def held(self) -> int:
        """Bytes of the process with the cache."""
        return self.total + (self.memory.cache or 0)

    @property
    def over(self) -> int | None:
        """Measured - expected, over the categories that have both sides; None without any."""
        deltas = [difference(getattr(self.memory, name), amount) for name, amount in self.expected.items()]
        known = [delta for delta in deltas if delta is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Basis:
    """The rank whose card and measurement everything is projected from."""

    card: Card
    activations: int | None
    """Bytes at the end of forward; None before a step was measured whole."""
    share: int
    """Ranks that share its device: all of its node where that is the host."""
    per_node: int | None
    """Ranks of the fullest node, where there are several."""

    def lives(self, snapshot: Snapshot) -> bool:
        """Whether the rank is the same process with the same model, plan and device."""
        card = self.now(snapshot)
        return card is self.card or (card is not None and _facts(card) == _facts(self.card))

    def now(self, snapshot: Snapshot) -> Card | None:
        """Return the rank's present card."""
        view = snapshot.rank(self.card.rank)
        return view.card if view is not None else None

    def near(self, other: Basis) -> bool:
        """Whether the other one's measurement is this one within its noise."""
        if (self.share, self.per_node) != (other.share, other.per_node):
            return False
        if self.activations is None or other.activations is None:
            return self.activations == other.activations
        host = self.card.plan is not None and self.card.plan.host
        noise = max(NOISE * self.activations, HOST_NOISE if host else 0)
        return abs(other.activations - self.activations) <= noise


def _facts(card: Card) -> tuple[object, ...]:
    return card.pid, card.restart, card.model, card.device, card.plan, card.inventory


@dataclass(slots=True)
class WhatIf:
    """Every strategy for one job, computed in slices so that the keys never wait."""

    run: Run | None = None
    """The job as it runs; None while that is not known."""
    reason: str = "waiting for the job's first card"
    own: str = ""
    measured: Measured | None = None
    changes: Changes = field(default_factory=Changes)
    rows: dict[str, Projection] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """strategy -> why there is no projection."""
    basis: Basis | None = None
    _due: set[str] = field(default_factory=lambda: set(STRATEGIES))
    """What is to be computed; a row of it that is there is of before."""
    _desk: Desk | None = None
    """What the rows share, while some are to be computed."""

    def look(self, snapshot: Snapshot) -> None:
        """Take what a snapshot says of the job; when it changed, the rows are computed anew, one after the other."""
        self.measured = largest(snapshot, self.measured)
        view = typical(snapshot)
        found = _basis(view, snapshot) if view is not None else None
        if view is None or found is None:
            return
        before = self.basis
        if before is not None and before.lives(snapshot) and before.near(found):
            self.basis = replace(before, card=before.now(snapshot) or before.card)
            return
        self.basis = found
        card, table = found.card, view.sample.table if view.sample is not None else None
        assert card.inventory is not None
        assert card.plan is not None
        job = Job(
            inventory=card.inventory,
            plan=card.plan,
            name=card.model,
            moments=table.moments if table is not None and found.activations is not None else {},
            total=card.device.total // found.share if card.device.total is not None else None,
        )
        own = own_strategy(card.plan)
        try:
            self.run, self.reason = on_nodes(as_run(job, runtime=_runtime(view)), snapshot), ""
        except (BadInput, NoRule, ValueError, ArithmeticError) as error:
            self.run, self.reason = None, str(error)
        if self.run is None or own != self.own:
            self.own = own
            self.forget()
        self._due = set(self.order())

    def forget(self) -> None:
        """Compute all rows again, and show none of before."""
        self.rows, self.failures = {}, {}
        self._due = set(self.order())
        self._desk = None

    @property
    def sharing(self) -> int:
        """Ranks that share a host's memory in what is asked, on the job's machines; 0 where the device is no host."""
        run, basis = self.run, self.basis
        if run is None or basis is None or not run.host:
            return 0
        return max(1, basis.share * (self.changes.world_size or run.world_size) // run.world_size)

    @property
    def capacity(self) -> int | None:
        """Bytes of a device that a rank may use in what is asked."""
        run, basis = self.run, self.basis
        if run is None or basis is None:
            return None
        total = basis.card.device.total
        return total // self.sharing if total is not None and self.sharing else run.device_memory

    @property
    def complete(self) -> bool:
        """Whether every row is there and of now."""
        return not self._due

    def asked(self) -> Run | None:
        """Return the run with the changes; raises BadInput for a change that cannot be."""
        if self.run is None:
            return None
        changed = self.changes
        run = self.run
        if changed.world_size is not None:
            run = replace(run, world_size=changed.world_size, data=None, device_memory=self.capacity)
        if changed.micro_batch is not None:
            run = replace(run, micro_batch=changed.micro_batch)
        if changed.sequence_length is not None:
            run = replace(run, sequence_length=changed.sequence_length)
        if changed.precision is not None:
            run = replace(run, precision=changed.precision)
        if changed.checkpointing is not None:
            run = replace(run, checkpointing=changed.checkpointing)
        if changed.optimizer is not None:
            run = replace(run, optimizer=_optimizer(changed.optimizer))
        if changed.offload is not None:
            run = replace(run, fsdp=replace(run.fsdp or Fsdp(), cpu_offload=changed.offload == "cpu"))
        return run

    def change(self, name: str, by: int) -> str:
        """Move one of the changes to its next value and return it in words; empty when it cannot be moved."""
        if self.run is None:
            return ""
        value = _next(name, self._present(name), by)
        changed: dict[str, Any] = {name: None if value == self._running(name) else value}
        self._ask(replace(self.changes, **changed))
        return str(value)

    def as_it_runs(self) -> None:
        """Drop all changes."""
        self._ask(Changes())

    def _ask(self, changes: Changes) -> None:
        if changes != self.changes:  # at the end of a scale a key changes nothing, and costs nothing
            self.changes = changes
            self.forget()

    def _present(self, name: str) -> int | str:
        chosen: int | str | None = getattr(self.changes, name)
        return self._running(name) if chosen is None else chosen

    def _running(self, name: str) -> int | str:
        run = self.run
        assert run is not None
        if name == "optimizer":
            return _optimizer_name(run.optimizer)
        if name == "offload":
            return "cpu" if run.fsdp is not None and run.fsdp.cpu_offload else "none"
        if name == "sequence_length":
            return run.sequence_length or run.model.positions or 1
        found: int | str = getattr(run, name)
        return found

    def more(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> bool:
        """Compute rows for so many seconds, the own one first; True while some are missing."""
        from ranktop.budget.project import project

        started = clock()
        for strategy in self.order():
            if strategy not in self._due:
                continue
            try:
                run = self.asked()
                if run is None:
                    return False
                self._desk = self._desk or Desk()
                self._take(strategy, project(run, strategy, self._desk))
            except (BadInput, NoRule) as reason:
                self._take(strategy, str(reason))
            except Exception as error:  # one strategy that cannot be computed must not take the others with it
                self._take(strategy, f"{type(error).__name__}: {error}")
            if clock() - started > seconds:
                return True
        self._desk = None
        return False

    def _take(self, strategy: str, found: Projection | str) -> None:
        self._due.discard(strategy)
        self.rows.pop(strategy, None)
        self.failures.pop(strategy, None)
        if isinstance(found, str):
            self.failures[strategy] = found
        else:
            self.rows[strategy] = found

    def order(self) -> tuple[str, ...]:
        """Return the strategies as they are listed: the job's own first."""
        return (self.own, *(name for name in STRATEGIES if name != self.own)) if self.own else STRATEGIES


def typical(snapshot: Snapshot) -> RankView | None:
    """Return the rank whose activations are the median, among those that have a card: no outlier is projected."""
    known = [view for view in snapshot.ranks if view.card is not None and view.card.inventory is not None]
    if not known:
        return None
    told = {view.rank: _activations(view) for view in known}
    sizes = [size for size in told.values() if size is not None]
    if not sizes:
        return known[0]
    middle = median_low(sizes)
    return next(view for view in known if told[view.rank] == middle)


def _basis(view: RankView, snapshot: Snapshot) -> Basis | None:
    card, table = view.card, view.sample.table if view.sample is not None else None
    if card is None or card.inventory is None or card.plan is None:
        return None
    ranks = sum(one.card is not None and one.card.node == card.node for one in snapshot.ranks)
    known = table is not None and not table.first
    return Basis(card, _activations(view) if known else None, ranks if card.plan.host else 1, _per_node(snapshot))


def _per_node(snapshot: Snapshot) -> int | None:
    ranks = Counter(view.card.node for view in snapshot.ranks if view.card is not None)
    return max(ranks.values()) if len(ranks) > 1 else None


def on_nodes(run: Run, snapshot: Snapshot) -> Run:
    """Return the run with as many GPUs per node as the job's nodes have, where there are several."""
    per_node = _per_node(snapshot)
    return run if per_node is None else replace(run, gpus_per_node=per_node)


def speeds_of(run: Run, snapshot: Snapshot) -> Speeds:
    """Return what the job's devices, by their name, send and compute in a run like this."""
    from ranktop.budget.fit import speeds

    names = (view.card.device.name for view in snapshot.ranks if view.card is not None)
    several = run.world_size > run.gpus_per_node
    return speeds(run.link, next(filter(None, names), ""), several_nodes=several, host=run.host)


def _activations(view: RankView) -> int | None:
    table = view.sample.table if view.sample is not None else None
    memory = table.moments.get("forward_end") if table is not None else None
    return None if memory is None else memory.activations


def largest(snapshot: Snapshot, before: Measured | None = None) -> Measured | None:
    """Return the rank whose process holds the most at its peak moment; the one ``before`` while none holds more."""
    found: dict[int, Measured] = {}
    for view in snapshot.ranks:
        table = view.sample.table if view.sample is not None else None
        moment = peak_moment(table)
        memory = table.moments.get(moment) if table is not None and moment is not None else None
        if memory is None or moment is None:
            continue
        expected = view.budget.at(moment) if view.budget is not None else {}
        total = (allocated(memory) or 0) + (memory.runtime or 0)
        found[view.rank] = Measured(view.rank, memory, moment, total, expected)
    most = max(found.values(), key=lambda one: one.total, default=None)
    kept = found.get(before.rank) if before is not None else None
    return kept if kept is not None and most is not None and kept.total >= (1 - SAME) * most.total else most


def _runtime(view: RankView) -> int | None:
    return view.sample.now.runtime if view.sample is not None else None


def _optimizer(name: str) -> OptimizerPlan:
    from ranktop.budget.optimizers.names import by_name

    return by_name(name)


def _optimizer_name(plan: OptimizerPlan) -> str:
    """Return the choice that a plan is, else its class in lower case."""
    same = (name for name in OPTIMIZERS if optimizer_name(_optimizer(name)) == optimizer_name(plan))
    return next(same, plan.name.lower() or "none")


def _next(name: str, present: int | str, by: int) -> int | str:
    if isinstance(present, int):
        return max(1, min(LARGEST[name], present * 2 if by > 0 else present // 2))
    choices = _CHOICES[name]
    at = choices.index(present) if present in choices else -1 if by > 0 else 0
    return choices[(at + by) % len(choices)]
