"""The formulas of the model states with a run's numbers, and what the exact budget has beside them."""

from __future__ import annotations

from typing import Final

from ranktop.budget.explain.explanation import Formula, Term
from ranktop.budget.explain.pictures import AT, away, axes_of, highest, parts_of
from ranktop.budget.explain.whole import Whole
from ranktop.budget.plan import Plan
from ranktop.budget.run import RankBudget
from ranktop.budget.terms import STATES, Amount, Part

LETTERS: Final = {"tensor": "t", "pipeline": "p", "shard": "N", "context": "c", "expert": "e"}
"""Letters of the axes in formulas."""


def symbols(whole: Whole, plan: Plan) -> tuple[tuple[str, int, str], ...]:
    """Return the letters of the formulas with value and meaning."""
    layout, batch, pipeline = plan.layout, plan.batch, plan.pipeline
    found = [("P", whole.parameters, "parameters")]
    if whole.trainable != whole.parameters:
        found.append(("Pt", whole.trainable, "of them trained"))
    if whole.experts:
        found += [("Ps", whole.trainable - whole.experts, "of them outside of experts")]
        found += [("Pe", whole.experts, "in experts"), ("e", layout.expert, "ranks that share the experts")]
    found += [("N", layout.shard, "ranks that share the states")] if layout.shard > 1 else []
    found += [("t", layout.tensor, "tensor parallel")] if layout.tensor > 1 else []
    found += [("p", layout.pipeline, "stages")] if layout.pipeline > 1 else []
    found += [("m", pipeline.micro_batches, "micro-batches per step")] if pipeline else []
    found += [("c", layout.context, "context parallel")] if layout.context > 1 else []
    found += [("b", batch.micro_batch or 0, "micro-batch"), ("s", batch.sequence_length or 0, "tokens")]
    return tuple((letter, value, words) for letter, value, words in found if value)


def states(whole: Whole, rank: RankBudget) -> tuple[Formula, ...]:
    """Return the formulas of parameters, gradients and optimizer on one rank."""
    return tuple(_state(category, whole, rank) for category in STATES)


def _state(category: str, whole: Whole, rank: RankBudget) -> Formula:
    moment = AT[category]
    amount = rank.budget.at(moment).get(category, Amount(None, "not budgeted"))
    terms = () if away(category, rank.plan) else _terms(category, whole, rank.plan)
    top, most = highest(rank.budget, category)
    above = most if most is not None and amount.bytes is not None and most > amount.bytes else None
    formula = Formula(
        category=category,
        terms=terms,
        budget=amount.bytes,
        moment=moment,
        source=_rule(amount.rule),
        within=amount.within,
        most=above,
        most_at=top if above is not None else "",
        more=_more(rank, category, top, amount.bytes or 0) if above is not None else (),
    )
    return _with_difference(formula, whole, rank.plan)


def _rule(text: str) -> str:
    """Return a rule without what only a running job's reader needs."""
    return text.partition("; up to")[0].replace(": as seen on the live optimizer, there is no rule for this class", "")


def _terms(category: str, whole: Whole, plan: Plan) -> tuple[Term, ...]:
    """Return bytes per element x elements / parts, for one category; empty when there is no such number."""
    if category == "parameters":
        many = len(whole.stored) > 1
        found = [(each, count, f"those of {each:g} bytes" if many else "") for each, count in whole.stored]
        letter = "P"
    else:
        found = [(each, whole.trainable, name) for each, name in _each(category, whole, plan)]
        letter = "P" if whole.trainable == whole.parameters else "Pt"
    if whole.experts and len({count for _, count, _ in found}) == 1:
        return _with_experts(category, sum(each for each, _, _ in found), whole, plan)
    over, below = parts_of(category, plan), _below(axes_of(category, plan), plan)
    return tuple(
        Term(symbol=f"{each:.4g}{letter}{below}", count=count, each=each, over=over, name=name)
        for each, count, name in found
        if each and count
    )


def _each(category: str, whole: Whole, plan: Plan) -> list[tuple[float, str]]:
    """Return the bytes per trained element, with what they are where there are several."""
    if category == "gradients":
        each, name = _gradient(whole, plan)
        return [] if each is None else [(each, name)]
    if whole.states is None:
        return []
    return [(float(whole.master), "master weights"), (whole.states, "states")]


def _with_experts(category: str, each: float, whole: Whole, plan: Plan) -> tuple[Term, ...]:
    """Return two terms: what all ranks share alike, and routed experts.

    Experts are dealt out over e ranks, and sharded over the N/e that hold the same ones: over N in all, as the rest.
    """
    axes, over = axes_of(category, plan), parts_of(category, plan)
    e, shards = plan.layout.expert, plan.layout.shard if "shard" in axes else 1
    alike = shards >= e and shards % e == 0
    own = axes if alike else (*(axis for axis in axes if axis != "shard" or shards > e), "expert")
    rest = whole.trainable - whole.experts
    return (
        Term(symbol=f"{each:.4g}Ps{_below(axes, plan)}", count=rest, each=each, over=over),
        Term(symbol=f"{each:.4g}Pe{_below(own, plan)}", count=whole.experts, each=each,
             over=over // shards * e * max(1, shards // e)),
    )  # fmt: skip


def _gradient(whole: Whole, plan: Plan) -> tuple[int | None, str]:
    """Return the bytes per element just before the optimizer's step, and what they are.

    DeepSpeed's stages 1 and 2 keep a partition in 16 bits and turn it into fp32 group by group as they step.
    """
    if plan.zero is not None and plan.zero.stage in (1, 2) and whole.master:
        return whole.master, "in fp32 for the step"
    return whole.gradient, ""


def _below(axes: tuple[str, ...], plan: Plan) -> str:
    """Return the divisor as it is written behind a symbol, e.g. ``/(t p)``."""
    split = [axis for axis in axes if getattr(plan.layout, axis) > 1]
    letters = "·".join(LETTERS[axis] for axis in reversed(split))
    return f"/({letters})" if len(split) > 1 else f"/{letters}" if letters else ""


def _more(rank: RankBudget, category: str, moment: str, before: int) -> tuple[Part, ...]:
    amount = rank.budget.at(moment)[category]
    found = [part for part in amount.parts if part.name != category]
    if sum(part.bytes for part in found) == (amount.bytes or 0) - before:
        return tuple(sorted(found, key=lambda part: -part.bytes))
    return (Part("copies for the step", (amount.bytes or 0) - before),) if moment == "optimizer_step" else ()


def _with_difference(formula: Formula, whole: Whole, plan: Plan) -> Formula:
    """Name what the exact number has beside the formula."""
    from dataclasses import replace

    given = formula.bytes
    if given is None or formula.budget is None:
        return formula
    difference = formula.budget - given
    return (
        replace(formula, difference=_why(formula.category, difference, given, plan, whole.experts))
        if difference
        else formula
    )


def _why(category: str, difference: int, given: int, plan: Plan, experts: int) -> str:
    """Return the reason for a difference, the largest first where there are several."""
    layout, zero = plan.layout, plan.zero
    found: list[str] = []
    if layout.expert > 1 and not experts:
        found.append(f"experts are dealt out over {layout.expert} ranks besides")
    if experts and plan.fsdp is not None and difference > given // 100:
        found.append("experts stand in dimension 0, of which every shard has at least one")
    if layout.pipeline > 1 and abs(difference) > given // 1000:
        found.append(_stage(layout.pipeline_rank, layout.pipeline))
    if layout.tensor > 1 and difference > 0:
        found.append("norms and biases are whole on every tensor-parallel rank")
    if zero is not None and zero.stage == 3 and category == "parameters" and difference > 0:
        found.append(f"parameters of at most {zero.persistence_threshold:,} elements stay whole")
    if zero is not None and zero.stage == 3 and category == "gradients" and difference > given:
        found.append("a copy of one sub-group in fp32 for the step")
    if zero is not None and zero.stage in (1, 2) and category == "gradients" and difference > 0:
        found.append("parameters across the edge of a part are kept whole")
    if plan.strategy == "dp" and layout.replicate_rank:
        found.append("this GPU is not the first")
    if found:
        return "; ".join(found[:2])
    if category == "optimizer" and 0 < difference < 1 << 20:
        return "step counters, padding"
    return "padding" if 0 < difference < max(1 << 20, given // 100) else "the parts are not equal"


def _stage(stage: int, stages: int) -> str:
    if stage == 0:
        return "the first stage has the embedding besides its layers"
    if stage == stages - 1:
        return "the last stage has the final norm and the head besides its layers"
    return "a stage in the middle has neither embedding nor head"
