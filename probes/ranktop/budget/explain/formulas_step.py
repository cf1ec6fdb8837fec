"""The formulas of what lives within a step: saved activations, buffers, the process itself."""

from __future__ import annotations

from ranktop.budget.activations.saved import Activations
from ranktop.budget.explain.explanation import Formula, Term
from ranktop.budget.explain.pictures import highest
from ranktop.budget.model import Model, NoRule
from ranktop.budget.plan import Plan, Zero
from ranktop.budget.run import RankBudget, Run
from ranktop.budget.terms import DTYPE_BYTES, Amount, Part

MIB = 1 << 20


def activations_of(run: Run, plan: Plan) -> Activations | None:
    """Return what forward saves on the rank that the plan names, None without a rule."""
    try:
        if run.activations is not None:
            return run.activations(run.model, plan)
        from ranktop.budget.activations.closed import activations

        return activations(run.model, plan) if plan.batch.micro_batch is not None else None
    except NoRule:
        return None


def activations(found: Activations | None, rank: RankBudget, model: Model) -> Formula:
    """Return the formula of what forward leaves for backward, and what comes on top at the highest point."""
    moment = "forward_end"
    amount = rank.budget.at(moment).get("activations", Amount(None, "not budgeted"))
    top, most = highest(rank.budget, "activations")
    terms = _saved(found, rank.plan, model) if found is not None else ()
    higher = most is not None and amount.bytes is not None and most > amount.bytes
    given = sum(term.bytes for term in terms)
    rest = (amount.bytes or 0) - given
    return Formula(
        category="activations",
        terms=terms,
        budget=amount.bytes,
        moment=moment,
        difference=_rest(rank, rest) if terms and rest and amount.bytes is not None else "",
        source=found.rule if found is not None else amount.rule,
        within=amount.within,
        most=most if higher else None,
        most_at=top if higher else "",
        more=_on_top(rank, top) if higher else (),
    )


def _rest(rank: RankBudget, rest: int) -> str:
    if rank.plan.zero is not None and abs(rest) >= MIB:
        return "what DeepSpeed keeps beside it"
    return "rounding to the allocator's blocks of 512 bytes" if abs(rest) < 64 * MIB else "of other micro-batches"


def _saved(found: Activations, plan: Plan, model: Model) -> tuple[Term, ...]:
    layers = found.layers * found.in_flight
    flight = f" × {found.in_flight} in flight" if found.in_flight > 1 else ""
    if found.blocks == found.layers * found.layer:
        first = Term(symbol="L·layer", count=layers, each=found.layer,
                     name=f"{found.layers} layers{flight}{in_sbh(found.layer, model, plan)}")  # fmt: skip
    else:
        kept = "inputs of checkpointed blocks" if plan.checkpointing in ("full", "selective") else "blocks"
        first = Term(symbol="kept", count=found.in_flight, each=found.blocks, name=f"{kept}{flight}")
    rest = (
        ("outside", found.in_flight, found.outside, "embedding, final norm"),
        ("logits", 1, found.logits, "head and loss"),
        ("inputs", found.in_flight, found.inputs, "tokens and labels"),
        ("casts", 1, found.casts, "autocast's copies of weights"),
    )
    return (first, *(Term(symbol=s, count=c, each=e, name=n) for s, c, e, n in rest if e and c))


def in_sbh(layer: int, model: Model, plan: Plan) -> str:
    """Return a layer's bytes in the unit of papers: per sample, token and hidden element."""
    unit = (plan.batch.micro_batch or 0) * (plan.batch.sequence_length or 0) * model.hidden
    return f", {layer / unit:.3g} sbh each" if unit else ""


def _on_top(rank: RankBudget, moment: str) -> tuple[Part, ...]:
    parts = [
        part
        for part in rank.budget.at(moment)["activations"].parts
        if not part.seen and part.bytes >= MIB and not part.name.startswith("saved")
    ]
    return tuple(sorted(parts, key=lambda part: -part.bytes)[:3])


def buffers(rank: RankBudget) -> Formula:
    """Return the buffers where they are largest within a step, one term for each."""
    moment, most = highest(rank.budget, "buffers")
    amount = rank.budget.at(moment).get("buffers", Amount(None, "not budgeted"))
    parts = [part for part in amount.parts if part.bytes >= MIB] or list(amount.parts)
    terms = [Term(symbol="", count=1, each=part.bytes, name=part.name) for part in parts]
    rest = (most or 0) - sum(part.bytes for part in parts)
    difference = "module buffers" if rest else ""
    if rank.plan.zero is not None and not any("reduce_bucket_size" in part.name for part in parts):
        bucket = _bucket(rank.plan)
        terms = [bucket, *terms]
        difference = "the bucket is not there where memory is highest"
    return Formula(
        category="buffers",
        terms=tuple(terms),
        budget=most,
        moment=moment,
        difference=difference if most is not None else "",
        source=amount.rule,
        within=amount.within,
    )


def _bucket(plan: Plan) -> Term:
    """Return the gradient buckets of DeepSpeed's stages 1 and 2, which live in backward only."""
    zero = plan.zero or Zero()
    item = DTYPE_BYTES[plan.precision.parameters]
    count = 1 + zero.overlap_comm
    name = f"reduce_bucket_size {zero.reduce_bucket_size:,} × {item} bytes" + (" × 2" if zero.overlap_comm else "")
    return Term(symbol="", count=count, each=zero.reduce_bucket_size * item, name=name)


def runtime(rank: RankBudget) -> Formula:
    """Return what the process takes beside its tensors."""
    moment = rank.budget.peak() or "backward"
    amount = rank.budget.at(moment).get("runtime", Amount(None, "not budgeted"))
    return Formula(
        category="runtime",
        terms=tuple(Term(symbol="", count=1, each=part.bytes, name=part.name) for part in amount.parts),
        budget=amount.bytes,
        moment=moment,
        source=amount.rule,
        within=amount.within,
    )
