"""A rank that holds more than its peers: found, sized and named, unless its budget or its tokens explain it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from fake_job import GIB, MIB
from memory_lab import ALIVE, Held, Lab, add, ddp_plan, fsdp_plan, gpt

from ranktop.budget.plan import Layout, Plan
from ranktop.budget.terms import MOMENTS, Memory
from ranktop.tui.session.findings.finding import Finding
from ranktop.wire.schema import Sample


def evidence(finding: Finding) -> dict[str, object]:
    return {one.name: one.value for one in finding.evidence}


def test_a_healthy_job_is_silent() -> None:
    assert Lab().run(20).found() == []


def test_six_percent_more_activations_are_found_and_named() -> None:
    lab = Lab()
    usual = lab.held(0, "forward_end", 0.0)["activations"]
    lab.changes.append(add(5, "activations", usual * 6 // 100, ALIVE))
    found = lab.run(12).the("memory")
    assert (found.ranks, found.subject, found.severity, found.short) == ((5,), "activations", "warning", "act +6%")
    assert found.sentence.startswith("rank 5 holds 1.8 GiB more activations than its 7 peers (+6%: ")
    assert found.peers == (0, 1, 2, 3, 4, 6, 7)
    assert evidence(found)["too much"] == pytest.approx(usual * 0.06, rel=0.1)
    assert found.plot is not None
    assert found.plot.title == found.evidence[0].name == "activations at the end of forward"
    assert len(found.plot.at) == len(found.plot.lines[0][1])
    assert "extra copy" not in found.sentence


def test_a_difference_counts_from_the_fourth_step_that_shows_it_and_knows_its_beginning() -> None:
    lab = Lab(changes=[add(2, "activations", 6 * GIB, since=11)]).run(13)
    assert lab.found() == []
    found = lab.run(1).the("memory")
    assert found.step == 11
    assert found.since == pytest.approx(lab.clock.now - 3 - 0.1)
    # The window moves on, and the beginning stays.
    assert lab.session.findings.of(lab.snapshot())[0].step == 11
    lab.run(60)
    assert lab.session.findings.of(lab.snapshot())[0].step == 11
    lab.changes.clear()
    assert lab.run(5).found() == []


def test_one_step_that_held_more_is_none() -> None:
    lab = Lab().run(9)
    lab.changes.append(add(2, "activations", 20 * GIB))
    lab.run(1)
    lab.changes.clear()
    for _ in range(5):
        assert lab.run(1).found() == []


@pytest.mark.parametrize(
    ("category", "moments", "short"),
    [
        ("parameters", MOMENTS, "par +80%"),
        ("gradients", MOMENTS, "grad +80%"),
        ("optimizer", MOMENTS, "opt +40%"),
        ("buffers", MOMENTS, "buf +3.0G"),
        ("runtime", MOMENTS, "runtime +3.0G"),
    ],
)
def test_every_category_is_told_in_its_words(category: str, moments: tuple[str, ...], short: str) -> None:
    found = Lab(changes=[add(6, category, 3 * GIB, moments)]).run(10).the("memory")
    assert (found.subject, found.ranks, found.short) == (category, (6,), short)
    assert "3.0 GiB more" in found.sentence
    assert found.advice


def test_a_large_cache_is_worth_knowing_and_no_warning() -> None:
    found = Lab(changes=[add(1, "cache", 12 * GIB)]).run(10).the("memory")
    assert (found.severity, found.subject, found.ranks) == ("info", "cache", (1,))


def test_an_extra_copy_of_the_model_is_recognised_by_its_size() -> None:
    plan, whole = ddp_plan(4), gpt().numel * 4
    lab = Lab(4, plan, gpt(), activations=8 * GIB, changes=[add(3, "activations", whole)]).run(10)
    found = lab.the("memory")
    assert found.ranks == (3,)
    assert "as much as the model's parameters: an extra copy?" in found.sentence
    assert evidence(found)["whole model's parameters"] == whole


def test_two_ranks_are_compared_by_their_ratio_with_low_confidence() -> None:
    plan = ddp_plan(2)
    lab = Lab(2, plan, gpt(), activations=8 * GIB, changes=[add(1, "activations", GIB, ALIVE)]).run(10)
    assert lab.found() == [], "12 % over in one of two: who could say which is wrong"
    lab = Lab(2, plan, gpt(), activations=8 * GIB, changes=[add(1, "activations", 3 * GIB)]).run(10)
    found = lab.the("memory")
    assert (found.ranks, found.confidence, found.short) == ((1,), "low", "act +38%")


def zero_redundancy(ranks: int) -> Plan:
    return replace(ddp_plan(ranks), strategy="zero-redundancy", zero_redundancy=True)


def test_uneven_shards_are_expected_and_the_same_beyond_them_is_not() -> None:
    plan = zero_redundancy(8)
    lab = Lab(8, plan, gpt(), activations=8 * GIB).run(10)
    sizes = {lab.held(rank, "step_end", 0.0)["optimizer"] for rank in range(8)}
    assert max(sizes) - min(sizes) >= 100 * MIB, "the states are uneven"
    assert lab.found() == []
    smallest = min(range(8), key=lambda rank: lab.held(rank, "step_end", 0.0)["optimizer"])
    beyond = Lab(8, plan, gpt(), activations=8 * GIB, changes=[add(smallest, "optimizer", 500 * MIB)]).run(10)
    found = beyond.the("memory")
    assert (found.ranks, found.subject) == ((smallest,), "optimizer")


def staged(rank: int, plan: Plan) -> Plan:
    return replace(plan, layout=replace(plan.layout, pipeline_rank=rank // 4, replicate_rank=rank % 4))


def test_pipeline_stages_hold_what_is_theirs() -> None:
    plan = replace(ddp_plan(8), layout=Layout(world_size=8, replicate=4, pipeline=2), strategy="pp", ddp=None)
    stage = [add(rank, "activations", 9 * GIB, ALIVE) for rank in range(4)]
    logits = [add(rank, "activations", 4 * GIB, ("backward_start",)) for rank in range(4, 8)]
    lab = Lab(8, plan, gpt(), activations=8 * GIB, place=staged, changes=[*stage, *logits]).run(10)
    assert lab.found() == []
    lab.changes.append(add(1, "activations", 3 * GIB, ALIVE))
    found = lab.run(5).the("memory")
    assert found.ranks == (1,)
    assert "than its 3 peers of stage 0" in found.sentence
    assert found.peers == (0, 2, 3)


def test_tokens_explain_activations() -> None:
    lab = Lab(tokens=lambda rank, step: 6144 if rank == 3 else 4096).run(12)
    assert lab.found() == []
    lab.changes.append(add(3, "activations", 20 * GIB, ALIVE))
    found = lab.run(5).the("memory")
    assert found.ranks == (3,)
    assert "at the same number of tokens" in found.sentence


@pytest.mark.parametrize("seed", range(5))
def test_lengths_that_vary_are_no_finding_and_a_leak_among_them_is(seed: int) -> None:
    def tokens(rank: int, step: int) -> int:
        return 1024 + (rank * 7919 + step * 104729 + seed * 31) % 7000

    lab = Lab(tokens=tokens, seed=seed).run(40)
    assert lab.found() == []
    lab.changes.append(add(4, "activations", 8 * GIB, ALIVE))
    found = lab.run(6).the("memory")
    assert found.ranks == (4,)
    assert evidence(found)["too much"] == pytest.approx(8 * GIB, rel=0.25)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_lengths_that_vary_and_are_not_known_are_no_finding(ranks: int) -> None:
    def tokens(rank: int, step: int) -> int:
        return 1024 + (rank * 7919 + step * 104729) % 7000

    class Silent(Lab):
        def sample(self, rank: int) -> Sample:
            return without_tokens(super().sample(rank))

    lab = Silent(ranks, fsdp_plan(ranks), tokens=tokens)
    for _ in range(40):
        assert lab.run(1).found() == []


def without_tokens(sample: Sample) -> Sample:
    return msgspec.structs.replace(sample, steps=tuple(replace(one, tokens=None) for one in sample.steps))


def test_all_ranks_hold_another_copy() -> None:
    lab = Lab(4, ddp_plan(4), gpt(), activations=8 * GIB, changes=[add(-1, "parameters", gpt().numel * 4)]).run(8)
    found = lab.the("memory")
    assert found.sentence == "all 4 ranks hold 1.1 GiB more parameters than DDP expects (an extra copy of the model?)"
    assert (found.ranks, found.severity) == ((0, 1, 2, 3), "warning")


def test_a_second_model_on_all_ranks_is_worth_knowing() -> None:
    whole = 8_030_261_248 * 2
    lab = Lab(changes=[add(-1, "activations", whole)]).run(8)
    found = lab.the("memory")
    assert (found.severity, found.subject, found.ranks) == ("info", "kept", tuple(range(8)))
    assert "15.0 GiB" in found.sentence
    assert "the model's parameters in 16 bits" in found.sentence


def test_hosts_have_other_floors() -> None:
    def lab(size: int, category: str = "activations", ranks: int = 4) -> list[Finding]:
        changes = [add(1, category, size)]
        return Lab(
            ranks, replace(ddp_plan(ranks), host=True), gpt(), activations=100 * MIB, host=True, changes=changes,
            runtime=400 * MIB,
        ).run(10).found()  # fmt: skip

    assert lab(12 * MIB) == [], "malloc's and Python's"
    assert lab(60 * MIB, "runtime") == []
    (found,) = lab(120 * MIB)
    assert (found.rule, found.subject, found.ranks) == ("memory", "activations", (1,))
    (found,) = lab(600 * MIB, "runtime")
    assert (found.subject, found.short) == ("runtime", "runtime +598M")
    (found,) = lab(gpt().numel * 4, "runtime", 2)
    assert "an extra copy?" in found.sentence


@pytest.mark.parametrize("ranks", [2, 4])
def test_pages_that_were_never_touched_put_no_rank_out_of_line(ranks: int) -> None:
    """A buffer of a GiB that ZeRO asks malloc for takes no room: then nothing seems to be left for the process."""

    class Untouched(Lab):
        def memory(self, rank: int, table: Held, most: int, cache: int) -> Memory:
            held = super().memory(rank, table, most, cache)
            if rank != 1:
                return held
            assert held.activations is not None
            assert held.runtime is not None
            return replace(held, activations=held.activations + held.runtime, runtime=0)

    lab = Untouched(ranks, replace(ddp_plan(ranks), host=True), gpt(), host=True, runtime=400 * MIB)
    assert lab.run(10).found() == []


def test_unknown_categories_are_skipped() -> None:
    class Unknown(Lab):
        def memory(self, rank: int, table: Held, most: int, cache: int) -> Memory:
            return replace(super().memory(rank, table, most, cache), runtime=None, free=None, activations=None)

    lab = Unknown(changes=[add(3, "parameters", 3 * GIB)]).run(10)
    assert lab.the("memory").subject == "parameters"


def test_without_cards_samples_or_tables_nothing_is_said() -> None:
    lab = Lab(2, fsdp_plan(2))
    assert lab.found() == []
    lab.card_changes = {"plan": None, "inventory": None}
    lab.send([], [lab.card(rank) for rank in range(2)])
    lab.run(10)
    assert lab.found() == []


def test_many_ranks_that_hold_more_are_one_finding() -> None:
    changes = [add(rank, "activations", (4 + rank % 2) * GIB, ALIVE) for rank in range(9)]
    found = Lab(24, ddp_plan(24), gpt(), activations=20 * GIB, changes=changes).run(8).the("memory")
    assert found.ranks == tuple(range(9))
    assert found.peers == tuple(range(9, 24))
    assert found.sentence.startswith("ranks 0-8 hold ")
    assert found.sentence.endswith(" GiB more activations than the other 15")


@pytest.mark.parametrize("known", [True, False])
def test_a_jump_of_one_of_two_ranks_is_soon_found(known: bool) -> None:
    class Told(Lab):
        def sample(self, rank: int) -> Sample:
            return super().sample(rank) if known else without_tokens(super().sample(rank))

    lab = Told(2, ddp_plan(2), gpt(), activations=8 * GIB, changes=[add(1, "activations", 4 * GIB, since=15)]).run(18)
    for _ in range(20):
        assert lab.run(1).the("memory").ranks == (1,)
