"""What the screens of what is out of line draw: any finding, any size, in time, and without a word that is not true."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace

import pytest
from device_view import LIVE, playing, text
from fake_findings import Scripted, all_kinds, many, over_its_peers, usual_findings
from fake_gpu_jobs import hung_job, oom_job, staged_job
from fake_job import GIB, FakeJob, fsdp_job, host_job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lockstep import Lockstep
from msgspec import structs

from ranktop.tui.session.diff import differences, typical_peer
from ranktop.tui.session.findings.finding import CONFIDENCES, SEVERITIES, Evidence, Finding, Plot
from ranktop.tui.session.state import Snapshot
from ranktop.tui.status_report import fact_words
from ranktop.tui.view.diff import Pair, diff_lines
from ranktop.tui.view.evidence import Reading, evidence_lines
from ranktop.tui.view.evidence_plot import value_words
from ranktop.tui.view.findings import beginning, by_rank, since_words, strip, tally, whom
from ranktop.tui.view.findings_list import Pick, findings_lines, nothing_words
from ranktop.tui.view.grid import by_mesh, by_node, fold, labels
from ranktop.tui.view.imbalance import Grid, imbalance_lines
from ranktop.tui.view.imbalance_words import Words
from ranktop.tui.view.metric_times import own_work
from ranktop.tui.view.metrics import METRICS, field_of
from ranktop.tui.view.options import Options
from ranktop.tui.view.postmortem import Account, has_account, postmortem_lines
from ranktop.tui.view.text import ASCII, UNICODE, Glyphs, Line, length
from ranktop.wire.schema import Box, Call, End, Stack

SIZES = [(1, 1), (2, 3), (9, 4), (24, 7), (40, 12), (80, 24), (120, 40), (200, 60), (300, 3)]


def snap(job: FakeJob, seconds: float = 5.0) -> Snapshot:
    session, _, _ = playing(job, seconds)
    session.findings = Scripted(job)
    return session.snapshot()


def every_screen(picture: Snapshot, size: tuple[int, int], glyphs: Glyphs = UNICODE, rank: int = 0) -> list[list[Line]]:
    def options() -> Options:
        return Options(selected=rank, glyphs=glyphs, letters=glyphs.ascii)

    drawn = [findings_lines(picture, LIVE, Pick(), options(), size, "")]
    drawn += [evidence_lines(picture, LIVE, Reading(one), options(), size, "") for one in picture.findings[:12]]
    grids = [Grid(number, zoomed=zoomed) for number in range(len(METRICS)) for zoomed in (False, True)]
    drawn += [imbalance_lines(picture, LIVE, grid, options(), size, "") for grid in (*grids, Grid(mesh=True))]
    drawn.append(diff_lines(picture, LIVE, Pair(rank), options(), size, ""))
    drawn.append(postmortem_lines(picture, LIVE, Account(), options(), size, ""))
    return drawn


def fits(drawn: list[list[Line]], size: tuple[int, int]) -> bool:
    return all(len(lines) == size[1] and all(length(line) == size[0] for line in lines) for lines in drawn)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_screen_fills_every_size(size: tuple[int, int]) -> None:
    for job, rank in ((hung_job(), 5), (oom_job(), 3), (staged_job(), 13), (host_job(), 0)):
        assert fits(every_screen(snap(job), size, rank=rank), size)
    none = playing(fsdp_job())[0].snapshot()
    assert fits(every_screen(replace(none, ranks=(), job=None), size), size)


def numbers() -> st.SearchStrategy[float]:
    return st.floats(allow_nan=True, allow_infinity=True)


ANYTHING = st.text(max_size=60)
VALUES = st.one_of(st.none(), numbers(), st.integers(-(2**70), 2**70), ANYTHING)
FINDINGS = st.builds(
    Finding, rule=ANYTHING, severity=st.sampled_from(SEVERITIES),
    ranks=st.lists(st.integers(0, 40), max_size=8).map(lambda ranks: tuple(sorted(set(ranks)))), sentence=ANYTHING,
    short=st.text(max_size=14), subject=ANYTHING,
    evidence=st.lists(
        st.builds(Evidence, ANYTHING, VALUES, st.sampled_from(["B", "s", "%", "", "steps", "B/s"])), max_size=6
    ).map(tuple),
    advice=ANYTHING, confidence=st.sampled_from(CONFIDENCES), since=st.one_of(st.none(), st.floats(-1e6, 1e6)),
    step=st.one_of(st.none(), st.integers(0, 10**9)), peers=st.lists(st.integers(0, 40), max_size=8).map(tuple),
    plot=st.one_of(st.none(), st.integers(0, 200).flatmap(lambda size: st.builds(
        Plot, ANYTHING, st.sampled_from(["step", "rank"]), st.sampled_from(["B", "s", "%", ""]),
        st.just(tuple(range(size))),
        st.lists(
            st.tuples(ANYTHING, st.lists(st.one_of(st.none(), numbers()), min_size=size, max_size=size).map(tuple)),
            max_size=3,
        ).map(tuple),
    ))),
)  # fmt: skip


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(found=st.lists(FINDINGS, max_size=4), size=st.sampled_from(SIZES), ascii_only=st.booleans())
def test_any_finding_is_drawn(found: list[Finding], size: tuple[int, int], ascii_only: bool) -> None:
    picture = replace(CALM, findings=tuple(found))
    glyphs = ASCII if ascii_only else UNICODE
    drawn = every_screen(picture, size, glyphs)
    assert fits(drawn, size)
    assert all(length(line) == size[0] for line in strip(picture, glyphs, size[0], 3))
    assert not any(ord(character) < 32 for lines in drawn for line in lines for part, _ in line for character in part)


CALM = snap(fsdp_job(8))


def test_impossible_values_of_ranks_are_drawn() -> None:
    job = fsdp_job(8)
    nan = math.nan
    job.reading_changes.update({
        0: {"power": nan, "temperature": 2**62, "sm_clock": -5}, 1: {"power": math.inf, "process_used": 2**63 - 1},
        2: {"power": -1e308, "temperature": None},
    })  # fmt: skip
    job.specs[3] = replace(job.specs[3], activations=2**61, step_s=1e-9)
    job.boxes[4] = Box(
        rank=4, error="\x1b[31mOutOfMemoryError\n: " + "x" * 900, step=-1, asked=2**62, free=-5, limit=0,
        inputs=("\x07" * 40,), calls=tuple(Call("a" * 300, -1, "\x00f") for _ in range(32)),
    )  # fmt: skip
    job.stacks[5] = Stack(rank=5, step=10**9, waited=nan, calls=(), reason="\x1b]0;no\x07")
    job.ends[4] = End(rank=4, how="signal", code=-7)
    picture = replace(snap(job), findings=all_kinds())
    for size in SIZES:
        for rank in (0, 3, 4, 5):
            drawn = every_screen(picture, size, rank=rank)
            assert fits(drawn, size)
            whole = "".join(part for lines in drawn for line in lines for part, _ in line)
            assert "\x1b" not in whole
            assert re.search(r"\bnan\b", whole) is None


def test_a_row_says_the_gravest_and_the_strip_counts_the_rest() -> None:
    found = by_rank(all_kinds())
    assert found[5].rule == "hang"
    assert found[1].rule == "pause"
    picture = replace(CALM, findings=all_kinds())
    one = text(strip(picture, UNICODE, 100, 1)[0])
    assert one.startswith(" ✖ the job has stood for 42 s")
    assert "+7 more  ! findings" in one
    assert [text(line)[1] for line in strip(picture, UNICODE, 100, 3)] == ["✖", "!", "!"]
    assert strip(replace(CALM, findings=all_kinds()[-1:]), UNICODE, 100, 3) == [], "a note needs nobody"
    assert tally(all_kinds()) == "1 critical, 6 warnings, 1 note"
    assert whom(replace(all_kinds()[0], ranks=()), 10) == "job"
    assert whom(replace(many()[-1], ranks=tuple(range(0, 40, 2))), 10) == "20 ranks"


def test_nothing_is_called_sound_that_was_not_looked_at() -> None:
    assert nothing_words(CALM)[0] == "nothing out of line"
    assert "8 ranks, steps 1,201 to 1,206" in nothing_words(CALM)[1]
    job = fsdp_job(4)
    job.absent.update(range(4))
    assert nothing_words(snap(job))[0] == "nothing can be said yet"
    assert nothing_words(replace(CALM, ranks=(), job=None)) == ["nothing can be said yet", "no rank has been heard of"]
    alone = nothing_words(snap(fsdp_job(1)))
    assert "no peer" in " ".join(alone)
    staged = " ".join(nothing_words(snap(staged_job())))
    assert "of stage 0" in staged


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (None, "B", "unknown"), (math.nan, "s", "unknown"), (3 * GIB, "B", "3.0 GiB"), (0, "B", "0 B"),
        (0.0363, "s", "36.3 ms"), (2.314, "s", "2.31 s"), (300.0, "s", "5.0 min"), (0, "%", "0 %"),
        (1290, "MHz", "1,290 MHz"), (0.9, "", "0.9"), ("hardware slowdown", "", "hardware slowdown"),
        (12_400_000.0, "B/s", "11.8 MiB/s"), (10**400, "tokens", "unknown"),
    ],
)  # fmt: skip
def test_values_in_words(value: float | str | None, unit: str, words: str) -> None:
    assert value_words(value, unit) == words


def test_unknown_values_have_no_shade_and_the_middle_is_pale() -> None:
    job = fsdp_job(8)
    job.reading_changes[2] = {"power": None}
    power = next(metric for metric in METRICS if metric.key == "power")
    found = field_of(power, snap(job))
    assert found.level(2) is None
    assert 2 not in found.values
    assert {found.level(rank) for rank in (0, 4)} <= {3, 4, 5, 6}
    memory = field_of(METRICS[0], snap(fsdp_job()))
    assert memory.level(3) == 9
    assert all(memory.level(rank) in (4, 5) for rank in (0, 1, 2, 4, 5, 7))
    assert memory.level(6) in (7, 8)
    flat = field_of(METRICS[0], snap(staged_job()))
    assert flat.groups == 8, "each stage and tensor rank has its own middle"
    assert flat.level(13) == 9


def grid_of(job: FakeJob) -> str:
    picture = replace(snap(job), findings=())
    return "\n".join(map(text, imbalance_lines(picture, LIVE, Grid(), Options(), (120, 40), "")))


def test_the_median_below_the_grid_is_the_one_that_ranks_are_held_against() -> None:
    job = fsdp_job(2)
    job.specs[1] = replace(job.specs[1], activations=job.specs[0].activations + 8 * GIB)
    drawn = grid_of(job)
    (below,) = re.findall(r"   median ([0-9.]+ GiB)", drawn)
    assert f"from the median of its peers, {below}" in drawn


def test_of_ranks_that_have_all_ended_the_grid_does_not_blame_the_devices() -> None:
    job = fsdp_job(2)
    job.ends.update({rank: End(rank=rank, how="signal", code=9) for rank in (0, 1)})
    drawn = grid_of(job)
    assert "no value of now: every rank has ended" in drawn
    assert "not told by these devices" not in drawn


def test_the_grid_and_the_evidence_tell_the_same_own_work() -> None:
    job = Lockstep("ddp", slow={(3, "data"): 2.0, (3, "optimizer"): 2.0})
    picture = job.run(40).session()[0].snapshot()
    (slow,) = (finding for finding in picture.findings if finding.rule == "straggler")
    told = {fact.name: fact.value for fact in slow.evidence}
    drawn = own_work(picture)
    assert drawn[3] == pytest.approx(told["own work"], rel=0.01)
    assert drawn[0] == pytest.approx(told["median of 7 peers"], rel=0.02)


@pytest.mark.parametrize(
    ("age", "step", "words", "brief"),
    [(40.0, 1180, "since step 1,180 (40 s ago)", "step 1,180 (40 s ago)"), (40.0, None, "for 40 s", "40 s ago"),
     (None, 7, "since step 7", "step 7"), (None, None, "since when is not known", "not known")],
)  # fmt: skip
def test_a_beginning_is_told_as_far_as_it_is_known(age: float | None, step: int | None, words: str, brief: str) -> None:
    one = replace(all_kinds()[0], since=None if age is None else 1000.0 - age, step=step)
    assert (since_words(one, 1000.0), beginning(one, 1000.0)) == (words, brief)


@pytest.mark.parametrize(
    ("unit", "away", "words"),
    [("s", -0.00004, "0.0 ms"), ("s", -0.0767, "-76.7 ms"), ("s", 0.0004, "+0.4 ms"), ("s", 1.5, "+1.5 s"),
     ("W", -0.4, "0 W"), ("W", 1234.0, "+1,234 W")],
)  # fmt: skip
def test_a_distance_of_nothing_has_no_sign(unit: str, away: float, words: str) -> None:
    assert Words(None, unit, signed=False, width=5).difference(away) == words


def test_where_the_cells_are() -> None:
    picture = snap(fsdp_job(64))
    axes = by_node(picture)
    assert [row.label for row in axes.rows] == [str(number) for number in range(1, 9)]
    assert axes.rows[1].ranks == tuple(range(8, 16))
    folded = fold(axes, 120, 30, (6, 3, 2, 1))
    assert folded.cell == 6
    seen = [rank for row in folded.rows for rank in row.ranks]
    assert sorted(seen) == list(range(64))
    mesh = by_mesh(snap(staged_job()))
    assert mesh.rows[1].label == "d0 s1"
    assert mesh.rows[1].ranks == (8, 9)
    assert labels(["gpu-a-007.cluster", "gpu-a-012.cluster"]) == {
        "gpu-a-007.cluster": "007",
        "gpu-a-012.cluster": "012",
    }
    assert labels(["one"]) == {"one": "one"}
    assert labels(["alpha", "beta"]) == {"alpha": "alpha", "beta": "beta"}


def test_ranks_that_were_never_seen_stand_in_their_place() -> None:
    job = fsdp_job(16)
    job.absent.update((5, 9))
    rows = by_node(snap(job)).rows
    assert rows[0].ranks == tuple(range(8))
    assert rows[1].ranks == tuple(range(8, 16))
    lines = imbalance_lines(snap(job), LIVE, Grid(), Options(selected=0), (100, 30), "")
    assert sum("○" in text(line) for line in lines) >= 2
    assert any("2 not seen" in text(line) for line in lines)


def test_a_thousand_ranks_are_drawn_in_time() -> None:
    job = fsdp_job(8)
    big = replace(
        job, specs={rank: job.specs[rank % 8] for rank in range(1024)}, history_seconds=0,
        job=structs.replace(job.job, world_size=1024), findings=usual_findings(16),
    )  # fmt: skip
    session, _, _ = playing(big, 2.0)
    session.findings = Scripted(big)
    picture = session.snapshot()
    for size in ((120, 40), (80, 24)):
        grid, options = Grid(), Options(selected=3)
        imbalance_lines(picture, LIVE, grid, options, size, "")
        taken = []
        for _ in range(5):
            started = time.process_time()
            lines = imbalance_lines(picture, LIVE, grid, options, size, "")
            taken.append(time.process_time() - started)
        assert min(taken) < 0.015
        folded = grid.folded
        assert folded is not None
        assert folded.height <= size[1] - 8, "all of them are on the screen"
        assert fits([lines], size)


def test_only_what_differs_is_told() -> None:
    picture = CALM
    assert typical_peer(3, picture) not in (3, 6, None)
    views = picture.ranks
    found = {(one.group, one.name) for one in differences(views[3], views[0], picture)}
    assert ("memory", "activations") in found
    assert ("findings", "memory") in found
    assert not any(group in ("runs", "steps", "device") for group, _ in found)
    assert not differences(views[0], views[4], picture)
    card = views[3].card
    assert card is not None
    other = structs.replace(
        card, versions=structs.replace(card.versions, torch="2.12.1"), code="deadbeef", node="node9"
    )
    told = {one.name: (one.left, one.right) for one in differences(replace(views[0], card=other), views[0], picture)}
    assert told == {"torch": ("2.12.1", "2.13.0+cu128"), "code": ("deadbeef", None)}


def test_a_difference_that_the_budget_expects_is_none() -> None:
    picture = snap(staged_job())
    stages = differences(picture.ranks[0], picture.ranks[31], picture)
    assert {"stage"} <= {one.name for one in stages if one.group == "runs"}


def test_values_of_a_rank_that_is_gone_are_called_old() -> None:
    picture = snap(oom_job(), 20.0)
    lines = [text(line) for line in diff_lines(picture, LIVE, Pair(3, 0), Options(), (80, 24), "")]
    assert re.match(r" rank 3: its values are [\d.]+ s old ", lines[2])
    fresh = [text(line) for line in diff_lines(picture, LIVE, Pair(1, 0), Options(), (80, 24), "")]
    assert not any(" old " in line for line in fresh)


def test_what_differs_between_devices_and_steps() -> None:
    job = fsdp_job()
    job.reading_changes[1] = {"throttle": ("hardware thermal slowdown",), "temperature": 88, "sm_clock": 1200}
    job.detail_changes[1] = {"pcie_width": 4}
    job.specs[1] = replace(job.specs[1], step_s=2.9)
    picture = snap(job)
    told = {one.name: one for one in differences(picture.ranks[1], picture.ranks[0], picture)}
    assert {"slowed by", "temperature", "SM clock", "PCIe width", "step time", "backward"} <= set(told)
    assert told["slowed by"].right == "nothing"


def test_an_account_is_kept_of_a_former_life() -> None:
    job = oom_job()
    session, source, clock = playing(job)
    assert has_account(session.snapshot().ranks[3])
    fresh = structs.replace(job.card(3), restart=1, pid=99)
    source.extra.append(source.message(3, fresh, "card", restart=1))
    clock.advance(1.0)
    session.feed(source.drain())
    view = session.snapshot().ranks[3]
    assert view.box is None
    assert has_account(view)
    lines = postmortem_lines(session.snapshot(), LIVE, Account(), Options(selected=3), (120, 40), "")
    whole = "\n".join(text(line) for line in lines)
    assert "this was the life before restart 1" in whole
    assert "asked for 22.0 GiB" in whole
    assert not has_account(session.snapshot().ranks[0])


def test_a_consequence_names_the_end_that_came_first() -> None:
    job = oom_job()
    job.ends[1] = End(rank=1, how="signal", code=15, detail="SIGTERM")
    picture = snap(job)

    def told(rank: int) -> str:
        lines = postmortem_lines(picture, LIVE, Account(), Options(selected=rank), (120, 40), "")
        return "\n".join(map(text, lines))

    assert "first       rank 3 failed (exit code 1): OutOfMemoryError" in told(1)
    assert " first  " not in told(3)


def test_peers_stay_comparable_when_a_rank_is_over() -> None:
    picture = replace(CALM, findings=(over_its_peers(3, "activations", 40 * GIB, 30 * GIB, range(8)),))
    partner = typical_peer(3, picture)
    assert partner is not None
    assert typical_peer(99, picture) is None
    assert typical_peer(0, snap(fsdp_job(1))) is None


def test_a_process_id_is_written_as_one_types_it() -> None:
    fact = Evidence("process id", 16574)
    finding = Finding(rule="death", severity="critical", ranks=(1,), sentence="rank 1 was killed", evidence=(fact,))
    picture = replace(snap(fsdp_job()), findings=(finding,))
    drawn = "\n".join(text(line) for line in evidence_lines(picture, LIVE, Reading(finding), Options(), (80, 24), ""))
    assert re.search(r"process id +16574\b", drawn)
    assert fact_words(fact) == "process id 16574"
    assert fact_words(Evidence("steps compared", 16574, "steps")) == "steps compared 16,574 steps"
    assert fact_words(Evidence("process id", None)) == "process id not known"
