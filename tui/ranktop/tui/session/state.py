"""The state of one job, built from what a source gives; no Textual, no I/O, the clock injected."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

import msgspec

from ranktop.budget.inventory import Inventory
from ranktop.tui.session.findings.death import culprit
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.keeper import Keeper
from ranktop.tui.session.findings.limits import DEFAULTS, Limits
from ranktop.tui.session.findings.missing import of_these_nodes
from ranktop.tui.session.footprints import KEPT, KEPT_OF_MANY, MANY
from ranktop.tui.session.nodes import NODE_LOST, Hosts, NodesState, NodeView
from ranktop.tui.session.processes import Owners, Places, places
from ranktop.tui.session.rank import MARKS_KEPT, RankState
from ranktop.tui.session.rank_view import GONE, Event, RankView
from ranktop.tui.session.rings import ring_for
from ranktop.tui.session.source import Received, Reset, Whole
from ranktop.tui.session.stall import patience
from ranktop.wire.nodes import Nodes
from ranktop.wire.schema import Box, Card, Device, End, History, Job, Mark, Sample, Stack

__all__ = ["Event", "RankState", "RankView", "Session", "Snapshot"]

LAST_WORD: Final = 10.0
"""Seconds after the last end in which a rank of the node that was never heard of may still speak: where the machine is
busy, one script ends before the agent of another has begun."""

LAGGING: Final = 1.5
"""Seconds from which on a stream lags, and for which the last samples tell of it."""

MOST_MISSING: Final = 65536
"""World size up to which ranks that were never seen are listed."""

_OVER: Final = frozenset({*GONE, NODE_LOST})
"""States of a rank that is not known to go on."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job at one time, for one frame."""

    now: float
    """Seconds on the session's clock."""
    job: Job | None
    state: str
    ranks: tuple[RankView, ...]
    """By rank; with ranks that were never seen, as ``missing``."""
    marks: tuple[Event, ...] = ()
    step: int = 0
    """The step that the furthest rank has finished."""
    step_seconds: float | None = None
    """Median of the last step times."""
    step_age: float | None = None
    """Seconds since any rank last finished a step."""
    nodes: tuple[NodeView, ...] = ()
    """What the hub that is asked sees of the job's nodes; empty for a job of one."""
    places: Places | None = None
    """Where the ranks and their processes are, kept from frame to frame."""
    findings: tuple[Finding, ...] = ()
    """What the rules say, the gravest first."""
    behind: float = 0.0
    """Seconds by which all of it is old because the stream lags (``Session.behind``)."""
    memory: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What the rules have worked out and need not again (``findings.scene.Scene.memory``)."""
    limits: Limits = DEFAULTS
    """From where on findings are told."""

    @property
    def owners(self) -> Owners:
        """(node, process id) -> rank."""
        return self.places.owners if self.places is not None else {}

    def rank(self, rank: int | None) -> RankView | None:
        """Return one rank, or None."""
        if rank is None:
            return None
        if 0 <= rank < len(self.ranks) and self.ranks[rank].rank == rank:
            return self.ranks[rank]
        return next((view for view in self.ranks if view.rank == rank), None)

    def culprit(self) -> RankView | None:
        """Return the rank whose end broke the job, None when all ended by themselves (``findings.death``)."""
        return culprit(self.ranks)

    @property
    def world_size(self) -> int:
        """Ranks of the job, by its own word or by what was seen."""
        return max(self.job.world_size if self.job else 0, len(self.ranks))


class Session:
    """Holds the latest of every rank of one job."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        budget_slice: float | None = None,
        findings_every: float = 0.0,
        keep_views: bool = False,
    ) -> None:
        """``findings_every``: seconds between two times that the rules are asked; 0: for every snapshot."""
        self.clock = clock
        self.findings = Keeper(findings_every)
        self.budget_slice = budget_slice
        """Most seconds of budget arithmetic in one feed, the rest follows in the next ones; None: no limit."""
        self.keep_views = keep_views
        """Ranks of which nothing is new are in the next snapshot with the same view, whose ages go on in place: for
        whoever is done with a snapshot before the next one is made."""
        self.job: Job | None = None
        self.hub = ""
        self.ranks: dict[int, RankState] = {}
        self.marks: deque[Event] = deque(maxlen=MARKS_KEPT)
        self.nodes = NodesState()
        self._hosts = Hosts()
        self._inventories: dict[Inventory, Inventory] = {}
        self._uncompared: dict[int, RankState] = {}
        self._places: Places | None = None
        self._listed: dict[int, int | None] = {}
        """Rank -> its process's id in the driver's list."""
        self.failure = ""
        """The last message that could not be used, in one line."""
        self.unheard = 0.0
        """Seconds for which the hub was not heard of because the way to it is lost; whoever owns the source says so."""
        self._arriving = False
        """Parts of the hub's snapshot are still to come: what is not there yet is not missing."""
        self._began = -math.inf
        """When the present snapshot of the hub began to arrive."""
        self._newest: tuple[float, float] | None = None
        """(when it was taken from the source, seconds since it reached the hub) of the last of the samples that did so
        since."""

    def feed(self, received: Iterable[Received | Reset | Whole]) -> None:
        """Take what a source gave, in its order."""
        now = self.clock()
        heard: dict[int, RankState] = {}
        for item in received:
            if isinstance(item, Reset):
                self._reset(item, now)
                heard.clear()
                continue
            if isinstance(item, Whole):
                self._arriving = False
                continue
            at = now - item.age
            if item.header.rank < 0:
                if isinstance(item.body, Mark):
                    self.marks.append(Event(at, item.body.what, item.body.detail))
                elif isinstance(item.body, Nodes):
                    self.nodes.take(item.body, at)
                continue
            state = self._rank(item.header.rank)
            try:
                if self._take(state, item, at):
                    heard[state.rank] = state
            except Exception as error:  # one message with impossible values must not cost the others
                self.failure = f"a {item.header.kind} of rank {state.rank}: {type(error).__name__}: {error}"
        self._settle(heard)

    def _rank(self, rank: int) -> RankState:
        state = self.ranks.get(rank)
        if state is None:
            size = self.job.world_size if self.job is not None else 1
            footprints = KEPT_OF_MANY if size > MANY else KEPT
            state = self.ranks[rank] = RankState(rank, self._present, footprints, ring_for(size))
        return state

    def behind(self) -> float:
        """Return by how many seconds the stream lags behind the hub: a viewer short of CPU, or one that has lost the
        hub; 0 below ``LAGGING``.

        What has not come yet is not known to be missing, so ages and states are those of that time. Nothing new for a
        while is no lag.
        """
        if self._newest is None or self.unheard >= LAGGING:
            return self.unheard
        taken, age = self._newest
        return age if age >= LAGGING and self.clock() - taken < LAGGING else 0.0

    def _present(self) -> float:
        """Return the time, on the session's clock, that the stream has come to."""
        return self.clock() - self.behind()

    def _take(self, state: RankState, item: Received, at: float) -> bool:
        body = item.body
        if isinstance(body, History):
            state.remember(body.points, at)
            return True
        if isinstance(body, Mark):
            state.mark(item.header, body, at)
            return False
        if not state.accept(item.header, at):
            if isinstance(body, End):
                state.recall(item.header, body)
            return False
        if isinstance(body, Card):
            self._carded(state, body)
        elif isinstance(body, Sample):
            state.hear(body, at)
            if at > self._began and self.nodes.prompt(state.rank):
                self._newest = (at + item.age, item.age)
            self._note_listed(state.rank, body)
        elif isinstance(body, Device):
            state.describe(body, at)
            return False
        elif isinstance(body, Stack):
            state.pause(body, at)
            return False
        elif isinstance(body, Box):
            state.leave(body, at)
            return False
        elif isinstance(body, End):
            state.finish(body, at)
        return True

    def _carded(self, state: RankState, card: Card) -> None:
        state.introduce(self._alike(card))
        # Its id is another one once the hub knows of the job's other nodes, its size when some join or leave.
        self.job = card.job
        self._places = None
        for other in map(self.ranks.get, self._hosts.put(card)):
            if other is not None and other.card is not None:
                other.introduce(self._hosts.name(other.card))

    def _alike(self, card: Card) -> Card:
        """Return a card that shares what is the same with the other ranks' cards: a model's facts are large."""
        if card.inventory is None:
            return card
        known = self._inventories.setdefault(card.inventory, card.inventory)
        return card if known is card.inventory else msgspec.structs.replace(card, inventory=known)

    def _note_listed(self, rank: int, sample: Sample) -> None:
        if self._listed.get(rank) != sample.device.process_pid:
            self._listed[rank] = sample.device.process_pid
            self._places = None

    def _settle(self, heard: dict[int, RankState]) -> None:
        for state in heard.values():
            state.settle()
        self._uncompared.update(heard)
        started = time.perf_counter()
        while self._uncompared:
            state = self._uncompared.pop(next(iter(self._uncompared)))
            try:
                state.compare()
            except Exception as error:
                self.failure = f"budget of rank {state.rank}: {type(error).__name__}: {error}"
            if self.budget_slice is not None and time.perf_counter() - started > self.budget_slice:
                break

    def _reset(self, reset: Reset, now: float) -> None:
        self.ranks = {}
        self._uncompared = {}
        self._began, self._newest, self._arriving = now, None, reset.parts
        self._places, self._listed = None, {}
        self.nodes, self._hosts, self._inventories = NodesState(), Hosts(), {}
        self.findings.forget()
        self.job, self.hub = reset.job, reset.hub
        if reset.replaced:
            self.marks.append(Event(now, "hub-replaced", "live history starts anew"))

    @property
    def interval(self) -> float | None:
        """Seconds from one sample of a rank to the next, by the word of one of them; None before the first."""
        return next((state.sample.interval for state in self.ranks.values() if state.sample is not None), None)

    def _usual_step(self) -> float | None:
        times = [
            step.seconds for state in list(self.ranks.values())[:16] for step in state.steps if step.seconds is not None
        ]
        return median(times) if times else None

    def step_age(self) -> float | None:
        """Return the seconds since any rank last finished a step, None before the first."""
        now = self._present()
        ages = [
            state.sample.step_age + (state.age(now) or 0.0)
            for state in self.ranks.values()
            if state.sample is not None and state.sample.step_age is not None
        ]
        return min(ages, default=None)

    def state(self) -> str:
        """Return ``starting``, ``running``, ``stalled`` or ``ended``, as the steps alone tell it."""
        return self._state_at(self.step_age())

    def _state_at(self, age: float | None) -> str:
        """Return the state when that was the seconds since any rank last finished a step."""
        now = self._present()
        over = all(self._in_words(state, now) in _OVER for state in self.ranks.values())
        if over and any(state.end is not None for state in self.ranks.values()):
            if not self._expects_another():
                return "ended"
            return "starting" if age is None else "running"
        if age is None:
            return "starting"
        return "stalled" if age > patience(self._usual_step()) else "running"

    def _expects_another(self) -> bool:
        """Whether a rank that was never heard of may still speak after all that were have ended."""
        size = self.job.world_size if self.job and self.job.world_size <= MOST_MISSING else 0
        if len(self.ranks) >= size:
            return False
        last = max((state.ended for state in self.ranks.values() if state.ended is not None), default=None)
        if last is None or self.clock() - last >= LAST_WORD:
            return False
        missing = tuple(rank for rank in range(size) if rank not in self.ranks)
        return bool(of_these_nodes([state.view() for state in self.ranks.values()], missing, size))

    def _view(self, rank: int, copy_history: bool, now: float) -> RankView:
        known = self.ranks.get(rank)
        if known is None:
            return RankView(rank=rank, state="missing", age=None)
        view = known.view(copy_history=copy_history, keep=self.keep_views, now=now)
        state = self.nodes.state_of(rank, view.state, GONE)
        return view if state == view.state else replace(view, state=state)

    def _in_words(self, state: RankState, now: float) -> str:
        return self.nodes.state_of(state.rank, state.state(now), GONE)

    def snapshot(self, *, copy_history: bool = False) -> Snapshot:
        """Return the job as it is now; with ``copy_history`` one that stays as it is for ever."""
        size = self.job.world_size if self.job and self.job.world_size <= MOST_MISSING else 0
        known = sorted({*self.ranks, *range(size)}) if len(self.ranks) < size else sorted(self.ranks)
        present = self._present()
        views = [self._view(rank, copy_history, present) for rank in known]
        if self._places is None:
            self._places = places(views)
        age = self.step_age()
        snapshot = Snapshot(
            now=self.clock(),
            job=self.job,
            state=self._state_at(age),
            ranks=tuple(views),
            marks=tuple(self.marks),
            step=max([view.sample.step for view in views if view.sample], default=0),
            step_seconds=self._usual_step(),
            step_age=age,
            nodes=self.nodes.views,
            places=self._places,
            behind=self.behind(),
            memory={} if copy_history else self.findings.memory,
            limits=self.findings.limits,
        )
        # Of ranks on a lost node nothing is known now, so no rule compares them or says what they do.
        seen = [view for view in views if view.state != NODE_LOST]
        asked = snapshot if len(seen) == len(views) else replace(snapshot, ranks=tuple(seen))
        found = () if self._arriving else self.findings.of(asked)
        if self.findings.failure:
            self.failure = self.findings.failure
        kinds = frozenset() if self._arriving else self.findings.kinds
        return replace(snapshot, state=_as_found(snapshot.state, kinds), findings=found)


def _as_found(state: str, rules: frozenset[str]) -> str:
    """Return the job's state: one that stands for a good reason (``pause``, told or not) is not stalled."""
    return "running" if state == "stalled" and "pause" in rules and "hang" not in rules else state
