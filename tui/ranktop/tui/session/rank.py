"""What is known of one rank, fed message by message: its last words, how old they are, what state that makes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ranktop.budget.terms import Budget
from ranktop.probes.reading import AllocatorReading, DeviceDetail, StepTimes
from ranktop.tui.session.expected import bounds, expected, peak_moment
from ranktop.tui.session.footprints import KEPT, Footprint, footprint
from ranktop.tui.session.looks import Looks
from ranktop.tui.session.rank_view import (
    Event,
    Glimpse,
    RankView,
    Standing,
    device_trouble,
    end_state,
    grow_older,
    is_stale,
)
from ranktop.tui.session.rings import Ring, joined
from ranktop.wire.points import point_of
from ranktop.wire.schema import Box, Card, Device, End, Header, Mark, Point, Sample, Stack

RECENT_STEPS: Final = 64
"""Step times kept per rank."""

LOOKS_KEPT: Final = 240
"""Looks at the collectives kept per rank: a minute."""

GLIMPSES_KEPT: Final = 60
"""Samples of which phase and positions are kept."""

MARKS_KEPT: Final = 20

NO_DETAIL: Final = DeviceDetail()
"""What a device says that has no detail."""


class RankState:
    """The latest of one rank, fed message by message."""

    def __init__(
        self, rank: int, clock: Callable[[], float], footprints: int = KEPT, history: Ring | None = None
    ) -> None:
        """``footprints``: how many are kept. ``history``: an empty ring that keeps as much as it should."""
        self.rank = rank
        self._clock = clock
        self.pid = 0
        self.card: Card | None = None
        self.sample: Sample | None = None
        self.received: float | None = None
        """When the last sample reached the hub, on the session's clock."""
        self.end: End | None = None
        self.ended: float | None = None
        """When that reached the hub."""
        self.restart = 0
        self.steps: deque[StepTimes] = deque(maxlen=RECENT_STEPS)
        self.detail: DeviceDetail | None = None
        self.allocator: AllocatorReading | None = None
        self.described: float | None = None
        """When detail and allocator reached the hub."""
        self.footprints: deque[Footprint] = deque(maxlen=footprints)
        self.looks = Looks(LOOKS_KEPT)
        self.glimpses: deque[Glimpse] = deque(maxlen=GLIMPSES_KEPT)
        self.stack: Stack | None = None
        self.stack_at: float | None = None
        self.box: Box | None = None
        self.boxed: float | None = None
        self.process = ""
        self.validating = False
        self.former: End | None = None
        self.former_box: Box | None = None
        self.former_boxed: float | None = None
        self.former_footprints: tuple[Footprint, ...] = ()
        self.history = history if history is not None else Ring()
        self.marks: deque[Event] = deque(maxlen=MARKS_KEPT)
        self.budget: Budget | None = None
        self.peak: str | None = None
        self.standing: dict[tuple[str, str], Standing] = {}
        self._compared = False
        self._past: tuple[tuple[Point, ...], float] | None = None
        self._view: RankView | None = None
        """The last view, while nothing is new."""

    def accept(self, header: Header, at: float) -> bool:
        """Begin a new life when the message comes from one; False for a message of a life that is over."""
        self._view = None
        if header.restart < self.restart:
            return False
        anyone = not self.pid or not header.pid or header.pid == self.pid
        same = header.restart == self.restart and anyone
        begins = header.kind in ("card", "mark")
        if not same and header.restart == self.restart and self.end is None and not begins:
            return False
        if not same:
            if self.pid and header.restart != self.restart:
                self.marks.append(Event(at, "restart", f"restart {header.restart} as pid {header.pid}"))
            self._bury()
            self.card = self.sample = self.end = self.received = self.ended = None
            self.detail = self.allocator = self.described = None
            self.budget = self.peak = None
            self.stack = self.stack_at = self.box = self.boxed = None
            self.process = ""
            self.validating = False
            self.steps.clear()
            self.footprints.clear()
            self.looks = Looks(LOOKS_KEPT)
            self.glimpses.clear()
            self.standing = {}
            self._compared = False
        self.pid, self.restart = header.pid or self.pid, header.restart
        return True

    def _bury(self) -> None:
        """Keep of a life that is over how it ended, and what it left behind when it ran out of memory."""
        self.former = self.end
        if self.box is not None:
            self.former_box, self.former_boxed = self.box, self.boxed
            self.former_footprints = tuple(self.footprints)

    def recall(self, header: Header, end: End) -> None:
        """Take how the life before this one ended, told only after this one began."""
        if self.former is None and header.restart < self.restart:
            self.former = end

    def hear(self, sample: Sample, at: float) -> None:
        """Take a sample that reached the hub at ``at``."""
        self._view = None
        same_step = self.sample is not None and self.sample.step == sample.step
        self.validating = sample.phase == "eval" or (same_step and self.validating)
        self.sample, self.received = sample, at
        last = self.steps[-1].index if self.steps else 0
        self.steps.extend([step for step in sample.steps if step.index > last])
        self.peak = peak_moment(sample.table)
        self.process = ""
        self._follow(sample, at)
        newest = self.history.newest
        if newest is None or at > newest:
            self.history.append(point_of(sample, at))

    def _follow(self, sample: Sample, at: float) -> None:
        """Keep what is compared over several steps."""
        slot = self.looks.slot
        self.looks.extend([look for look in sample.looks if look.slot > slot])
        positions = tuple([group.enqueued for group in sample.collectives.groups])
        self.glimpses.append(Glimpse(sample.step, sample.phase, positions, sample.starved, sample.device.sm_clock))
        known = self.footprints[-1].step if self.footprints else -1
        if (
            sample.table is not None
            and sample.table.step > known
            and (step := footprint(sample, self.peak, at)) is not None
        ):
            self.footprints.append(step)
        if self.stack is not None and sample.step > self.stack.step:
            self.stack = self.stack_at = None

    def pause(self, stack: Stack, at: float) -> None:
        """Take where the training thread is, as heard at ``at``; past when a newer step is finished already."""
        self._view = None
        if self.sample is None or self.sample.step <= stack.step:
            self.stack, self.stack_at = stack, at

    def leave(self, box: Box, at: float) -> None:
        """Take what the rank leaves behind; the first account stays."""
        self._view = None
        if self.box is None:
            self.box, self.boxed = box, at
            self.former_box = self.former_boxed = None
            self.former_footprints = ()

    def describe(self, device: Device, at: float) -> None:
        """Take what the rank said of its device and its allocator, which reached the hub at ``at``."""
        self._view = None
        self.detail = device.detail if device.detail != NO_DETAIL else None
        self.allocator = device.allocator
        self.described = at

    def remember(self, points: tuple[Point, ...], at: float) -> None:
        """Keep the hub's history, whose newest point is from ``at``, until :meth:`settle`."""
        self._past = (points, at)

    def settle(self) -> None:
        """Put the hub's history between the points seen here."""
        if self._past is None:
            return
        points, at = self._past
        self._past = self._view = None
        if not points:
            return
        self.history = joined(points, at - points[-1].t, self.history)

    def compare(self) -> None:
        """Lay the budget beside the last table and note since when each category differs."""
        if self.card is None or self.sample is None:
            return
        self._view = None
        table = self.sample.table
        self.budget = expected(self.card, table)
        if self.budget is None or table is None:
            return
        at = self.received if self.received is not None else self._clock()
        known = self._compared or table.step <= 1
        standing: dict[tuple[str, str], Standing] = {}
        compared = bounds(self.budget)
        for moment, memory in table.moments.items():
            here = compared.get(moment)
            for category, sign in here.differing(memory) if here is not None else ():
                old = self.standing.get((moment, category))
                kept = old is not None and old.sign == sign
                standing[moment, category] = old if kept and old is not None else Standing(table.step, at, known, sign)
        self.standing = standing
        self._compared = True

    def introduce(self, card: Card) -> None:
        """Take the rank's card."""
        self.card, self._view = card, None

    def finish(self, end: End, at: float) -> None:
        """Take how the rank ended, as the hub heard at ``at``."""
        self.end, self.ended, self._view = end, at, None

    def age(self, now: float | None = None) -> float | None:
        """Return the seconds since the last sample, None without one."""
        if self.received is None:
            return None
        return max(0.0, (self._clock() if now is None else now) - self.received)

    def state(self, now: float | None = None) -> str:
        """Return the state in a word: see the module's tests for what each means.

        One of ``ok``, ``starting`` (no step finished yet), ``silent`` (three intervals without a sample),
        ``ended``, ``failed``, ``killed``, ``vanished``, ``missing``, and ``device`` with the device's own state.
        """
        if self.end is not None:
            return end_state(self.end)
        if self.sample is None:
            return "missing" if self.card is None else "starting"
        if is_stale(self.sample, self.age(now)):
            return "silent"
        if self.sample.device.state != "ok":
            trouble = device_trouble(self.card, self.sample)
            if trouble:
                return f"device {trouble}"
        return "starting" if self.sample.step == 0 else "ok"

    def view(self, *, copy_history: bool = False, keep: bool = False, now: float | None = None) -> RankView:
        """Return the rank as it is now; with ``copy_history`` as it stays for ever.

        ``keep``: the view of the last time, with other ages, while nothing else about the rank is new.
        """
        now = self._clock() if now is None else now
        state, age = self.state(now), self.age(now)
        described = None if self.described is None else max(0.0, now - self.described)
        if copy_history or not keep:
            return self._seen(state, age, described, copy_history=copy_history)
        view = self._view
        if view is None or view.state != state:
            view = self._view = self._seen(state, age, described)
        else:
            grow_older(view, age, described)
        return view

    def _seen(self, state: str, age: float | None, described: float | None, *, copy_history: bool = False) -> RankView:
        return RankView(
            rank=self.rank,
            state=state,
            age=age,
            card=self.card,
            sample=self.sample,
            end=self.end,
            restart=self.restart,
            steps=tuple(self.steps),
            budget=self.budget,
            peak=self.peak,
            standing=self.standing,
            history=self.history.copy() if copy_history else self.history,
            marks=tuple(self.marks),
            ended=self.ended,
            detail=self.detail,
            allocator=self.allocator,
            detail_age=described,
            footprints=tuple(self.footprints) if copy_history else self.footprints,
            looks=tuple(self.looks) if copy_history else self.looks,
            glimpses=tuple(self.glimpses) if copy_history else self.glimpses,
            stack=self.stack,
            stack_at=self.stack_at,
            box=self.box,
            boxed=self.boxed,
            process=self.process,
            validating=self.validating,
            former=self.former,
            former_box=self.former_box,
            former_boxed=self.former_boxed,
            former_footprints=self.former_footprints,
        )

    def mark(self, header: Header, mark: Mark, at: float) -> None:
        """Note something that happened to the rank's stream, or what its node says of its process."""
        self._view = None
        if mark.what == "life":
            self.accept(header, at)
            return
        if mark.what == "process":
            if (header.restart, header.pid) == (self.restart, self.pid):
                self.process = mark.detail
            return
        self.marks.append(Event(at, mark.what, mark.detail))
