"""Findings from look to look: since when they stand, in which order, and what a broken rule costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lockstep import Lockstep

from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.keeper import Keeper
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.state import Snapshot

SLOW = Finding(rule="straggler", severity="warning", ranks=(3,), sentence="rank 3 is slow")
HUNG = Finding(rule="hang", severity="critical", ranks=(1,), sentence="all wait for rank 1", since=2.0)


def at(now: float) -> Snapshot:
    return Snapshot(now=now, job=None, state="running", ranks=())


def test_a_finding_keeps_its_beginning_while_it_stands() -> None:
    told: list[Finding] = []
    keeper = Keeper(rules={"straggler": lambda scene: told})
    assert keeper.of(at(1.0)) == ()
    told.append(SLOW)
    assert [finding.since for finding in keeper.of(at(10.0))] == [10.0]
    told[:] = [replace(SLOW, sentence="rank 3 is slower")]
    (later,) = keeper.of(at(15.0))
    assert (later.since, later.sentence) == (10.0, "rank 3 is slower")
    told.clear()
    assert keeper.of(at(16.0)) == ()
    told.append(SLOW)
    assert [finding.since for finding in keeper.of(at(20.0))] == [20.0]


def test_the_gravest_come_first_and_a_rule_may_know_better_since_when() -> None:
    mixed = replace(SLOW, rule="versions")
    keeper = Keeper(rules={"versions": lambda scene: [mixed], "hang": lambda scene: [HUNG]})
    assert [(finding.rule, finding.since) for finding in keeper.of(at(9.0))] == [("hang", 2.0), ("versions", None)]
    assert [(finding.rule, finding.since) for finding in keeper.of(at(90.0))] == [("hang", 2.0), ("versions", None)]


def test_what_the_first_looks_find_may_be_older_and_is_dated_by_its_rule_alone() -> None:
    told: list[Finding] = [SLOW]
    keeper = Keeper(rules={"straggler": lambda scene: told})
    assert [finding.since for finding in keeper.of(at(100.0))] == [None]
    told.append(replace(SLOW, ranks=(4,)))
    assert [finding.since for finding in keeper.of(at(103.0))] == [None, None]
    told.append(replace(SLOW, ranks=(5,)))
    assert [finding.since for finding in keeper.of(at(110.0))] == [None, None, 110.0]
    told[:1] = [replace(SLOW, since=90.0, step=12)]
    assert [(finding.since, finding.step) for finding in keeper.of(at(111.0))][:2] == [(None, None), (90.0, 12)]


def test_a_time_without_a_step_gets_no_other_times_step() -> None:
    keeper = Keeper(rules={"hang": lambda scene: [HUNG]})
    picture = Lockstep("ddp").run(40).session()[0].snapshot()
    assert picture.step > 30
    assert [(finding.since, finding.step) for finding in keeper.of(picture)] == [(2.0, None)]


def test_a_broken_rule_costs_its_own_findings() -> None:
    def broken(scene: Scene) -> Iterable[Finding]:
        raise ZeroDivisionError("no steps")

    keeper = Keeper(rules={"broken": broken, "straggler": lambda scene: [SLOW]})
    assert [finding.rule for finding in keeper.of(at(1.0))] == ["straggler"]
    assert keeper.failure == "rule broken: ZeroDivisionError: no steps"


def test_rules_are_asked_when_due() -> None:
    asked: list[float] = []

    def rule(scene: Scene) -> Iterable[Finding]:
        asked.append(scene.now)
        return [SLOW] if scene.stands("straggler", "", (3,)) or scene.now == 1.0 else []

    keeper = Keeper(every=1.0, rules={"rule": rule})
    for now in (1.0, 1.5, 2.1, 2.2, 3.5):
        assert [finding.rule for finding in keeper.of(at(now))] == ["straggler"]
    assert asked == [1.0, 2.1, 3.5]


def test_rules_are_asked_at_once_when_the_job_comes_to_a_stand() -> None:
    asked: list[float] = []

    def rule(scene: Scene) -> Iterable[Finding]:
        asked.append(scene.now)
        return []

    keeper = Keeper(every=10.0, rules={"rule": rule})
    for now, state in ((1.0, "running"), (2.0, "running"), (3.0, "stalled"), (4.0, "stalled"), (5.0, "running")):
        keeper.of(replace(at(now), state=state))
    assert asked == [1.0, 3.0, 5.0]


def test_an_age_in_a_sentence_goes_on_with_every_picture() -> None:
    def stands_since_two(scene: Scene) -> Iterable[Finding]:
        return [replace(HUNG, sentence=f"for {scene.now - 2.0:.0f} s")] if 2.0 < scene.now < 6.0 else []

    keeper = Keeper(every=2.0, rules={"hang": stands_since_two})
    told = [[finding.sentence for finding in keeper.of(at(now))] for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)]
    assert told == [[], [], ["for 1 s"], ["for 2 s"], ["for 3 s"], [], []]
