"""The running job under every strategy, and under what the person at the keyboard changes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Any, Final

from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.naming import own_strategy
from ranktop.budget.plan import Fsdp, OptimizerPlan
from ranktop.budget.run import CHECKPOINTING, STRATEGIES, Projection, Run
from ranktop.budget.terms import Amount, Memory
from ranktop.budget.whatif import Job, as_run
from ranktop.tui.session.expected import allocated, difference, peak_moment
from ranktop.tui.session.rank import RankView
from ranktop.tui.session.state import Snapshot

PRECISIONS: Final = ("fp32", "amp-bf16", "bf16-master", "bf16")
OPTIMIZERS: Final = ("adamw", "adamw8bit", "adafactor", "lion", "muon", "momentum", "sgd")
OFFLOAD: Final = ("none", "cpu")

_CHOICES: Final = {
    "precision": PRECISIONS,
    "checkpointing": CHECKPOINTING,
    "optimizer": OPTIMIZERS,
    "offload": OFFLOAD,
}

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
    """Bytes of the process."""
    expected: Mapping[str, Amount] = field(default_factory=dict)
    """category -> what the rank should hold at that moment."""

    @property
    def over(self) -> int | None:
        """Measured - expected, over the categories that have both sides; None without any."""
        deltas = [difference(getattr(self.memory, name), amount) for name, amount in self.expected.items()]
        known = [delta for delta in deltas if delta is not None]
        return sum(known) if known else None


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
    _seen: tuple[object, ...] = ()

    def look(self, snapshot: Snapshot) -> None:
        """Take what a snapshot says of the job; the rows are computed anew when it changed."""
        view = typical(snapshot)
        self.measured = largest(snapshot)
        if view is None or view.card is None or view.card.inventory is None or view.card.plan is None:
            return
        card, table = view.card, view.sample.table if view.sample is not None else None
        seen = (card.rank, card.pid, card.revision, table is not None and not table.first)
        if seen == self._seen:
            return
        self._seen = seen
        assert card.inventory is not None
        assert card.plan is not None
        job = Job(
            inventory=card.inventory,
            plan=card.plan,
            name=card.model,
            moments=table.moments if table is not None and not table.first else {},
            total=card.device.total,
        )
        self.own = own_strategy(card.plan)
        try:
            self.run, self.reason = as_run(job, runtime=_runtime(view)), ""
        except (BadInput, NoRule, ValueError, ArithmeticError) as error:
            self.run, self.reason = None, str(error)
        self.forget()

    def forget(self) -> None:
        """Compute all rows again."""
        self.rows, self.failures = {}, {}

    def asked(self) -> Run | None:
        """Return the run with the changes; raises BadInput for a change that cannot be."""
        if self.run is None:
            return None
        changed = self.changes
        run = self.run
        if changed.world_size is not None:
            run = replace(run, world_size=changed.world_size, data=None)
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
        self.changes = replace(self.changes, **changed)
        self.forget()
        return str(value)

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
            if strategy in self.rows or strategy in self.failures:
                continue
            try:
                run = self.asked()
                if run is None:
                    return False
                self.rows[strategy] = project(run, strategy)
            except (BadInput, NoRule) as reason:
                self.failures[strategy] = str(reason)
            except Exception as error:  # one strategy that cannot be computed must not take the others with it
                self.failures[strategy] = f"{type(error).__name__}: {error}"
            if clock() - started > seconds:
                return True
        return False

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


def _activations(view: RankView) -> int | None:
    table = view.sample.table if view.sample is not None else None
    memory = table.moments.get("forward_end") if table is not None else None
    return None if memory is None else memory.activations


def largest(snapshot: Snapshot) -> Measured | None:
    """Return the rank whose process holds the most at its peak moment."""
    found: Measured | None = None
    for view in snapshot.ranks:
        table = view.sample.table if view.sample is not None else None
        moment = peak_moment(table)
        memory = table.moments.get(moment) if table is not None and moment is not None else None
        if memory is None or moment is None:
            continue
        total = (allocated(memory) or 0) + (memory.cache or 0) + (memory.runtime or 0)
        if found is None or total > found.total:
            expected = view.budget.at(moment) if view.budget is not None else {}
            found = Measured(view.rank, memory, moment, total, expected)
    return found


def _runtime(view: RankView) -> int | None:
    return view.sample.now.runtime if view.sample is not None else None


def _optimizer(name: str) -> OptimizerPlan:
    from ranktop.budget.optimizer_names import by_name

    return by_name(name)


def _optimizer_name(plan: OptimizerPlan) -> str:
    return plan.name.lower() or "none"


def _next(name: str, present: int | str, by: int) -> int | str:
    if isinstance(present, int):
        return max(1, min(LARGEST[name], present * 2 if by > 0 else present // 2))
    choices = _CHOICES[name]
    at = choices.index(present) if present in choices else -1 if by > 0 else 0
    return choices[(at + by) % len(choices)]
