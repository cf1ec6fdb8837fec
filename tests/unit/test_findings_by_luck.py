"""Slow ranks that are none, or only lately: lengths by luck, too few CPUs, batches that grow; and a job's own past."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hand_made import advised
from lockstep import Lockstep

from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.past import slower_since
from ranktop.tui.session.findings.straggler import LASTING
from ranktop.tui.session.rings import Ring
from ranktop.wire.schema import Point

LOST = {"data": 0.02, "forward": 0.08, "backward": 0.16, "optimizer": 0.02}
"""Seconds of work in each phase of a step under DDP."""


def findings(job: Lockstep, steps: int = 150) -> list[Finding]:
    found = job.run(steps).session()[0].snapshot().findings
    assert all(advised(finding) for finding in found)
    return [finding for finding in found if finding.rule == "straggler"]


def test_batches_that_grow_are_not_more_for_the_rank_of_which_newer_steps_are_known() -> None:
    job = Lockstep("ddp", 2, spacing=0.0).run(120)
    for rank, steps in enumerate(job.steps):
        unseen = range(71, 116) if rank == 0 else ()
        steps[:] = [(at, replace(one, tokens=64 * one.index)) for at, one in steps if one.index not in unseen]
    session, _ = job.session()
    known = [median(step.tokens or 0 for step in view.steps[-32:]) for view in session.snapshot().ranks]
    assert known[0] < known[1] / 1.2
    assert [finding for finding in session.snapshot().findings if finding.rule == "tokens"] == []


@pytest.mark.parametrize(("strategy", "ranks", "lengths", "scale", "seed"), [
    ("single", 3, 0.9, 1.5, 3), ("single", 3, 0.3, 1.5, 3), ("single", 2, 0.9, 1.5, 3), ("fsdp2", 2, 0.9, 1.5, 1),
    ("ddp", 2, 0.6, 0.5, 1),
])  # fmt: skip
def test_few_ranks_whose_lengths_vary_by_luck_are_no_stragglers(
    strategy: str, ranks: int, lengths: float, scale: float, seed: int
) -> None:
    job = Lockstep(strategy, ranks, lengths=lengths, scale=scale, seed=seed).run(int(45 / scale))
    for second in (7, 8, 10, 12, 17, 20, 25, 30):
        found = job.session(min(float(second), *job.times))[0].snapshot().findings
        assert [one for one in found if one.severity != "info"] == []


@pytest.mark.parametrize("steps", [60, 150])
def test_two_ranks_that_fight_for_cpus_are_not_blamed_by_the_looks_alone(steps: int) -> None:
    slow = {(1, "backward"): 1.5}
    assert findings(Lockstep("ddp", 2, slow=slow), steps)
    assert not findings(Lockstep("ddp", 2, slow=slow, starved={0: 0.3, 1: 0.4}), steps)


@pytest.mark.parametrize(("starved", "told"), [({}, True), ({0: 0.3, 1: 0.4}, False)])
def test_of_two_ranks_that_fight_for_cpus_a_phase_must_show_more(starved: dict[int, float], told: bool) -> None:
    """A scheduler favours one of them for many seconds: 12 % of a step is its doing, 40 % is not."""
    slightly, much = {(0, "optimizer"): 2.6}, {(0, "optimizer"): 7.0}
    assert bool(findings(Lockstep("ddp", 2, slow=slightly, starved=starved), 60)) is told
    assert findings(Lockstep("ddp", 2, slow=much, starved=starved), 60)


def test_ranks_that_wait_in_a_collective_of_the_script_are_not_slow_in_the_phase_in_which_they_wait() -> None:
    """One rank is late after backward; the others wait for it in the next step's first collective, in data."""
    program = [
        ("join", "data", 0.0005), ("work", "data", 0.02), ("work", "forward", 0.16),
        ("join", "backward", 0.004), ("work", "backward", 0.06), ("work", "optimizer", 0.02),
    ]  # fmt: skip
    for seed in range(4):
        job = Lockstep("ddp", 3, program=program, slow={(1, "backward"): 2.0}, seed=seed, spacing=0.0)
        assert {finding.ranks for finding in findings(job)} <= {(1,)}


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_phase_that_has_become_slow_lately_is_named_as_soon_as_the_rank_is(phase: str) -> None:
    job = Lockstep("ddp", slow={(1, phase): 1 + 0.06 / LOST[phase]}, slow_from=60, seed=1).run(120)
    told = []
    for second in range(18, 32):
        found = job.session(float(second))[0].snapshot().findings
        told += [one for one in found if one.rule == "straggler" and one.ranks == (1,)]
    assert told
    words = {"data": "its data loading is slow", "optimizer": "in the optimizer"}.get(phase, f"in {phase}")
    assert all(words in one.sentence for one in told)


# -- past ----------------------------------------------------------------------------------------------------------


def past(*parts: tuple[int, float, int]) -> Ring:
    """(points, step time, activations) one after the other, a point a second, a step a point."""
    ring, at = Ring(), 0
    for count, seconds, activations in parts:
        for _ in range(count):
            at += 1
            wobble = 1 + 0.02 * (at * 7 % 5 - 2)
            ring.append(Point(float(at), at, seconds * wobble, 1, 1, activations, 1, 1, 1.0, 1))
    return ring


def test_stands_one_after_the_other_are_no_slower_pace() -> None:
    """The step that a stand made long is the last one that is known during the next stand, second after second."""
    ring, step = Ring(), 0
    for second in range(400):
        stands = second > 250
        step += 3 if not stands or second % 10 == 0 else 0
        ring.append(Point(float(second), step, 8.3 if stands else 0.3, 1, 1, 5, 1, 1, 1.0, 1))
    change = slower_since(ring)
    assert change is None or change.points < LASTING, "15 steps are known since then"


def test_when_steps_became_slower() -> None:
    change = slower_since(past((300, 0.31, 5), (200, 0.47, 5)))
    assert change is not None
    assert abs(change.step - 301) <= 3
    assert [change.before, change.after] == pytest.approx([0.31, 0.47], rel=0.03)
    assert change.activations == 1.0
    assert slower_since(past((500, 0.31, 5))) is None
    assert slower_since(past((300, 0.47, 5), (200, 0.31, 5))) is None
    assert slower_since(past((300, 0.31, 5), (5, 3.0, 5))) is None
    assert slower_since(past((4, 0.31, 5), (4, 0.9, 5))) is None
    assert slower_since(None) is None
    longer = slower_since(past((300, 0.31, 5), (200, 0.47, 8)))
    assert longer is not None
    assert longer.activations == pytest.approx(1.6)
