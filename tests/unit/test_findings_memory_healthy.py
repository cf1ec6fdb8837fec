"""Two hundred seeded healthy jobs of many kinds raise nothing; and what is wrong with one rank of 1024 is found."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fake_job import GIB, MIB
from memory_lab import ALIVE, BATCH, MEMORY_RULES, Held, Lab, add, ddp_plan, fsdp_plan, gpt

from ranktop.budget.plan import Layout, Plan
from ranktop.budget.terms import Memory
from ranktop.probes.reading import Collectives
from ranktop.tui.session.findings.rules import RULES
from ranktop.tui.session.findings.scene import scene
from ranktop.wire.schema import Box, Sample

SEEDS = 200
AT_ONCE = 20


def noisy(seed: int) -> Lab:
    """FSDP2 whose allocators keep what they like."""
    rng = random.Random(seed)

    def cache(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        if moment == "step_start":
            kept[who] = int(4 * GIB * rng.random())
        held["cache"] = kept[who]

    kept: dict[int, int] = {}
    return Lab(5, fsdp_plan(5), seed=seed, noise=0.01, changes=[cache])


def lengths(seed: int) -> Lab:
    """Batches of many lengths, a few of them much longer."""
    rng = random.Random(seed)

    def tokens(rank: int, step: int) -> int:
        return drawn.setdefault((rank, step), int(min(9000, 600 * rng.lognormvariate(1.2, 0.7))))

    drawn: dict[tuple[int, int], int] = {}
    ranks = rng.choice((2, 3, 6))
    return Lab(ranks, ddp_plan(ranks), gpt(), activations=8 * GIB, seed=seed, tokens=tokens)


def last_micro_batch(seed: int) -> Lab:
    """Two ranks that accumulate batches of many lengths: what is seen is the last one's, the tokens are all of them."""
    rng = random.Random(seed)

    def varying(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        if moment in ALIVE:
            held["activations"] = drawn.setdefault((who, step), int(3 * GIB * rng.lognormvariate(0, 0.6)))

    drawn: dict[tuple[int, int], int] = {}
    tokens: dict[tuple[int, int], int] = {}
    return Lab(
        2, replace(ddp_plan(2), batch=replace(BATCH, accumulation=8)), gpt(), seed=seed, changes=[varying],
        tokens=lambda rank, step: tokens.setdefault((rank, step), int(32768 * rng.lognormvariate(0, 0.2))),
    )  # fmt: skip


def more_tokens(seed: int) -> Lab:
    """A rank with half as many tokens again: the rule about tokens tells it."""
    return Lab(5, fsdp_plan(5), seed=seed, tokens=lambda rank, step: 6144 if rank == 2 else 4096)


def malloc(seed: int) -> Lab:
    """A host, where malloc serves Python too and gloo's buffers come and go."""
    rng = random.Random(seed)
    ranks = rng.choice((2, 3, 4))

    def python(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        held["activations"] += int(MIB * (0.02 * step + 6 * rng.random()))
        held["cache"] = int(40 * MIB * rng.random())
        held["runtime"] = int(25 * MIB * ((who * 7 + seed) % 5) / 4)

    plan = replace(ddp_plan(ranks), host=True)
    return Lab(ranks, plan, gpt(), activations=120 * MIB, host=True, seed=seed, runtime=420 * MIB, changes=[python])


def uneven(seed: int) -> Lab:
    """ZeroRedundancyOptimizer deals whole parameters out."""
    plan = replace(ddp_plan(6), strategy="zero-redundancy", zero_redundancy=True)
    return Lab(6, plan, gpt(), activations=6 * GIB, seed=seed, noise=0.01)


def stages(seed: int) -> Lab:
    """Two pipeline stages, the first with more micro-batches in flight, the last with the logits."""

    def place(rank: int, plan: Plan) -> Plan:
        return replace(plan, layout=replace(plan.layout, pipeline_rank=rank // 3, replicate_rank=rank % 3))

    plan = replace(ddp_plan(6), layout=Layout(world_size=6, replicate=3, pipeline=2), strategy="pp", ddp=None)
    more = [add(rank, "activations", 9 * GIB, ALIVE) for rank in range(3)]
    logits = [add(rank, "activations", 5 * GIB, ("backward_start",)) for rank in range(3, 6)]
    return Lab(6, plan, gpt(), activations=8 * GIB, place=place, changes=[*more, *logits], seed=seed, noise=0.005)


def accumulating(seed: int) -> Lab:
    """DDP that accumulates, evaluates every ten steps and warms up in its first ones."""

    def change(who: int, step: int, moment: str, held: dict[str, int]) -> None:
        held["activations"] += (200 * MIB if step % 10 == 0 else 0) + 20 * MIB * min(step, 8)
        held["cache"] = 3 * GIB if step >= 10 else 0

    plan = replace(ddp_plan(4), batch=replace(BATCH, accumulation=4))
    return Lab(4, plan, gpt(), activations=6 * GIB, changes=[change], seed=seed, noise=0.004)


KINDS: tuple[Callable[[int], Lab], ...] = (
    noisy,
    lengths,
    last_micro_batch,
    more_tokens,
    malloc,
    uneven,
    stages,
    accumulating,
)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_healthy_jobs_raise_nothing(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        kind = KINDS[seed % len(KINDS)]
        lab = kind(seed)
        for _ in range(3):
            lab.run(9)
            told = [one.sentence for one in lab.found() if one.severity != "info"]
            assert told == [], (kind.__name__, seed, lab.step)


def big(share: float) -> Lab:
    """Return 1024 ranks, one of which is over in activations."""

    def same(rank: int, plan: Plan) -> Plan:
        return plan

    more = add(700, "activations", int(share * 30 * GIB), ALIVE)
    return Lab(1024, ddp_plan(1024), gpt(), activations=30 * GIB, place=same, changes=[more], noise=0.005, first_step=2)


def test_one_rank_of_1024_is_found_soon_and_cheaply() -> None:
    lab = big(0.06).run(8)
    found = lab.the("memory")
    assert found.ranks == (700,)
    assert found.short == "act +6%"
    assert found.confidence == "high"
    snapshot = lab.snapshot()
    best = min(_seconds(lambda: [list(RULES[name](scene(snapshot))) for name in MEMORY_RULES]) for _ in range(5))
    # 25 ms were seen; a busy machine may take some times that.
    assert best < 0.15


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def test_1024_ranks_that_are_alike_are_silent() -> None:
    assert big(0.0).run(7).found() == []


class Gaps(Lab):
    """A job of which anything may be unknown in any sample."""

    def memory(self, rank: int, table: Held, most: int, cache: int) -> Memory:
        known = super().memory(rank, table, most, cache).as_dict()
        return Memory(**{name: None if self.rng.random() < 0.2 else value for name, value in known.items()})

    def sample(self, rank: int) -> Sample:
        sample = super().sample(rank)
        assert sample.table is not None
        moments = {name: memory for name, memory in sample.table.moments.items() if self.rng.random() < 0.7}
        changes: dict[str, Any] = {
            "table": msgspec.structs.replace(sample.table, moments=moments),
            "retries": None, "inactive_split": None, "steps": (), "collectives": Collectives(reason="none"),
        }  # fmt: skip
        kept = {name: value for name, value in changes.items() if name == "table" or self.rng.random() < 0.3}
        return msgspec.structs.replace(sample, **kept)


@pytest.mark.parametrize("seed", range(12))
def test_anything_may_be_unknown(seed: int) -> None:
    rng = random.Random(seed)
    plan = rng.choice((fsdp_plan(3), ddp_plan(3), replace(fsdp_plan(3), checkpointing="full")))
    lab = Gaps(3, plan, gpt(), seed=seed, changes=[add(1, "activations", 9 * GIB)])
    for _ in range(24):
        lab.run(1)
        lab.snapshot()
        lab.found()
    if seed % 2:
        lab.card_changes = {"plan": None} if seed % 4 == 1 else {"inventory": None}
        lab.send([], [lab.card(rank) for rank in lab.each()])
        lab.send([], [Box(rank=1, error=""), Box(rank=2, error="MemoryError", asked=GIB)])
        lab.run(6)
        assert {one.rule for one in lab.found()} >= {"oom"}
