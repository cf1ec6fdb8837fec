"""One plan after the other is judged: its memory on the ranks that may be the worst, and its cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ranktop.budget.collective import Collective
from ranktop.budget.desk import Desk
from ranktop.budget.fitting import cost
from ranktop.budget.fitting.candidate import Candidate
from ranktop.budget.fitting.cost import Cost, Speeds, Work
from ranktop.budget.fitting.shapes import Shape, title
from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.plan import Plan
from ranktop.budget.planning.bands import margin_of
from ranktop.budget.project import collectives_of, rank_budget
from ranktop.budget.run import Projection, RankBudget, Run
from ranktop.budget.strategies import plan_of

KNOBS = ("precision", "checkpointing", "micro-batch", "accumulation")

SHARED = 64
"""Ranks that are kept ready for another micro-batch, and as many of what else plans share, while a search goes on."""


@dataclass(frozen=True, slots=True)
class Point:
    """A layout with everything else that is searched."""

    shape: Shape
    precision: str
    checkpointing: str
    micro: int
    """Samples per forward and rank."""


@dataclass(frozen=True, slots=True)
class Present:
    """What runs now."""

    run: Run
    strategy: str = ""
    """Empty when that is not known: then the layout is no change."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the ranks of a plan send and copy in one step."""

    collectives: tuple[Collective, ...]
    """Of the first rank."""
    sent: int
    """Bytes of the busiest rank."""
    sending: float
    copying: float


@dataclass(slots=True)
class Judge:
    """Judges the plans of one run for one global batch; remembers what it has computed."""

    run: Run
    """Its axes are what the layouts do not fix."""
    present: Present
    batch: int
    at: Speeds
    reason: str = ""
    """Why the last plan that could not be judged could not."""
    judged: int = 0
    _candidates: dict[Point, Candidate | None] = field(default_factory=dict)
    _costs: dict[Point, Cost | None] = field(default_factory=dict)
    _traffic: dict[tuple[object, ...], Traffic] = field(default_factory=dict)
    _work: Work | None = None
    _desk: Desk = field(default_factory=lambda: Desk(SHARED))

    def asked(self, point: Point) -> Run:
        """Return the run of a point. Raises NoRule when the batch cannot be shared out so."""
        each = self.each(point.shape)
        if each is None or each % point.micro:
            raise NoRule(f"{self.batch} samples cannot be shared out so")
        return replace(
            point.shape.apply(self.run),
            precision=point.precision,
            checkpointing=point.checkpointing,
            micro_batch=point.micro,
            accumulation=each // point.micro,
        )

    def each(self, shape: Shape) -> int | None:
        """Return the samples per step of one data-parallel rank; None when that is not a whole number."""
        try:
            data = plan_of(shape.apply(self.run), shape.strategy).layout.data
        except (NoRule, BadInput) as reason:
            self.reason = str(reason)
            return None
        if self.batch % data:
            self.reason = f"{self.batch} samples cannot be shared out over {data} data-parallel ranks"
            return None
        return self.batch // data

    def candidate(self, point: Point) -> Candidate | None:
        """Return the judged plan; None when it is not possible, or when its bytes are not known (``reason``)."""
        if point not in self._candidates:
            try:
                asked = self.asked(point)
                self._candidates[point] = self.judge(asked, point.shape.strategy, self.cost(point))
            except (NoRule, BadInput) as reason:
                self.reason = str(reason)
                self._candidates[point] = None
        return self._candidates[point]

    def judge(self, asked: Run, strategy: str, seconds: Cost | None = None) -> Candidate | None:
        """Judge a run under a strategy as it is. Raises NoRule, BadInput."""
        plan = plan_of(asked, strategy)
        if samples(plan) != self.batch:
            raise NoRule(f"{samples(plan)} samples a step, not {self.batch}")
        self.judged += 1
        ranks = tuple(_ranks(asked, plan, self._desk))
        totals = [rank.total for rank in ranks]
        if None in totals or asked.device_memory is None:
            self.reason = _unknown(ranks[totals.index(None)]) if None in totals else "no device memory"
            return None
        worst = max(range(len(ranks)), key=lambda i: totals[i] or 0)
        headroom = asked.device_memory - (totals[worst] or 0)
        traffic = self.traffic(asked, plan)
        found = Projection(
            strategy=strategy, ranks=ranks, worst=worst, collectives=traffic.collectives, fits=headroom >= 0,
            headroom=headroom, assumptions=plan.notes,
        )  # fmt: skip
        named = title(strategy, plan)
        return Candidate(
            run=asked,
            strategy=strategy,
            title=named,
            projection=found,
            changes=self._changes(asked, named),
            sent=traffic.sent,
            seconds=seconds or self._cost(asked, plan),
            margin=margin_of(found.amounts()),
        )

    def cost(self, point: Point) -> Cost | None:
        """Return what a plan costs, whether it fits or not; None when it is not possible."""
        if point not in self._costs:
            try:
                asked = self.asked(point)
                self._costs[point] = self._cost(asked, plan_of(asked, point.shape.strategy))
            except (NoRule, BadInput) as reason:
                self.reason = str(reason)
                self._costs[point] = None
        return self._costs[point]

    def idle(self, point: Point) -> float:
        """Return the seconds of a point that are neither sent nor copied. Raises NoRule, BadInput."""
        asked = self.asked(point)
        plan = plan_of(asked, point.shape.strategy)
        recomputing, waiting = self._idle(asked, plan)
        return recomputing + waiting

    def _idle(self, asked: Run, plan: Plan) -> tuple[float, float]:
        if self._work is None:
            self._work = cost.work(asked.model, asked.sequence_length or asked.model.positions or 1)
        each = self.batch // plan.layout.data
        return cost.recomputing(plan, self._work, each, self.at), cost.waiting(plan, self._work, each, self.at)

    def _cost(self, asked: Run, plan: Plan) -> Cost:
        traffic = self.traffic(asked, plan)
        recomputing, waiting = self._idle(asked, plan)
        return Cost(sending=traffic.sending, copying=traffic.copying, recomputing=recomputing, waiting=waiting)

    def traffic(self, asked: Run, plan: Plan) -> Traffic:
        """Return what a plan sends and copies; checkpointing matters to it only under tensor parallel."""
        again = plan.layout.tensor > 1 and plan.checkpointing == "full"
        key = (plan.strategy, plan.layout, plan.precision, plan.fsdp, plan.zero, plan.batch, plan.pipeline, plan.stack,
               again)  # fmt: skip
        if key not in self._traffic:
            each = [(one, collectives_of(asked, one, self._desk)) for one in _stages(plan)]
            self._traffic[key] = Traffic(
                collectives=each[0][1],
                sent=max(sum(one.sent for one in found) for _, found in each),
                sending=max(cost.sending(stage, found, self.at, asked.gpus_per_node) for stage, found in each),
                copying=cost.copying(plan, self._desk.inventory(asked, plan), self.at),
            )
        return self._traffic[key]

    def _changes(self, asked: Run, named: str) -> tuple[str, ...]:
        now = self.present
        told = [f"{now.title} → {named}"] if now.title and now.title != named else []
        befores = (now.run.precision, now.run.checkpointing, now.run.micro_batch, now.run.accumulation)
        afters = (asked.precision, asked.checkpointing, asked.micro_batch, asked.accumulation)
        for name, before, after in zip(KNOBS, befores, afters, strict=True):
            # Without a running strategy the batch is what the search is about, not a change.
            if before != after and (now.title or name in KNOBS[:2]):
                told.append(f"{name} {before} → {after}")
        return tuple(told)


def samples(plan: Plan) -> int:
    """Return the samples per optimizer step over all ranks."""
    return (plan.batch.micro_batch or 1) * plan.micro_batches * plan.layout.data


def floor(candidate: Candidate) -> int:
    """Return the bytes that the worst rank needs whatever the batch and the checkpointing: before its first forward."""
    return max(rank.budget.total("step_start") or 0 for rank in candidate.projection.ranks)


def _ranks(run: Run, plan: Plan, desk: Desk) -> Iterator[RankBudget]:
    """Yield the budgets of the ranks that may need the most: of every stage that may, the first data-parallel rank.

    ZeRO-1 and 2 reduce a rank's own part of the gradients bucket by bucket: there the last rank may need more.
    """
    axes = plan.layout
    inner = axes.tensor * axes.context
    by_bucket = plan.zero is not None and plan.zero.stage in (1, 2)
    members = sorted({0, axes.data - 1}) if by_bucket else [0]
    for stage in _worst_stages(plan):
        for member in members:
            place = replace(axes, pipeline_rank=stage, shard_rank=member % axes.shard,
                            replicate_rank=member // axes.shard)  # fmt: skip
            own = replace(plan, layout=place)
            rank = (stage * axes.data + member) * inner
            yield RankBudget(ranks=(rank,), stage=stage, plan=own, budget=rank_budget(run, own, desk))


def _worst_stages(plan: Plan) -> list[int]:
    """Return the stages of which one needs the most.

    Under GPipe and 1F1B no stage between the second and the last has more layers or more micro-batches in flight than
    the second.
    """
    stages = range(plan.layout.pipeline)
    if plan.pipeline is None or plan.pipeline.schedule in ("gpipe", "1f1b"):
        return sorted({0, *stages[1:2], stages[-1]})
    return list(stages)


def _stages(plan: Plan) -> Iterator[Plan]:
    """Yield the plans of the ranks of which one sends the most: those at the ends and one between them."""
    stages = range(plan.layout.pipeline)
    for stage in sorted({0, *stages[1:2], stages[-1]}):
        yield replace(plan, layout=replace(plan.layout, pipeline_rank=stage))


def _unknown(rank: RankBudget) -> str:
    """Say which bytes are not known, and why."""
    for table in rank.budget.moments.values():
        for name, amount in table.items():
            if amount.bytes is None:
                return f"{name}: {amount.rule}"
    return "a part of the budget is not known"
