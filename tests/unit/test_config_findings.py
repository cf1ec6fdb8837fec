"""Limits and rules that a person has changed: what is told then, and that it says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lockstep import Lockstep

from ranktop.tui.config.force import read
from ranktop.tui.session.findings import limits
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.keeper import Keeper
from ranktop.tui.session.findings.limits import Limits
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.status_json import job_json
from ranktop.tui.status_report import report
from ranktop.tui.view.findings_list import nothing_words

SLOW = {(3, "data"): 2.5}
"""Rank 3 reads 30 ms longer, of a step of 0.31 s: 10 %."""

NOTE = Finding(rule="pause", severity="info", ranks=(), sentence="validating")
HUNG = Finding(rule="hang", severity="critical", ranks=(1,), sentence="all wait for rank 1")


def at(now: float = 1.0) -> Snapshot:
    return Snapshot(now=now, job=None, state="stalled", ranks=())


@pytest.fixture(scope="module")
def job() -> Lockstep:
    return Lockstep("ddp", slow=SLOW).run(60)


def seen(job: Lockstep, found: Limits) -> Snapshot:
    limits.use(found)
    session, _ = job.session()
    snapshot = session.snapshot()
    assert not session.failure
    return snapshot


def asked(tmp_path: Path, text: str) -> tuple[Limits, list[str]]:
    path = tmp_path / "ranktop.toml"
    path.write_text(text)
    found = read({"RANKTOP_CONFIG": str(path)})
    return found.limits, [error.removeprefix(f"{path}:") for error in found.errors]


def test_a_higher_limit_tells_no_more_and_a_lower_one_says_that_it_is_lower(job: Lockstep) -> None:
    (usual,) = seen(job, Limits()).findings
    assert (usual.rule, usual.ranks) == ("straggler", (3,))
    assert not any(fact.name.startswith("limit") for fact in usual.evidence)
    assert seen(job, Limits({"straggler.min_share": 0.2})).findings == ()
    (told,) = seen(job, Limits({"straggler.min_share": 0.05, "tokens.min_share": 0.5})).findings
    assert told.evidence[:-1] == usual.evidence
    assert (told.evidence[-1].name, told.evidence[-1].value) == (
        "limit straggler.min_share", "5 % as configured, by default 4 %",
    )  # fmt: skip


def test_a_rule_that_is_off_is_not_told_and_the_empty_list_says_so(job: Lockstep) -> None:
    snapshot = seen(job, Limits(off=frozenset({"straggler", "tokens"}), floors={"growth": "critical"}))
    assert snapshot.findings == ()
    words = "not told, by the configuration here: straggler, tokens; growth below critical"
    assert nothing_words(snapshot)[-1] == words
    assert report(snapshot)[-1] == words
    told = job_json(snapshot)["findings_off"]
    assert told == {"straggler": "never", "tokens": "never", "growth": "critical"}
    assert job_json(seen(job, Limits()))["findings_off"] == {}


def test_what_is_not_told_explains_all_the_same() -> None:
    rules = {"pause": lambda scene: [NOTE], "hang": lambda scene: [HUNG]}
    keeper = Keeper(rules=rules, limits=Limits(off=frozenset({"pause"})))
    assert keeper.of(at()) == ()
    assert keeper.kinds == {"pause"}


@pytest.mark.parametrize(("floor", "told"), [("info", 3), ("warning", 2), ("critical", 1)])
def test_a_rule_is_told_from_a_severity_on(floor: str, told: int) -> None:
    found = [replace(HUNG, severity=severity, subject=severity) for severity in ("info", "warning", "critical")]
    keeper = Keeper(rules={"hang": lambda scene: found}, limits=Limits(floors={"hang": floor}))
    assert len(keeper.of(at())) == told


def test_a_session_judges_by_what_was_in_force_when_it_began() -> None:
    changed = Limits({"tokens.min_share": 0.5})
    before = Session()
    limits.use(changed)
    assert [session.snapshot().limits for session in (before, Session())] == [limits.DEFAULTS, changed]


def test_the_section_is_read(tmp_path: Path) -> None:
    found, errors = asked(
        tmp_path,
        "[findings]\ntokens = false\nhang = true\nstraggler.min_share = 0.1\n"
        'straggler.at_least = "critical"\n[findings.memory]\nmin_bytes = 1048576\nmin_share = 0.015\n'
        'at_least = "never"\n',
    )
    assert not errors
    assert found == Limits(
        {"straggler.min_share": 0.1, "memory.min_bytes": 1048576}, frozenset({"tokens", "memory"}),
        {"straggler": "critical"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("stragler = false", "no rule is named 'stragler'; did you mean straggler?"),
        ("straggler = 0.1", "straggler takes false (not told), or limits: straggler.at_least = ..."),
        ("straggler.minshare = 0.1", "straggler has no limit 'minshare'; did you mean min_share?"),
        ("death.x = 1", "death has no limit 'x': it has at_least"),
        ("straggler.min_share = 4",
         "straggler.min_share: 4 is not a number from 0.01 to 1 (a share of 1)"),
        ("straggler.min_share = true",
         "straggler.min_share: True is not a number from 0.01 to 1 (a share of 1)"),
        ("straggler.min_share = nan",
         "straggler.min_share: nan is not a number from 0.01 to 1 (a share of 1)"),
        ("growth.critical_steps = 1.5",
         "growth.critical_steps: 1.5 is not a whole number from 1 to 1000000000 (steps)"),
        ("growth.at_least = 'criticl'",
         "growth.at_least: 'criticl' is none of info, warning, critical, never; did you mean critical?"),
        ("hang.alone_warning = 90", "hang.alone_warning (90 s) is more than hang.alone_critical (60 s)"),
    ],
)  # fmt: skip
def test_a_wrong_limit_is_told(line: str, told: str, tmp_path: Path) -> None:
    assert asked(tmp_path, f"[findings]\n{line}\n")[1] == [f"2: {told}"]
