"""Who is slow, by how much, why and since when: simulated ranks wait for each other, waiting emerges by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hand_made import advised
from lockstep import PROGRAMS, Lockstep

from ranktop.probes.reading import DeviceDetail, NvLink
from ranktop.tui.session.findings.finding import Finding

STEPS = 60
TIME_RULES = ("straggler", "tokens", "hang", "pause")
LOST = {"data": 0.02, "forward": 0.08, "backward": 0.16, "optimizer": 0.02}
"""Seconds of work in each phase of the programs."""


def findings(job: Lockstep, steps: int = STEPS, rule: str | None = None) -> list[Finding]:
    session, _ = job.run(steps).session()
    found = [finding for finding in session.snapshot().findings if finding.rule in TIME_RULES]
    assert not session.failure
    assert all(advised(finding) for finding in found)
    return [finding for finding in found if rule in (None, finding.rule)]


def slower(phase: str, seconds: float, rank: int = 3) -> dict[tuple[int, str], float]:
    return {(rank, phase): 1 + seconds / LOST[phase]}


def number(finding: Finding, name: str) -> float:
    value = next(fact.value for fact in finding.evidence if fact.name == name)
    assert isinstance(value, int | float)
    return value


@pytest.mark.parametrize(
    ("strategy", "phase"),
    [
        ("ddp", "data"), ("ddp", "forward"), ("ddp", "optimizer"),
        ("fsdp2", "data"), ("fsdp2", "optimizer"), ("zero3", "data"), ("zero1", "data"), ("zero1", "forward"),
        ("single", "data"), ("single", "forward"), ("single", "optimizer"),
    ],
)  # fmt: skip
def test_a_slow_phase_outside_of_the_waiting_is_named_with_its_cost(strategy: str, phase: str) -> None:
    (found,) = findings(Lockstep(strategy, slow=slower(phase, 0.03)))
    assert (found.rule, found.ranks, found.severity) == ("straggler", (3,), "warning")
    assert found.subject == phase
    assert found.confidence == "high"
    assert number(found, "cost of each step") == pytest.approx(0.03, rel=0.15)
    assert found.peers == (0, 1, 2, 4, 5, 6, 7)
    assert found.plot is not None
    assert found.plot.at == tuple(range(8))
    cause = "its data loading is slow" if phase == "data" else "cause unknown"
    assert found.sentence.startswith("rank 3 keeps the 7 others waiting 3")
    assert cause in found.sentence


@pytest.mark.parametrize(
    ("strategy", "phase", "seconds"),
    [
        ("ddp", "backward", 0.06), ("fsdp2", "forward", 0.06), ("fsdp2", "backward", 0.06), ("zero3", "forward", 0.08),
        ("zero3", "backward", 0.08), ("zero3", "optimizer", 0.08), ("zero1", "optimizer", 0.08),
        ("single", "backward", 0.06),
    ],
)  # fmt: skip
def test_a_rank_that_is_slow_where_all_wait_is_seen_by_its_arrival(strategy: str, phase: str, seconds: float) -> None:
    """Its phases take as long as the others'; in which it is behind is told by what its samples caught it in."""
    (found,) = findings(Lockstep(strategy, slow=slower(phase, seconds)), 180)
    assert (found.rule, found.ranks, found.subject) == ("straggler", (3,), phase)
    assert found.confidence == "medium"
    assert number(found, "cost of each step") == pytest.approx(seconds, rel=0.5)


def test_where_samples_do_not_tell_the_phase_all_that_it_may_be_are_named() -> None:
    job = Lockstep("fsdp2", slow=slower("forward", 0.06))
    job.caught = False
    (found,) = findings(job, 180)
    assert found.subject == "forward or backward"


@pytest.mark.parametrize("ranks", [8, 64, 256])
def test_eight_percent_are_found_in_thirty_steps(ranks: int) -> None:
    """One rank does 8 % more work per step than the others, all of it in forward."""
    job = Lockstep("ddp", ranks, slow=slower("forward", 0.08 * 0.28, ranks // 2 + 1), scale=2.0)
    (found,) = findings(job, 30)
    assert (found.rule, found.ranks, found.subject) == ("straggler", (ranks // 2 + 1,), "forward")
    assert 6 <= float(found.short.removeprefix("slow +").removesuffix("%")) <= 10


def test_two_slow_ranks_are_both_named_each_with_its_cause() -> None:
    job = Lockstep("ddp", slow={**slower("data", 0.04, 2), **slower("forward", 0.03, 6)})
    found = {finding.ranks: finding for finding in findings(job)}
    assert sorted(found) == [(2,), (6,)]
    assert (found[2,].subject, found[6,].subject) == ("data", "forward")
    assert number(found[2,], "cost of each step") == pytest.approx(0.04, rel=0.15)


def test_a_slow_node_is_one_finding() -> None:
    slow = {(rank, "forward"): 1.4 for rank in range(8, 16)}
    (found,) = findings(Lockstep("ddp", 32, slow=slow))
    assert found.ranks == tuple(range(8, 16))
    assert found.sentence.startswith("ranks 8-15 keep the 24 others waiting up to ")


def test_a_rank_that_only_its_arrival_shows_stands_out_in_its_plot_and_is_dated_by_the_steps_that_show_it() -> None:
    slow = {(3, phase): 1.2 for phase in ("forward", "backward", "optimizer")}
    (found,) = findings(Lockstep("fsdp2", slow=slow, scale=3.4, noise=0.01, seed=1), 40)
    assert found.plot is not None
    own, usual = ([value or 0.0 for value in line] for _, line in found.plot.lines)
    assert own[3] == pytest.approx(number(found, "own work"))
    assert all(own[rank] < usual[rank] + 0.3 * (own[3] - usual[3]) for rank in range(8) if rank != 3)
    assert found.step is not None
    assert found.since is not None
    assert 4 <= found.step <= 12, "the window begins after the warm-up, and nothing changed within it"


@pytest.mark.parametrize("ranks", [2, 3])
def test_among_two_or_three_it_must_be_more_and_confidence_is_low(ranks: int) -> None:
    assert not findings(Lockstep("ddp", ranks, slow=slower("data", 0.015, 1)))
    (found,) = findings(Lockstep("ddp", ranks, slow=slower("data", 0.05, 1)))
    assert (found.ranks, found.confidence, found.subject) == ((1,), "low", "data")


@pytest.mark.parametrize("strategy", list(PROGRAMS))
def test_sound_jobs_raise_nothing(strategy: str) -> None:
    """Twenty seeds each, quiet and noisy, with lengths that vary and with spikes."""
    kinds = (
        {"noise": 0.02}, {"noise": 0.1}, {"lengths": 0.3}, {"spikes": 0.02},
        {"noise": 0.15, "lengths": 0.2, "spikes": 0.01},
    )  # fmt: skip
    told = []
    for seed in range(20):
        kind = kinds[seed % len(kinds)]
        ranks = (2, 4, 8, 8)[seed // len(kinds) % 4]
        job = replace(Lockstep(strategy, ranks, seed=seed), **kind)  # type: ignore[arg-type]
        told += [(seed, finding.sentence) for finding in findings(job)]
    assert not told


def test_a_rank_that_logs_and_saves_now_and_then_is_no_straggler() -> None:
    late = {(0, step): 3.0 if step % 40 == 0 else 0.3 for step in range(10, 121, 10)}
    assert not findings(Lockstep("ddp", late=late), 120)


def test_too_few_steps_say_nothing() -> None:
    assert not findings(Lockstep("ddp", slow=slower("forward", 0.2), scale=3.0), 10)


def test_a_fast_rank_is_no_straggler() -> None:
    """A rank with less work in its optimizer, as uneven shards give, waits longer for the averaged loss."""
    assert not findings(Lockstep("single", slow={(3, "optimizer"): 0.2}))
    assert not findings(Lockstep("ddp", slow={(3, "forward"): 0.6}))


def test_slow_since_when() -> None:
    job = Lockstep("ddp", slow=slower("forward", 0.1), slow_from=101)
    (found,) = findings(job, 200)
    assert found.step is not None
    assert abs(found.step - 101) <= 4
    began = 1_000.0 + job.steps[3][100][0]
    assert found.since == pytest.approx(began, abs=2.0)
    assert number(found, "step time before") == pytest.approx(0.29, rel=0.1)


def test_a_job_that_is_slower_than_before_is_told_for_information() -> None:
    (found,) = findings(Lockstep("ddp", scale_from=(150, 1.5)), 300)
    assert (found.rule, found.ranks, found.severity, found.subject) == ("straggler", (), "info", "past")
    assert "all ranks are slower than before" in found.sentence
    assert found.step is not None
    assert abs(found.step - 150) <= 6


# -- causes --------------------------------------------------------------------------------------------------------


def cause(**options: object) -> Finding:
    slow = options.pop("slow", slower("forward", 0.03))
    job = replace(Lockstep("ddp"), slow=slow, **options)  # type: ignore[arg-type]
    found = findings(job, rule="straggler")
    assert [finding.ranks for finding in found] == [(3,)]
    return found[0]


def test_clocks_that_are_held_down() -> None:
    hot = {"throttle": ("hardware thermal slowdown",), "sm_clock": 1200}
    found = cause(readings={3: hot})
    assert found.subject == "throttle"
    assert "its clocks are held down (hardware thermal slowdown), 1,200 MHz beside 1,755; " in found.sentence
    assert found.advice.startswith("Look at the cooling")


def test_a_power_cap_counts_only_with_lower_clocks() -> None:
    assert cause(readings={3: {"throttle": ("software power cap",)}}).subject == "forward"
    capped = cause(readings={3: {"throttle": ("software power cap",), "sm_clock": 1600}})
    assert capped.subject == "throttle"
    assert "its clocks are lower (software power cap), 1,600 MHz beside 1,755" in capped.sentence


def test_low_clocks_are_no_cause_of_slow_data() -> None:
    assert cause(readings={3: {"sm_clock": 900}}, slow=slower("data", 0.03)).subject == "data"


def test_a_degraded_link() -> None:
    links = tuple(NvLink(link, up=True) for link in range(4))
    good = DeviceDetail(pcie_generation=5, pcie_max_generation=5, pcie_width=16, pcie_max_width=16, nvlinks=links)
    narrow = replace(good, pcie_width=4)
    down = replace(good, nvlinks=(*links[:3], NvLink(3, up=False)))
    others = dict.fromkeys(range(8), good)
    assert "its link is degraded: PCIe width 4 instead of 16; " in cause(details={**others, 3: narrow}).sentence
    assert "its link is degraded: NVLinks up 3 instead of 4; " in cause(details={**others, 3: down}).sentence
    assert cause(details=others).subject == "forward"
    # All links idle at a lower generation: that is how they save power.
    idle = replace(good, pcie_generation=1)
    assert cause(details=dict.fromkeys(range(8), idle)).subject == "forward"


def test_more_tokens_explain_more_work_and_only_as_much() -> None:
    found = cause(slow={}, tokens={3: 6144})
    assert found.subject == "tokens"
    assert "a step: it has 50 % more tokens; " in found.sentence
    # A tenth more tokens does not explain half as much work again.
    assert cause(slow=slower("forward", 0.05), tokens={3: 4506}).subject == "forward"


def test_a_starved_host() -> None:
    assert "its training thread waits for a CPU 40 % of the time; " in cause(starved={3: 0.4}).sentence
    assert cause(starved=dict.fromkeys(range(8), 0.4)).subject == "forward"
    assert cause(starved={3: 0.4}, slow=slower("data", 0.03)).subject == "data"


# -- tokens --------------------------------------------------------------------------------------------------------


def tokens_told(**options: object) -> list[Finding]:
    """Of ranks whose work does not show it: attention is not all of it, and short steps hide it."""
    job = replace(Lockstep("ddp", 8), **options)  # type: ignore[arg-type]
    return findings(job, rule="tokens")


def test_more_or_fewer_tokens_are_told() -> None:
    tiny = [
        ("work", "data", 0.3),
        ("work", "forward", 0.001),
        ("start", "backward", 0.001),
        ("finish", "backward", 0.0),
    ]
    program = [*tiny, ("work", "optimizer", 0.02)]
    (found,) = tokens_told(program=program, tokens={5: 6144})
    assert (found.ranks, found.severity, found.short, found.confidence) == ((5,), "info", "tok +50%", "high")
    assert found.sentence == "rank 5 gets 6,144 tokens per step, 50 % more than its peers (4,096)"
    (found,) = tokens_told(program=program, tokens={5: 2048})
    assert found.short == "tok -50%"
    (found,) = tokens_told(program=program, ranks=2, tokens={1: 6144})
    assert (found.ranks, found.confidence) == ((1,), "low")
    assert not tokens_told(program=program, tokens={5: 4400})


def test_tokens_that_make_a_rank_slow_are_told_once() -> None:
    found = findings(Lockstep("ddp", tokens={3: 6144}))
    assert [(finding.rule, finding.subject) for finding in found] == [("straggler", "tokens")]
