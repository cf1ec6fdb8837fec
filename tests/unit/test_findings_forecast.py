"""Out of memory, before it happens and afterwards; and a cache that fits nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from fake_job import GIB, H100, MIB
from memory_lab import ALIVE, HOST_TOTAL, Lab, add, ddp_plan, expected, fsdp_plan, gpt, llama

from ranktop.budget.plan import OptimizerPlan, Plan
from ranktop.budget.terms import Memory
from ranktop.probes.reading import AllocatorReading
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.remedies import remedies
from ranktop.wire.schema import Body, Box, Card, Sample


def evidence(finding: Finding) -> dict[str, object]:
    return {one.name: one.value for one in finding.evidence}


# -- the optimizer's first step --------------------------------------------------------------------------------------


def starting(free: int, ranks: int = 2, rank: int = 1, optimizer: int = 0, **more: object) -> Lab:
    """Return a job in its first step, one rank of which has so much free."""
    lab = Lab(ranks, ddp_plan(ranks), gpt(), **more)  # type: ignore[arg-type]
    bodies: list[Body] = []
    total = HOST_TOTAL if lab.host else H100
    for who in lab.each():
        room = free if who == rank or lab.host else 70 * GIB
        whole = gpt().numel * 4
        held = {"parameters": whole, "gradients": whole, "optimizer": optimizer, "activations": GIB, "buffers": 0,
                "cache": GIB, "runtime": GIB}  # fmt: skip
        rest = total - sum(held.values()) - room
        bodies.append(Sample(rank=who, step=0, now=Memory(**held, other=rest, free=room, total=total)))
    lab.send([], bodies)
    return lab


def test_a_first_optimizer_step_that_will_not_fit_is_foretold() -> None:
    table = expected(gpt(), ddp_plan(2))
    state = table["step_end"]["optimizer"]
    found = starting(100 * MIB).the("forecast")
    assert (found.ranks, found.severity, found.subject) == ((1,), "critical", "first step")
    assert found.sentence.startswith("rank 1 will not fit at the first optimizer step: needs ")
    assert found.sentence.endswith(f", {(100 * MIB + 2 * GIB) / GIB:.1f} GiB free"), "with its cache and activations"
    assert evidence(found)["optimizer state"] == state
    assert int(str(evidence(found)["needed"])) >= state


def test_a_first_step_that_fits_is_none() -> None:
    assert starting(40 * GIB).found() == []


def test_state_that_is_there_is_not_to_come() -> None:
    assert starting(100 * MIB, optimizer=2 * gpt().numel * 4).found() == []


def test_an_optimizer_that_was_not_seen_is_assumed_and_said_so() -> None:
    class Unseen(Lab):
        def own(self, rank: int) -> Plan:
            return replace(super().own(rank), optimizer=OptimizerPlan())

    lab = Unseen(2, ddp_plan(2), gpt())
    lab.send([], starting_samples(lab))
    found = lab.the("forecast")
    assert (found.severity, found.confidence) == ("warning", "low")
    assert found.ranks == (0, 1), "all that cannot are one finding"
    assert "at the first optimizer step if its optimizer is AdamW: needs 3.5 GiB each, 50.0 MiB free" in found.sentence


def starting_samples(lab: Lab) -> list[Body]:
    whole = gpt().numel * 4
    held = {"parameters": whole, "gradients": whole, "optimizer": 0, "activations": 0, "buffers": 0, "cache": 0}
    free = 50 * MIB
    memory = Memory(**held, runtime=H100 - sum(held.values()) - free, other=0, free=free, total=H100)
    return [Sample(rank=rank, step=0, now=memory) for rank in lab.each()]


def test_ranks_of_a_host_fill_it_together() -> None:
    state = expected(gpt(), ddp_plan(4))["step_end"]["optimizer"]
    room = 4 * state - 4 * 2 * GIB
    found = starting(room - GIB, ranks=4, host=True).the("forecast")
    assert found.ranks == (0, 1, 2, 3)
    assert starting(room + 12 * GIB, ranks=4, host=True).found() == []


# -- the longest batch -----------------------------------------------------------------------------------------------


def test_the_longest_batch_of_a_peer() -> None:
    # Rank 3 holds 20 GiB beside its batches: what the others had, it could not hold.
    def tokens(rank: int, step: int) -> int:
        return 4096 if rank == 3 else 7600 if step == 9 else 4096

    lab = Lab(tokens=tokens, other=GIB, changes=[add(3, "runtime", 20 * GIB)])
    lab.run(12)
    found = [one for one in lab.found("forecast") if one.subject == "longest batch"]
    assert [one.ranks for one in found] == [(3,)]
    assert found[0].severity == "critical"
    assert "rank 3 will not fit the longest batch that a peer has had (7,600 tokens): needs 25" in found[0].sentence
    roomy = Lab(tokens=tokens).run(12)
    assert roomy.found("forecast") == []


# -- saving ----------------------------------------------------------------------------------------------------------


def test_saving_whole_is_told_where_it_would_not_fit() -> None:
    changes = [add(-1, "runtime", 35 * GIB)]
    lab = Lab(8, fsdp_plan(8), llama(), activations=2 * GIB, changes=changes).run(6)
    found = [one for one in lab.found("forecast") if one.subject == "saving"]
    budget = lab.snapshot().ranks[0].budget
    assert budget is not None
    gathered = budget.at("checkpoint_save")["activations"].bytes or 0
    free = 85 * GIB
    assert (bool(found)) == (gathered > free)


# -- afterwards ------------------------------------------------------------------------------------------------------

CUDA = AllocatorReading(backend="native", allocated=70 * GIB, reserved=77 * GIB, largest_free=600 * MIB)


def boxed(box: Box, ranks: int = 8) -> Lab:
    lab = Lab(ranks).run(6)
    lab.send([], [box])
    return lab


def box(rank: int = 3, **more: Any) -> Box:
    facts: dict[str, Any] = {
        "rank": rank, "error": "torch.OutOfMemoryError: CUDA out of memory.", "step": 811, "phase": "forward",
        "asked": 2 * GIB, "free": 1_138_166_333, "limit": 84_987_740_160, "allocator": replace(CUDA, reserved=71 * GIB),
        "memory": Memory(activations=60 * GIB, other=0, runtime=2 * GIB),
    }  # fmt: skip
    return Box(**{**facts, **more})


def test_out_of_memory_is_told_with_what_would_have_fitted() -> None:
    found = boxed(box()).the("oom")
    assert (found.ranks, found.severity, found.subject, found.short) == ((3,), "critical", "full", "OOM +2.0G")
    assert found.sentence == (
        "rank 3 ran out of memory in forward of step 812: asked for 2.00 GiB, "
        "1.06 GiB free of 79.15 GiB (largest free block 600.0 MiB)"
    )
    assert "activation checkpointing (-" in found.advice
    assert found.step == 812
    assert evidence(found)["error"] == "torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    ("more", "cause", "words"),
    [
        ({"asked": 90 * GIB}, "device", "more than the device has"),
        ({"allocator": CUDA}, "fragmented", "7.0 GiB cached but fragmented, largest free block 600.0 MiB"),
        (
            {"memory": Memory(other=9 * GIB, runtime=GIB)},
            "neighbour",
            "9.0 GiB of the device is held by other processes",
        ),
        ({"allocator": AllocatorReading(backend="malloc", allocated=GIB, reserved=9 * GIB)}, "full", "asked for"),
        ({"asked": None, "free": None, "limit": None}, "full", "ran out of memory in forward of step 812"),
    ],
    ids=["device", "fragmented", "neighbour", "malloc", "unknown"],
)
def test_causes(more: dict[str, Any], cause: str, words: str) -> None:
    found = boxed(box(**more)).the("oom")
    assert found.subject == cause
    assert words in found.sentence
    if cause == "fragmented":
        assert "expandable_segments:True" in found.advice


def test_what_cannot_help_is_not_advised() -> None:
    needs = box(asked=70 * GIB, free=GIB)
    assert (
        "By the budget no single change of plan makes room for the 69.0 GiB that are missing"
        in boxed(needs).the("oom").advice
    )
    found = boxed(box(asked=3000 * GIB, free=GIB, limit=4000 * GIB)).the("oom")
    assert "no single change" in found.advice
    assert "(-" not in found.advice, "what saves a fiftieth of what is missing is no remedy"
    large = boxed(box(asked=90 * GIB)).the("oom")
    assert "larger than all of the memory" in large.advice
    assert "By the budget" not in large.advice


def test_under_a_limit_of_its_own_others_do_not_matter() -> None:
    own = {"limit": "the process's own limit on its address space (ulimit -v)"}
    found = boxed(box(reasons=own, memory=Memory(other=9 * GIB, runtime=GIB))).the("oom")
    assert found.subject == "full"
    assert found.sentence.endswith("the limit is the process's own limit on its address space (ulimit -v)")
    assert "other processes" not in found.sentence


def test_ranks_that_fail_alike_are_one_finding() -> None:
    lab = boxed(box(3))
    lab.send([], [box(5), box(4)])
    found = lab.the("oom")
    assert found.ranks == (3, 4, 5)
    assert "ranks 3-5 ran out of memory in forward of step 812: rank 3 first: asked for 2.00 GiB" in found.sentence
    lab.send([], [box(0, phase="optimizer")])
    assert sorted(one.ranks for one in lab.found("oom")) == [(0,), (3, 4, 5)]


def test_a_rank_that_is_gone_or_has_no_card_still_tells() -> None:
    lab = Lab(2, fsdp_plan(2))
    lab.card_changes = {"plan": None, "inventory": None}
    lab.send([], [lab.card(1), box(1)])
    found = lab.the("oom")
    assert found.ranks == (1,)
    assert found.advice == "The rank's post-mortem has what it held."


def test_remedies_are_the_smallest_changes_that_make_room() -> None:
    lab = Lab(8, fsdp_plan(8, batch=replace(fsdp_plan(8).batch, micro_batch=4)))
    card = lab.card(0)
    small = remedies(card, GIB)
    assert small[0][0] == "micro-batch 2 instead of 4 (accumulate 2)"
    assert all(saved >= GIB for _, saved in small)
    large = remedies(card, 75 * GIB)
    assert large
    assert large[0][0] != small[0][0], "half a batch is not enough"
    impossible = remedies(card, 900 * GIB)
    assert impossible, "then what saves the most"
    assert impossible == sorted(impossible, key=lambda one: -one[1])
    assert remedies(without_plan(card), GIB) == []


def without_plan(card: Card) -> Card:
    return msgspec.structs.replace(card, plan=None, revision=9)


def test_remedies_name_sharding_for_what_is_whole() -> None:
    lab = Lab(8, ddp_plan(8), llama())
    words = [one for one, _ in remedies(lab.card(0), 90 * GIB)]
    assert "FSDP full shard instead of DDP" in words


def test_remedies_are_remembered() -> None:
    card = Lab(8, fsdp_plan(8), seed=77).card(0)
    first = remedies(card, GIB)
    began = time.perf_counter()
    for _ in range(100):
        assert remedies(card, GIB) is first
    assert time.perf_counter() - began < 0.1


# -- fragmentation ---------------------------------------------------------------------------------------------------


def broken(retries: int = 3, size: int = 10 * GIB, **more: object) -> Lab:
    return Lab(
        changes=[add(1, "cache", size)],
        retries=lambda rank, step: retries * (step > 6) * (rank == 1),
        inactive_split=lambda rank, step: 9 * GIB if rank == 1 else 96 * MIB,
        **more,  # type: ignore[arg-type]
    ).run(12)


def test_a_cache_in_pieces_is_told_with_its_retries() -> None:
    (found,) = broken().found("fragmentation")
    assert (found.ranks, found.severity, found.subject) == ((1,), "warning", "split")
    told = "reserved but unused at the peak, 9.0 GiB of it in split blocks; 3 retries in the last minute"
    assert told in found.sentence
    assert "expandable_segments:True" in found.advice


def test_expandable_segments_are_not_advised_twice() -> None:
    (found,) = broken(allocator=replace(CUDA, expandable=True)).found("fragmentation")
    assert "expandable_segments:True" not in found.advice


def test_a_cache_without_retries_is_none_while_there_is_room() -> None:
    assert broken(0).found("fragmentation") == []
    (found,) = broken(0, 20 * GIB, other=16 * GIB).found("fragmentation")
    assert "retries" not in found.sentence, "the device is full"


def test_old_retries_do_not_count() -> None:
    lab = broken()
    lab.clock.advance(70)
    assert lab.run(3).found("fragmentation") == []


def test_malloc_is_not_looked_at() -> None:
    plan = replace(ddp_plan(2), host=True)
    lab = Lab(2, plan, gpt(), activations=GIB, host=True, changes=[add(-1, "cache", 8 * GIB)],
              retries=lambda rank, step: step, inactive_split=lambda rank, step: 8 * GIB)  # fmt: skip
    assert lab.run(12).found("fragmentation") == []


def test_lengths_are_no_forecast_without_room_to_tell() -> None:
    lab = Lab(tokens=lambda rank, step: None).run(12)
    assert lab.found("forecast") == []
    assert Lab(changes=[add(0, "activations", GIB, ALIVE)]).run(12).found("forecast") == []
