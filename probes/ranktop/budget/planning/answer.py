"""The answer to a request: one projection per strategy, and which of them is the one to look at first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.desk import Desk
from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.planning.request import Request
from ranktop.budget.planning.sizes import Unit, unit_for
from ranktop.budget.project import project
from ranktop.budget.run import WITHOUT_PEAK, Projection, Run
from ranktop.budget.strategies import plan_of
from ranktop.budget.terms import BUDGETED, STEP, Amount


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strategy's answer."""

    run: Run
    """The run with this strategy's accumulation and micro-batch."""
    projection: Projection
    moment: str | None
    """Moment of the amounts: the peak, or inside backward when nobody knows where that is."""
    amounts: dict[str, Amount]
    """Category -> amount, of the worst rank at that moment."""
    total: int | None
    """Bytes of the worst rank at its peak, None when a part is not known at some moment of the step."""
    parameters: int
    """Of the whole model."""
    device: str = ""
    """The GPU's name, empty when that is not known."""

    @property
    def seconds(self) -> float | None:
        """Seconds that the busiest GPU sends per step at least, None without a link."""
        rank, run = self.projection.rank, self.run
        if rank is None or run.link is None:
            return None
        from ranktop.budget.fitting.cost import sending, speeds

        at = speeds(run.link, self.device, several_nodes=run.world_size > run.gpus_per_node)
        return sending(rank.plan, self.projection.collectives, at, run.gpus_per_node)

    @property
    def name(self) -> str:
        """The strategy."""
        return self.projection.strategy

    @property
    def at_least(self) -> int:
        """The most of what is known at any moment of the step, in bytes: so much is needed at least."""
        rank = self.projection.rank
        tables = [rank.budget.at(moment) for moment in STEP] if rank is not None else []
        return max((sum(amount.bytes or 0 for amount in table.values()) for table in tables), default=0)

    def unknown(self) -> dict[str, str]:
        """Return why what is not known is so: category -> reason, over every moment of the step."""
        rank = self.projection.rank
        found: dict[str, str] = {}
        tables = [rank.budget.at(moment) for moment in STEP] if rank is not None else []
        for name in BUDGETED:
            amounts = [table[name] for table in tables if name in table]
            reason = next((amount.rule for amount in amounts if amount.bytes is None), None)
            if reason is not None:
                found[name] = reason
        return found

    @property
    def fits(self) -> bool | None:
        """Whether the worst rank fits; what is known may be too much already."""
        memory = self.run.device_memory
        if self.projection.fits is None and memory is not None and self.at_least > memory:
            return False
        return self.projection.fits


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything that is printed."""

    request: Request
    rows: tuple[Row, ...]
    best: str | None
    """The strategy that fits and loses the least time; None when nothing fits, or nobody said into what."""
    unit: Unit
    """Of the page's sizes."""


def answer(request: Request) -> Answer:
    """Return the projections of a request, in the order of its strategies. Raises BadInput."""
    from ranktop.budget.planning.ranking import best

    meant: list[BadInput] = []
    desk = Desk()
    rows = tuple(_row(request, strategy, meant, desk) for strategy in request.strategies)
    _same_complaint(rows)
    if len(meant) == len(rows):
        raise meant[0]
    # Runtime has no say in the unit: it is the same for a toy.
    sizes = (amount.bytes or 0 for row in rows for name, amount in row.amounts.items() if name != "runtime")
    return Answer(request=request, rows=rows, best=best(rows, request.device), unit=unit_for(sizes))


def _row(request: Request, strategy: str, meant: list[BadInput], desk: Desk) -> Row:
    """Return one strategy's answer; what is wrong for it alone is no reason to withhold the others'."""
    run = request.run
    try:
        run = run_for(request, strategy)
        projection = project(run, strategy, desk)
    except (NoRule, BadInput) as reason:
        projection = Projection(strategy=strategy, refused=str(reason))
        if isinstance(reason, BadInput):
            meant.append(reason)
    moment, amounts = _shown(projection)
    rank = projection.rank
    return Row(
        run=run,
        projection=projection,
        moment=moment,
        amounts=amounts,
        total=rank.total if rank is not None else None,
        parameters=request.parameters,
        device=request.device,
    )


BATCH: Final = "samples per step are not"


def run_for(request: Request, strategy: str) -> Run:
    """Return the run with the accumulation (or micro-batch) that makes the global batch. Raises NoRule, BadInput."""
    run, wanted = request.run, request.global_batch
    if wanted is None:
        return run
    data = plan_of(run, strategy).layout.data
    words, parts = f"{data} replica{'s' * (data != 1)}", data
    if request.micro_batch_given:
        words, parts = f"{words} × micro-batch {run.micro_batch}", parts * run.micro_batch
    if request.accumulation_given:
        words, parts = f"{words} × accumulation {run.accumulation}", parts * run.accumulation
    if request.micro_batch_given and request.accumulation_given:
        if parts != wanted:
            raise NoRule(f"{wanted} {BATCH} {words} = {parts}; change one of them")
        return run
    if wanted % parts:
        raise NoRule(f"{wanted} {BATCH} a multiple of {words} = {parts}; change one of them")
    if request.accumulation_given:
        return replace(run, micro_batch=wanted // parts)
    return replace(run, accumulation=wanted // (data * run.micro_batch))


def _same_complaint(rows: tuple[Row, ...]) -> None:
    """Raise BadInput when no strategy can make the global batch: then it is the numbers that are wrong."""
    reasons = [row.projection.refused for row in rows]
    if reasons and all(BATCH in reason for reason in reasons):
        raise BadInput(f"--global-batch: {reasons[0]}")


def _shown(projection: Projection) -> tuple[str | None, dict[str, Amount]]:
    """Return the moment that stands in the table, and the worst rank's amounts at it."""
    rank = projection.rank
    if rank is None:
        return None, {}
    moment = rank.budget.peak() or WITHOUT_PEAK
    at = rank.budget.at(moment)
    return moment, {name: at.get(name, Amount(None, "not budgeted")) for name in BUDGETED}
