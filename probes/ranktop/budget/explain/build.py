"""Puts an explanation together."""

from __future__ import annotations

from ranktop.budget.collective import PHASES, Collective
from ranktop.budget.explain import formulas, formulas_step, pictures
from ranktop.budget.explain.about import summary
from ranktop.budget.explain.explanation import Explanation
from ranktop.budget.explain.facts import Facts
from ranktop.budget.explain.knobs import knobs
from ranktop.budget.explain.mistakes import mistakes
from ranktop.budget.explain.whole import whole
from ranktop.budget.fitting.cost import Speeds, speeds
from ranktop.budget.project import project
from ranktop.budget.run import Projection, Run


def explain(run: Run, strategy: str, *, projection: Projection | None = None, at: Speeds | None = None) -> Explanation:
    """Return what a strategy does for a run. Raises BadInput; a refused strategy has nothing but its reason.

    ``projection``: of this run and strategy, where it is at hand; ``at``: of the GPUs, where they are known by name.
    """
    found = project(run, strategy) if projection is None else projection
    rank = found.rank
    if rank is None:
        return Explanation(strategy=strategy, run=run, projection=found, parameters=0, summary=summary(strategy, None))
    counts = whole(run, rank.plan)
    saved = formulas_step.activations_of(run, rank.plan)
    facts = Facts(run, strategy, found, rank, counts, saved)
    return Explanation(
        strategy=strategy,
        run=run,
        projection=found,
        parameters=counts.parameters,
        summary=summary(strategy, rank.plan),
        symbols=formulas.symbols(counts, rank.plan),
        ranks=pictures.ranks(found, counts),
        kinds=pictures.kinds(found),
        moments=pictures.moments(rank),
        formulas=(
            *formulas.states(counts, rank),
            formulas_step.activations(saved, rank, run.model),
            formulas_step.buffers(rank),
            formulas_step.runtime(rank),
        ),
        collectives=in_order(found.collectives),
        at=at or speeds(run.link, several_nodes=run.world_size > run.gpus_per_node),
        link_assumed=not run.link,
        knobs=knobs(run, strategy, found),
        mistakes=mistakes(facts),
    )


def in_order(collectives: tuple[Collective, ...]) -> tuple[Collective, ...]:
    """Return the collectives of a step in the order in which they happen; those that nobody sends are left out."""
    sent = [one for one in collectives if one.sent]
    return tuple(sorted(sent, key=lambda one: PHASES.index(one.phase)))
