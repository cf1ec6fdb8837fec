"""An answer made by hand: projections whose every number is known, so that the page can be read against them."""

from __future__ import annotations

from ranktop.budget.collective import Collective
from ranktop.budget.model import Model
from ranktop.budget.plan import Batch, Layout, Pipeline, Plan
from ranktop.budget.planning.answer import Answer, Row
from ranktop.budget.planning.request import Request
from ranktop.budget.planning.sizes import GIB
from ranktop.budget.run import Projection, RankBudget, Run
from ranktop.budget.terms import ALL_MOMENTS, BUDGETED, Amount, Budget, Part

G = 2**30


def amounts(*sizes: float | None, activations: float | None = 0.03) -> dict[str, Amount]:
    """Return the six categories in GiB; runtime is a guess, activations are within 3 %."""
    within = {"activations": activations, "runtime": None}
    return {
        name: Amount(None, "no rule for this") if size is None else Amount(
            int(size * G), f"rule of {name}", within=within.get(name, 0.0),
            parts=(Part("logits", int(size * G)),) if name == "activations" else (),
        )
        for name, size in zip(BUDGETED, sizes, strict=True)
    }  # fmt: skip


def budget(peak: str, *sizes: float | None, host: int = 0, load: float = 1.0) -> Budget:
    """Return a budget that has the sizes at one moment, half of what is known at every other one."""
    half = [None if size is None else size / 2 for size in sizes]
    table = {moment: amounts(*(sizes if moment == peak else half)) for moment in ALL_MOMENTS}
    table["load"] = amounts(load, 0, 0, 0, 0, 0)
    return Budget(moments=table, host=Amount(host, "by hand"))


def row(run: Run, projection: Projection, moment: str | None) -> Row:
    rank = projection.rank
    at = rank.budget.at(moment) if rank is not None and moment is not None else {}
    total = rank.total if rank is not None else None
    return Row(run=run, projection=projection, moment=moment, amounts=at, total=total, parameters=10**9)


def projection(run: Run, name: str, ranks: tuple[RankBudget, ...], sent: int = 0, most: int | None = 7) -> Projection:
    total = ranks[0].total
    memory = run.device_memory
    headroom = None if total is None or memory is None else memory - total
    return Projection(
        strategy=name,
        ranks=ranks,
        collectives=(Collective(kind="broadcast", group=4, bytes=sent, what="weights", rule="by hand"),)
        if sent
        else (),
        fits=None if headroom is None else headroom >= 0,
        headroom=headroom,
        max_micro_batch=most if headroom is not None and headroom >= 0 else 0 if headroom is not None else None,
        assumptions=("every rank sees as much",) if name != "ddp" else (),
    )


def hand_made(*, link: float | None = None, memory: int | None = 80 * G) -> Answer:
    """Return five strategies: one too large, two that fit, one refused, one unknown in part."""
    model = Model(
        name="tiny", family="llama", layers=4, hidden=64, heads=8, kv_heads=2, head_dim=8, ffn=128, vocab=1000,
        positions=2048,
    )  # fmt: skip
    run = Run(model=model, world_size=4, device_memory=memory, link=link)
    batch = Batch(micro_batch=1, sequence_length=2048, accumulation=1)
    data = Plan(strategy="ddp", layout=Layout(world_size=4, replicate=4), batch=batch)
    shard = Plan(strategy="fsdp2", layout=Layout(world_size=4, shard=4), batch=batch)
    pipeline = Pipeline(micro_batches=4)
    stage = Plan(strategy="pp", layout=Layout(world_size=4, pipeline=4), batch=batch, pipeline=pipeline)

    def alike(plan: Plan, found: Budget, *ranks: int, number: int = 0) -> RankBudget:
        return RankBudget(ranks=ranks or (0, 1, 2, 3), stage=number, plan=plan, budget=found)

    ddp = alike(data, budget("backward", 20, 20, 40, 12.5, 20, 0.5))
    fsdp = alike(shard, budget("backward", 5, 5, 10, 12.5, 2, 0.5, load=50))
    first = alike(stage, budget("optimizer_step", 5, 5, 10, 25, 0.001, 0.5, host=3 * G), 0)
    last = alike(stage, budget("optimizer_step", 5, 5, 10, 5, 0.001, 0.5), 3, number=3)
    unknown = alike(shard, budget("forward", 1, 1, 2, None, 0, 0.5))
    refused = "3 GPUs do not divide the 8 heads of this model; give --tp 4, or take another number of GPUs"
    rows = (
        row(run, projection(run, "ddp", (ddp,), 6 * G), "backward"),
        row(run, Projection(strategy="tp", refused=refused), None),
        row(run, projection(run, "fsdp-full", (fsdp,), 9 * G), "backward"),
        row(run, projection(run, "pp-1f1b", (first, last), G, 1200), "optimizer_step"),
        row(run, projection(run, "3d", (unknown,)), "forward"),
    )
    request = Request(
        run=run,
        parameters=1_234_567_890,
        strategies=tuple(each.name for each in rows),
        optimizer="adamw",
        device="h100" if memory else "",
        own="fsdp-full",
        notes=("ds.json: no key 'zero_optimisation' is known",),
        assumed=("4 GPUs",),
    )
    chosen = "fsdp-full" if rows[2].fits else None
    return Answer(request=request, rows=rows, best=chosen, unit=GIB)
