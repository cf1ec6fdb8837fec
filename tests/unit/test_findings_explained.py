"""One fault, one finding: what explains what, and what it takes over."""

from __future__ import annotations

from typing import Any

from hand_made import at, ended, evidence, rank

from ranktop.tui.session.findings.explained import LINKS, unexplained
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.rules import RULES
from ranktop.wire.schema import Box

HERE = at(rank(number) for number in range(4))


def one(rule: str, *ranks: int, severity: str = "", **more: Any) -> Finding:
    usual = {"death": "critical", "oom": "critical", "hang": "critical", "pause": "info"}.get(rule, "warning")
    told = f"{rule} of {ranks} {more.get('subject', '')}".strip()
    return Finding(rule=rule, severity=severity or usual, ranks=ranks, sentence=told, **more)


def left(*found: Finding) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.rule, finding.ranks) for finding in unexplained(found, HERE)]


def test_findings_that_have_nothing_to_do_with_each_other_stay_as_they_are() -> None:
    found = [one("straggler", 3), one("memory", 1, subject="activations"), one("versions", 2, subject="torch")]
    assert unexplained(found, HERE) == found
    assert unexplained([], HERE) == []


def test_a_dead_rank_explains_why_the_job_stands_still() -> None:
    consequences = [one("hang", 0), one("straggler", 2), one("silent", 3), one("missing", 7), one("forecast", 1)]
    assert left(one("death", 1), *consequences) == [("death", (1,))]
    assert left(*consequences[1:4]) == [("straggler", (2,)), ("silent", (3,)), ("missing", (7,))]


def test_running_out_of_memory_and_dying_of_it_is_one_finding() -> None:
    facts = (Evidence("then ranks 0, 2", "failed"), Evidence("node", "n0"))
    death = one("death", 1, evidence=facts)
    (merged,) = unexplained([death, one("oom", 1, evidence=(Evidence("node", "n0"),)), one("hang", 0)], HERE)
    assert merged.rule == "oom"
    assert merged.evidence == (Evidence("node", "n0"), Evidence("how it ended", death.sentence), facts[0])
    assert left(death, one("oom", 2)) == [("death", (1,)), ("oom", (2,))]


def test_a_rank_that_only_lost_a_peer_which_ran_out_of_memory_is_no_second_finding() -> None:
    gone = "RuntimeError: Connection closed by peer"
    here = at([ended(0, "exception", 1, gone), rank(1, box=Box(rank=1, error="OutOfMemoryError"))])
    (kept,) = unexplained([one("death", 0, since=990.2), one("oom", 1, since=990.0)], here)
    assert (kept.rule, kept.ranks) == ("oom", (1,))
    own = at([ended(0, "exception", 1, "KeyError: 'x'"), rank(1)])
    assert len(unexplained([one("death", 0, since=990.2), one("oom", 1, since=990.0)], own)) == 2


def test_memory_that_ran_out_and_was_coped_with_explains_nothing_later() -> None:
    past = one("oom", 1, since=500.0)
    assert left(past, one("hang", 0, since=900.0)) == [("oom", (1,)), ("hang", (0,))]
    assert left(past, one("death", 1, since=900.0)) == [("oom", (1,)), ("death", (1,))]
    assert left(past, one("hang", 0, since=499.0)) == [("oom", (1,))]
    dead = at([rank(0), ended(1, "exception", 1, "OutOfMemoryError: x")])
    assert [finding.rule for finding in unexplained([past, one("hang", 0, since=900.0)], dead)] == ["oom"]


def test_a_job_that_never_began_waits_for_those_that_never_came() -> None:
    (kept,) = unexplained([one("missing", 3), one("hang", step=0)], HERE)
    assert (kept.rule, kept.severity, evidence(kept)["since then"]) == ("missing", "critical", "hang of ()")
    assert left(one("missing", 3), one("hang", step=7)) == [("missing", (3,)), ("hang", ())]
    assert left(one("missing", 3, severity="info"), one("hang", step=0)) == [("missing", (3,)), ("hang", ())]


def test_a_hang_names_the_rank_that_is_stopped() -> None:
    (hang,) = unexplained([one("silent", 2, evidence=(Evidence("process", "stopped"),)), one("hang", 2)], HERE)
    assert (hang.rule, evidence(hang)["its process"], evidence(hang)["process"]) == (
        "hang",
        "silent of (2,)",
        "stopped",
    )
    assert left(one("silent", 3), one("hang", 2)) == [("silent", (3,)), ("hang", (2,))]


def test_a_pause_is_no_hang_and_a_hang_has_no_stragglers() -> None:
    assert left(one("hang", 0), one("straggler", 1), one("pause", 1)) == [("pause", (1,))]
    assert left(one("straggler", 1), one("pause", 0)) == [("straggler", (1,)), ("pause", (0,))]
    everyone = one("pause", 0, 1, 2, 3)
    assert left(one("straggler", 1), everyone) == [("straggler", (1,)), ("pause", (0, 1, 2, 3))], "slow before as well"
    assert left(one("hang", 0), one("straggler", 1)) == [("hang", (0,))]
    assert left(one("silent", 1), one("straggler", 1), one("straggler", 2)) == [("silent", (1,)), ("straggler", (2,))]


def test_a_straggler_explains_the_cause_that_it_names_and_no_other() -> None:
    because = one("straggler", 3, evidence=(Evidence("cause", "tokens"),))
    (slow,) = unexplained([because, one("tokens", 3)], HERE)
    assert evidence(slow)["because"] == "tokens of (3,)"
    assert left(because, one("throttle", 3)) == [("straggler", (3,)), ("throttle", (3,))]
    assert left(because, one("tokens", 2)) == [("straggler", (3,)), ("tokens", (2,))]


def test_a_chain_ends_in_its_first_cause() -> None:
    chain = [one("memory", 3, subject="activations"), one("tokens", 3), one("straggler", 3, subject="tokens")]
    (slow,) = unexplained(chain, HERE)
    assert slow.rule == "straggler"
    assert evidence(slow)["therefore"] == "memory of (3,) activations"
    (end,) = unexplained([*chain, one("death", 1)], HERE)
    assert end.rule == "death"


def test_memory_is_explained_by_what_made_it_of_the_same_ranks_and_category() -> None:
    for rule, subject, category, other in (
        ("tokens", "", "activations", "gradients"),
        ("growth", "activations", "activations", "cache"),
        ("no_sync", "", "gradients", "activations"),
        ("checkpointing", "", "activations", "gradients"),
        ("growth", "activations", "kept", "cache"),
        ("offload", "optimizer", "optimizer", "activations"),
        ("fragmentation", "", "cache", "activations"),
        ("strays", "", "other", "activations"),
        ("strays", "", "runtime", "cache"),
    ):
        cause = one(rule, 3, subject=subject)
        assert left(cause, one("memory", 3, subject=category)) == [(rule, (3,))], rule
        assert len(left(cause, one("memory", 3, subject=other))) == 2, rule
        assert len(left(cause, one("memory", 2, subject=category))) == 2, rule


def test_what_was_not_sharded_explains_the_states_of_its_whole_group() -> None:
    whole = one("unsharded", 0, peers=(1, 2, 3))
    assert left(whole, one("memory", 2, subject="parameters")) == [("unsharded", (0,))]
    assert len(left(whole, one("memory", 2, subject="activations"))) == 2
    assert len(left(whole, one("memory", 5, subject="parameters"))) == 2


def test_a_lost_device_explains_what_its_rank_does() -> None:
    lost = one("device", 1, subject="lost", severity="critical")
    assert left(lost, one("hang", 1), one("throttle", 1), one("straggler", 1)) == [("device", (1,))]
    assert left(lost, one("hang", 2)) == [("device", (1,)), ("hang", (2,))]
    assert len(left(one("device", 1, subject="ailing"), one("straggler", 1))) == 2


def test_no_finding_explains_itself_by_way_of_others() -> None:
    known = {*RULES} | {link.by for link in LINKS}
    after: dict[str, set[str]] = {
        name: {rule for link in LINKS if link.by == name for rule in link.of} for name in known
    }

    def reaches(name: str, seen: frozenset[str]) -> None:
        assert name not in seen, seen
        for further in after.get(name, ()):
            reaches(further, seen | {name})

    for name in known:
        reaches(name, frozenset())
