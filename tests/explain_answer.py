"""Explanations made by hand: budgets whose every number is known, so that the page can be read against them."""

from __future__ import annotations

from dataclasses import replace

from plan_answer import G, budget

from ranktop.budget.collective import Collective
from ranktop.budget.explain import pictures
from ranktop.budget.explain.explanation import Explanation, Formula, Knob, Mistake, Term
from ranktop.budget.explain.whole import Whole
from ranktop.budget.fitting.cost import Speeds
from ranktop.budget.inventory import Inventory
from ranktop.budget.model import Model
from ranktop.budget.plan import Batch, Fsdp, Layout, OptimizerPlan, Pipeline, Plan, Precision
from ranktop.budget.run import Projection, RankBudget, Run
from ranktop.budget.terms import Part

WHOLE = Whole(Inventory(), 10**9, 10**9, ((4.0, 10**9),), 4, 0, 0, 8.0)
MODEL = Model(
    name="tiny", family="llama", layers=4, hidden=64, heads=8, kv_heads=2, head_dim=8, ffn=128, vocab=1000,
    positions=2048,
)  # fmt: skip
RUN = Run(model=MODEL, world_size=4, device_memory=80 * G)


def sharded() -> Explanation:
    """FSDP over four ranks, of which the last has less; it fits."""
    plan = Plan(
        strategy="fsdp2", layout=Layout(world_size=4, shard=4), fsdp=Fsdp(), optimizer=OptimizerPlan(name="AdamW"),
        precision=Precision(parameters="float32", compute="bfloat16"), batch=Batch(micro_batch=1, sequence_length=2048),
    )  # fmt: skip
    last = replace(plan, layout=replace(plan.layout, shard_rank=3))
    ranks = (
        RankBudget(ranks=(0, 1, 2), stage=0, plan=plan, budget=budget("backward", 5, 5, 10, 12.5, 2, 0.5)),
        RankBudget(ranks=(3,), stage=0, plan=last, budget=budget("backward", 4, 4, 8, 12.5, 2, 0.5)),
    )
    collectives = (
        Collective(kind="all_gather", group=4, bytes=8 * G, calls=5, axis="shard", phase="forward",
                   what="parameters, unit by unit", rule="by hand"),
        Collective(kind="reduce_scatter", group=4, bytes=16 * G, calls=5, axis="shard",
                   what="gradients, unit by unit", rule="by hand"),
    )  # fmt: skip
    projection = Projection(
        strategy="fsdp-full", ranks=ranks, collectives=collectives, fits=True, headroom=45 * G, max_micro_batch=4,
        assumptions=("every rank sees as much",),
    )  # fmt: skip
    knobs = (
        Knob(name="micro-batch", before="1", after="2", how="--micro-batch 2", run=RUN, strategy="fsdp-full",
             peak=12 * G, sent=0, host=0, note="2x the samples"),
        Knob(name="CPU offload", before="off", after="on", how="CPUOffloadPolicy()", run=RUN, strategy="fsdp-full",
             peak=-5 * G, sent=0, host=20 * G),
    )  # fmt: skip
    return _explained(projection, knobs, (("P", 10**9, "parameters"), ("N", 4, "ranks that share the states")))


def staged() -> Explanation:
    """Two stages of a pipeline: the first one is too large for a device and an unknown part comes on top."""
    plan = Plan(
        strategy="pp", layout=Layout(world_size=4, pipeline=2, replicate=2), optimizer=OptimizerPlan(name="AdamW"),
        batch=Batch(micro_batch=1, sequence_length=2048), pipeline=Pipeline(micro_batches=4),
    )  # fmt: skip
    last = replace(plan, layout=replace(plan.layout, pipeline_rank=1))
    ranks = (
        RankBudget(ranks=(0, 1), stage=0, plan=plan, budget=budget("optimizer_step", 20, 20, 40, 12, 0.001, 0.5)),
        RankBudget(ranks=(2, 3), stage=1, plan=last, budget=budget("optimizer_step", 5, 5, 10, 5, 0.001, 0.5)),
    )
    collectives = (
        Collective(kind="p2p", group=2, bytes=G // 64, calls=4, axis="pipeline", phase="forward",
                   what="block outputs, to the next stage", rule="by hand"),
        Collective(kind="all_reduce", group=2, bytes=4 * G, calls=9, axis="replicate",
                   what="gradients, bucket by bucket", rule="by hand"),
    )  # fmt: skip
    projection = Projection(
        strategy="pp-1f1b", ranks=ranks, collectives=collectives, fits=False, headroom=-12 * G - G // 2,
        max_micro_batch=0,
    )  # fmt: skip
    knobs = (
        Knob(name="checkpointing", before="none", after="full", how="--checkpointing full", run=RUN,
             strategy="pp-1f1b", peak=-20 * G, sent=0, host=0, note="forward twice"),
        Knob(name="schedule", before="1F1B", after="GPipe", how="ranktop explain pp-gpipe", run=RUN,
             strategy="pp-gpipe", peak=0, sent=0, host=0),
    )  # fmt: skip
    return _explained(projection, knobs, (("P", 10**9, "parameters"), ("p", 2, "stages")))


def _explained(
    projection: Projection, knobs: tuple[Knob, ...], symbols: tuple[tuple[str, int, str], ...]
) -> Explanation:
    rank = projection.ranks[0]
    formulas = (
        Formula(category="parameters", terms=(Term(symbol="4P/N", count=10**9, each=4, over=4),), budget=10**9,
                moment="step_start", source="by hand, parameters.py"),
        Formula(category="optimizer", budget=5 * G, moment="step_end", source="factored states",
                terms=(Term(symbol="4P/N", count=10**9, each=4, over=4, name="master weights"),
                       Term(symbol="8P/N", count=10**9, each=8, over=4, name="states")),
                difference="padding"),
        Formula(category="activations", budget=4 * G, moment="forward_end", source="by hand", within=0.03,
                terms=(Term(symbol="L·layer", count=4, each=G, name="4 layers, 34 sbh each"),),
                most=6 * G, most_at="backward", more=(Part("gradients of the logits", 2 * G),)),
        Formula(category="buffers", terms=(), budget=None, moment="backward", source="no rule for this"),
    )  # fmt: skip
    mistakes = (
        Mistake(claim="it needs {little}", truth="it needs {much}, as the other half comes on top of what is said",
                sizes={"little": G, "much": 2 * G}, source="a paper, section 2"),
    )  # fmt: skip
    return Explanation(
        strategy=projection.strategy,
        run=RUN,
        projection=projection,
        parameters=10**9,
        summary="Every rank keeps its part, and gathers the others' when it needs them; this sentence takes two lines.",
        symbols=symbols,
        ranks=pictures.ranks(projection, WHOLE),
        kinds=pictures.kinds(projection),
        moments=pictures.moments(rank),
        formulas=formulas,
        collectives=projection.collectives,
        at=Speeds(node_link=50e9),
        knobs=knobs,
        mistakes=mistakes,
    )
