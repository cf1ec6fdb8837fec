"""Who others wait for: looks and phases together, few events, what is kept from look to look."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from lockstep import Lockstep

from ranktop.tui.session.findings.arrival import of as arrivals
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.pace import of as paces
from ranktop.tui.session.findings.scene import scene
from ranktop.tui.session.findings.signs import at_least, both

TIME_RULES = ("straggler", "tokens", "hang", "pause")
BACKWARD = 0.16
"""Seconds of work in backward."""


def findings(job: Lockstep, steps: int) -> list[Finding]:
    session, _ = job.run(steps).session()
    found = [finding for finding in session.snapshot().findings if finding.rule in TIME_RULES]
    assert not session.failure
    return found


def slower(seconds: float) -> dict[tuple[int, str], float]:
    return {(3, "backward"): 1 + seconds / BACKWARD}


@pytest.mark.parametrize(("strategy", "ranks"), [("fsdp2", 8), ("fsdp2", 32), ("zero3", 16), ("ddp", 32)])
def test_eight_percent_of_all_computing_are_found_in_thirty_steps(strategy: str, ranks: int) -> None:
    """Little of it is seen in phases, and four looks a second see few of the waits: together they are enough."""
    rank = ranks // 2 + 1
    slow = {(rank, phase): 1.08 for phase in ("forward", "backward", "optimizer")}
    (found,) = findings(Lockstep(strategy, ranks, slow=slow, scale=3.4, noise=0.01, seed=1), 30)
    assert (found.rule, found.ranks) == ("straggler", (rank,))
    assert " waiting about " in found.sentence
    assert 4 <= float(found.short.removeprefix("slow +").removesuffix("%")) <= 12


@pytest.mark.parametrize(("strategy", "scale", "seed"), [("fsdp2", 1.0, 22), ("fsdp2", 0.3, 41), ("single", 0.3, 46)])
def test_a_rank_that_is_late_in_each_tenth_step_is_no_straggler(strategy: str, scale: float, seed: int) -> None:
    """It costs a tenth of the time and more, but not in each step."""
    late = {(0, step): 0.3 for step in range(10, 400, 10)}
    assert not findings(Lockstep(strategy, late=late, scale=scale, seed=seed, noise=0.02), 150)


@pytest.mark.parametrize("length", [0.25, 0.5, 1.0])
def test_steps_of_a_multiple_of_the_spacing_of_the_looks_are_seen_whole(length: float) -> None:
    job = Lockstep("fsdp2", noise=0.0005, slow=slower(0.05))
    job.scale = length / (0.29 + 0.05 + 0.02)
    (found,) = findings(job, int(45 / length))
    assert found.ranks == (3,)


def test_what_was_worked_out_before_changes_nothing() -> None:
    """Looks judged as they come in say the same as all of them judged at once."""
    job = Lockstep("fsdp2", 16, slow=slower(0.04)).run(150)
    memory: dict[str, object] = {}
    said = []
    for until in (20.0, 25.0, 33.0, min(job.times)):
        session, _ = job.session(until)
        snapshot = session.snapshot()
        anew, kept = arrivals(scene(snapshot)), arrivals(scene(snapshot, memory=memory))
        assert anew == kept
        said.append(len(anew))
    assert all(said)


def test_the_chances_of_events() -> None:
    assert at_least(0, 100, 0.01) == 1.0
    assert at_least(1, 100, 0.01) == pytest.approx(1 - 0.99**100)
    exact = sum(math.comb(157, count) * 0.01**count * 0.99 ** (157 - count) for count in range(12, 158))
    assert at_least(12, 157, 0.01) == pytest.approx(exact, rel=1e-6)
    assert both(1.0, 1.0) == 1.0
    assert both(1e-4, 1e-4) == pytest.approx(1e-8 * (1 + 8 * math.log(10)))


def test_paces_of_many_ranks_are_worked_out_by_turns() -> None:
    """Beyond 256 ranks those of every other rank are anew at each look: none is older than one look."""
    session, _ = Lockstep("ddp", 260, scale=2.0).run(14).session()
    memory: dict[str, object] = {}
    looks = []
    for _ in range(4):
        snapshot = session.snapshot()
        (paced,) = paces(scene(snapshot, memory=memory))
        assert all(paced.members[rank].view is snapshot.ranks[rank] for rank in range(260))
        looks.append([paced.members[rank].seconds for rank in range(260)])
    kept = [[now is before for now, before in zip(*two, strict=True)] for two in pairwise(looks)]
    assert [sum(one) for one in kept] == [130, 130, 130]
    assert all(not (one and other) for two in pairwise(kept) for one, other in zip(*two, strict=True))
