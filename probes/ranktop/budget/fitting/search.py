"""The search itself, in small pieces of work, so that a screen can take it a few milliseconds at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Final

from ranktop.budget.axes import check
from ranktop.budget.fitting.candidate import Candidate, Fit, Suggestion, rounded
from ranktop.budget.fitting.cost import Speeds, speeds
from ranktop.budget.fitting.judge import Judge, Point, Present, floor, samples
from ranktop.budget.fitting.shapes import Shape, shapes, title
from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.run import STRATEGIES, Run
from ranktop.budget.strategies import plan_of

CHECKPOINTING: Final = ("none", "selective", "full")

LESS_PRECISION: Final = {
    "fp32": ("amp-bf16", "bf16-master"),
    "amp-fp16": ("fp16-master",),
    "amp-bf16": ("bf16-master",),
}
"""What may be tried instead of a precision when nothing fits with it: as exact in its updates, smaller."""


@dataclass(slots=True)
class Search:
    """Iterate it to the end, or as long as there is time; ``answer`` says at any time what is known.

    ``batch``: samples per step, None for the run's own. ``present``: the strategy that runs now. ``free``: its axes are
    no wish but what happens to run, so that others are looked at too. Raises BadInput without a device's memory and for
    a batch that no layout can make.
    """

    run: Run
    batch: int | None = None
    strategies: tuple[str, ...] = STRATEGIES
    present: str = ""
    at: Speeds | None = None
    free: bool = False
    done: bool = False
    _judge: Judge = field(init=False)
    _kept: list[Candidate] = field(default_factory=list)
    _now: Candidate | None = None
    _nearest: Candidate | None = None
    _less: str = ""
    _more: tuple[int, str] | None = None
    _shorter: int | None = None
    _suggestions: list[Suggestion] = field(default_factory=list)
    _layouts: int = 0

    def __post_init__(self) -> None:
        run = self.run
        if run.device_memory is None:
            raise BadInput("to say what fits, the memory of a device is needed: give --device-memory or --gpu")
        check(run)
        wanted = global_batch(run, self.present) if self.batch is None else self.batch
        if wanted < 1:
            raise BadInput(f"a global batch must be at least 1, not {wanted}")
        nodes = run.world_size > run.gpus_per_node
        at = self.at if self.at is not None else speeds(run.link, several_nodes=nodes, host=run.host)
        searched = replace(run, tensor=None, pipeline=None, data=None) if self.free else run
        self._judge = Judge(searched, _present(run, self.present), wanted, at)

    def __iter__(self) -> Iterator[None]:
        """Do a piece of work of a few milliseconds with every turn. Raises BadInput for an impossible batch."""
        judge = self._judge
        found = self._found()
        self._layouts = len(found)
        if not any(judge.each(shape) for shape in found):
            raise BadInput(f"no layout fits the global batch: {judge.reason}")
        self._judge_present()
        yield
        yield from self._level(found, self.run.precision)
        for precision in LESS_PRECISION.get(self.run.precision, ()):
            if not self._kept:
                yield from self._level(found, precision)
                self._less = precision if self._kept else ""
        if not self._kept:
            yield from self._without(found)
        self.done = True

    def feasible(self, present: Present) -> Iterator[None]:
        """Look only for what fits with the run's own precision, against something else that runs now."""
        self._judge.present = present
        yield from self._level(self._found(), self.run.precision)

    def answer(self) -> Fit:
        """Return what is known so far."""
        judge = self._judge
        kept = _folded(sorted(self._worth(), key=lambda one: one.order))
        return Fit(
            global_batch=judge.batch,
            fitting=tuple(kept),
            present=self._now,
            nearest=None if kept else self._nearest,
            less_precise=self._less,
            more_ranks=self._more,
            shorter=self._shorter,
            suggestions=tuple(self._suggestions),
            reason="" if kept or self._nearest or not self.done else judge.reason,
            tried=judge.judged,
            layouts=self._layouts,
            speeds=judge.at,
        )

    def _worth(self) -> list[Candidate]:
        """Return what is kept; nothing is offloaded where one device holds everything with room, or is the host."""
        stay = [one for one in self._kept if not one.offloads]
        if (self.run.world_size == 1 or self.run.host) and any(not one.tight for one in stay):
            return [one for one in self._kept if one in stay or one.strategy == self.present]
        return self._kept

    def _found(self) -> list[Shape]:
        """Return the layouts, with the one that runs now."""
        run = self.run
        found = list(shapes(self._judge.run, self.strategies, self.present))
        if self.free and self.present in self.strategies and (run.tensor or run.pipeline):
            own = Shape(strategy=self.present, tensor=run.tensor, pipeline=run.pipeline)
            found += [] if own in found else [own]
        return found

    def _judge_present(self) -> None:
        if self.present:
            try:
                self._now = self._judge.judge(self.run, self.present)
            except (NoRule, BadInput) as reason:
                self._judge.reason = str(reason)

    def _level(self, found: list[Shape], precision: str) -> Iterator[None]:
        rows: dict[tuple[str, bool, bool], list[Shape]] = {}
        for shape in found:
            rows.setdefault(shape.row, []).append(shape)
        for row in rows.values():
            yield from self._row(row, precision)

    def _row(self, row: list[Shape], precision: str) -> Iterator[None]:
        """Keep the row's best plan, and a cheaper one when that is tight.

        What cannot cost less than the best so far is not looked at.
        """
        options: list[tuple[float, int, Shape, str]] = []
        for shape in row:
            each = self._judge.each(shape)
            if each is not None:
                options += self._bounds(shape, precision, each)
            yield
        fitting: list[Candidate] = []
        hopeless: set[Shape] = set()
        most = self.run.device_memory or 0
        for bound, _, shape, checkpointing in sorted(options, key=lambda option: option[:2]):
            best = min((one.order for one in fitting if not one.tight), default=None)
            if best is not None and bound > best[0]:
                break
            if shape in hopeless:
                continue
            for one in self._points(shape, precision, checkpointing):
                if one is not None and one.fits:
                    fitting.append(one)
                elif one is not None:
                    self._near(one)
                    if floor(one) > most:
                        hopeless.add(shape)
                        break
                yield
        self._keep(fitting)

    def _keep(self, fitting: list[Candidate]) -> None:
        if fitting:
            chosen = [min(fitting, key=lambda one: one.order)]
            roomy = [one for one in fitting if not one.tight]
            if roomy and chosen[0].tight:
                chosen.append(min(roomy, key=lambda one: one.order))
            self._kept += chosen

    def _near(self, one: Candidate) -> None:
        if self._nearest is None or (one.missing, one.cost) < (self._nearest.missing, self._nearest.cost):
            self._nearest = one

    def _bounds(self, shape: Shape, precision: str, each: int) -> Iterator[tuple[float, int, Shape, str]]:
        """Yield the least that a plan can cost, for each checkpointing.

        Larger micro-batches never send more, smaller ones never wait longer, and checkpointing sends nothing less.
        """
        judge = self._judge
        large = judge.cost(Point(shape, precision, "none", _sizes(judge, shape, each)[-1]))
        if large is None:
            return
        for number, checkpointing in enumerate(CHECKPOINTING):
            least = large.sending + large.copying + judge.idle(Point(shape, precision, checkpointing, 1))
            yield rounded(least), number, shape, checkpointing

    def _points(self, shape: Shape, precision: str, checkpointing: str) -> Iterator[Candidate | None]:
        """Yield the judged plans of a layout among which is its best one, the smallest micro-batch first."""
        judge = self._judge
        each = judge.each(shape) or 1
        sizes = _sizes(judge, shape, each)

        def at(micro: int) -> Candidate | None:
            return judge.candidate(Point(shape, precision, checkpointing, micro))

        first = at(sizes[0])
        yield first
        if sizes[-1] == each > sizes[0]:
            # With one micro-batch per step no gradients of earlier ones are alive: the only size that may need less
            # than a smaller one.
            yield at(sizes.pop())
        if first is None or not first.fits:
            return
        now = judge.present.run.micro_batch
        if now in sizes:
            yield at(now)
        if first.plan.pipeline is not None:
            yield from self._by_cost(shape, precision, checkpointing, sizes)
            return
        low, high = 0, len(sizes)
        while high - low > 1:
            middle = (low + high) // 2
            one = at(sizes[middle])
            yield one
            low, high = (middle, high) if one is not None and one.fits else (low, middle)
        for size in reversed(sizes[:low]):
            last = at(sizes[low])
            if last is not None and not last.tight:
                return
            low -= 1
            yield at(size)

    def _by_cost(
        self, shape: Shape, precision: str, checkpointing: str, sizes: list[int]
    ) -> Iterator[Candidate | None]:
        """Yield the micro-batches of a pipeline, the cheapest first, until one fits with room to spare."""
        judge = self._judge
        points = [Point(shape, precision, checkpointing, size) for size in sizes]
        costs = {point: cost.total for point in points if (cost := judge.cost(point)) is not None}
        for point in sorted(costs, key=lambda point: (rounded(costs[point]), -point.micro)):
            one = judge.candidate(point)
            yield one
            if one is not None and one.fits and not one.tight:
                return

    def _without(self, found: list[Shape]) -> Iterator[None]:
        """Nothing fits: find what is nearest, and what would make something fit."""
        judge = self._judge
        for shape in found:
            each = judge.each(shape)
            if each is None:
                continue
            sizes = _sizes(judge, shape, each)
            for precision in (self.run.precision, *LESS_PRECISION.get(self.run.precision, ())):
                for checkpointing in reversed(CHECKPOINTING):
                    for micro in dict.fromkeys((sizes[0], sizes[-1])):
                        one = judge.candidate(Point(shape, precision, checkpointing, micro))
                        if one is not None:
                            self._near(one)
                        yield
        from ranktop.budget.fitting import hints

        near = self._nearest
        if near is None:
            return
        self._shorter = hints.shorter(judge, near)
        yield
        for more in hints.more_ranks(judge, near, self.strategies):
            self._more = more
            yield
        for suggestion in hints.suggestions(self.run, judge, self.strategies):
            if suggestion is not None:
                self._suggestions.append(suggestion)
            yield


def global_batch(run: Run, present: str = "") -> int:
    """Return the samples per optimizer step of a run as it is.

    Under the ``present`` strategy; without one, data parallel over what tensor, pipeline and context parallel leave.
    """
    if present:
        try:
            return samples(plan_of(run, present))
        except NoRule:
            pass
    model_parallel = (run.tensor or 1) * (run.pipeline or 1) * run.context
    return run.micro_batch * run.accumulation * max(1, run.world_size // model_parallel)


def _present(run: Run, strategy: str) -> Present:
    if not strategy:
        return Present(run)
    try:
        return Present(run, strategy, title(strategy, plan_of(run, strategy)))
    except NoRule:
        return Present(run, strategy, strategy)


def _sizes(judge: Judge, shape: Shape, each: int) -> list[int]:
    """Return the micro-batches that make the batch, smallest first.

    A pipeline of one micro-batch per step is none: then as many as stages would be taken.
    """
    small = [n for n in range(1, isqrt(each) + 1) if each % n == 0]
    found = sorted({*small, *(each // n for n in small)})
    plan = plan_of(shape.apply(judge.run), shape.strategy)
    return found[:-1] or found if plan.pipeline is not None else found


def _folded(ordered: list[Candidate]) -> list[Candidate]:
    """Fold the same plan under other names into the one that comes first."""
    found: dict[tuple[object, ...], Candidate] = {}
    for one in ordered:
        run = one.run
        key = (one.total, one.sent, rounded(one.cost), run.precision, run.checkpointing, run.micro_batch,
               run.accumulation)  # fmt: skip
        first = found.get(key)
        found[key] = one if first is None else replace(first, also=(*first.also, one.title))
    return list(found.values())
