"""What ``ranktop status`` says below its table: findings by gravity, black boxes, and that nothing was found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hand_made import NOW, at, rank

from ranktop.budget.terms import Memory
from ranktop.probes.reading import AllocatorReading, StepTimes
from ranktop.tui import printing
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.rank_view import Event
from ranktop.tui.session.state import Snapshot
from ranktop.tui.status_report import MARKS, fact_words, recording_line, report
from ranktop.tui.status_table import print_snapshots
from ranktop.wire.schema import Box, Call

GIB = 2**30
BOX = Box(
    rank=1, error="OutOfMemoryError: CUDA out of memory\x1b[2J", step=1207, phase="forward", asked=4 * GIB,
    free=2 * GIB, limit=80 * GIB, memory=Memory(activations=40 * GIB, parameters=7 * GIB, buffers=0, free=2 * GIB),
    allocator=AllocatorReading(backend="native", largest_free=GIB), inputs=("int64 [8, 1024]", "bool [8]"),
    calls=tuple(Call("model.py", line, "forward") for line in range(7)),
)  # fmt: skip


def one(rule: str, severity: str, *ranks: int, **more: object) -> Finding:
    return replace(
        Finding(rule=rule, severity=severity, ranks=ranks, sentence=f"{rule} of {ranks}", advice=f"mend {rule}"),
        **more,  # type: ignore[arg-type]
    )


def told(*findings: Finding, picture: Snapshot | None = None) -> list[str]:
    picture = picture or at(rank(number) for number in range(4)).snapshot
    return report(replace(picture, findings=findings))


def test_each_finding_is_a_line_with_its_mark_and_since_when_and_its_advice_below() -> None:
    facts = (Evidence("own work", 2.35, "s"), Evidence("PCIe", None), Evidence("phase", "data"))
    assert told(
        one("hang", "critical", 1, since=NOW - 42, step=1207, evidence=facts),
        one("straggler", "warning", 3, since=NOW - 90.0),
        one("pause", "info", step=7),
        replace(one("loss", "warning", since=NOW - 9.0, step=4), sentence="the loss is NaN since step 4", advice=""),
    ) == [
        "✖ hang of (1,)  (since step 1,207, for 42 s)",
        "    mend hang",
        "    own work 2.35 s; phase: data",
        "! straggler of (3,)  (for 90 s)",
        "    mend straggler",
        "· pause of ()  (since step 7)",
        "! the loss is NaN since step 4",
    ]


def test_marks_stay_apart_where_there_is_only_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "speaks_unicode", lambda: False)
    assert [printing.legible(MARKS[severity]) for severity in ("critical", "warning", "info")] == ["X", "!", "-"]


def test_trouble_with_the_recording_is_told_until_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    picture = at([rank(0)]).snapshot
    assert recording_line(picture) == ""
    stopped = Event(NOW - 46.0, "recording", "recording stopped in /disk: database or disk is full\x1b[2J")
    picture = replace(picture, marks=(Event(NOW - 90.0, "hub-replaced"), stopped))
    assert recording_line(picture).startswith("! recording stopped in /disk: database or disk is full")
    assert recording_line(picture).endswith(" (46 s ago)")
    assert "\x1b" not in recording_line(picture)
    print_snapshots([picture])
    assert "! recording stopped in /disk" in capsys.readouterr().out
    again = Event(NOW - 10.0, "recording", "recording again after 36 s; 40 messages are missing")
    assert recording_line(replace(picture, marks=(stopped, again))) == ""


def test_findings_of_a_kind_share_their_advice_and_many_are_counted() -> None:
    lines = told(*(one("memory", "warning", number) for number in range(20)))
    assert lines[:3] == ["! memory of (0,)", "    mend memory", "! memory of (1,)"]
    assert lines[-1] == "    and 12 more of memory: ranks 8-19"
    assert len(lines) == 10


def test_text_from_the_job_is_made_plain() -> None:
    lines = told(one("death", "critical", 0, sentence="bad\x1b[31m\nword", advice="do\rthis", evidence=(
        Evidence("na\x1b[1mme", "va\x00lue"),)))  # fmt: skip
    assert not any(character < " " for line in lines for character in line), lines


def steps(number: int) -> tuple[StepTimes, ...]:
    return tuple(StepTimes(index, 0.5) for index in range(1, number + 1))


def test_that_nothing_was_found_is_said_with_how_much_was_looked_at() -> None:
    def picture(number: int) -> Snapshot:
        return at(rank(one, step=number, steps=steps(number)) for one in range(8)).snapshot

    assert told(picture=picture(32)) == ["nothing found out of line: 32 steps, 8 ranks"]
    assert told(picture=picture(9)) == []
    assert told(picture=at([]).snapshot) == []


def test_a_black_box_stands_below_its_finding() -> None:
    picture = at([rank(0), rank(1, box=BOX, boxed=NOW - 12.0)]).snapshot
    lines = told(one("oom", "critical", 1, since=NOW - 12.0), picture=picture)
    assert lines == [
        "✖ oom of (1,)  (for 12 s)",
        "    mend oom",
        "    error   OutOfMemoryError: CUDA out of memory, 12 s ago",
        "    when    step 1,208, forward",
        "    memory  asked for 4.0 GiB, free 2.0 GiB, of 80.0 GiB, largest free block of the cache 1.0 GiB",
        "    held    activations 40.0 GiB, parameters 7.0 GiB",
        "    inputs  int64 [8, 1024], bool [8]",
        "    calls   model.py:2 forward",
        *(f"            model.py:{line} forward" for line in (3, 4, 5, 6)),
    ]


def test_a_black_box_without_a_finding_is_told_and_many_are_counted() -> None:
    small = Box(rank=0, error="OutOfMemoryError")
    boxed = [rank(number, box=replace_rank(small, number), boxed=NOW - 1) for number in range(6)]
    lines = told(picture=at(boxed).snapshot)
    assert lines[:2] == ["· rank 0 ran out of memory", "    error   OutOfMemoryError, 1.0 s ago"]
    assert lines[-1] == "· what ranks 4, 5 left behind is in --json"
    former = rank(0, restart=1, former_box=small, former_boxed=NOW - 300)
    assert told(picture=at([former]).snapshot)[1] == "    error   OutOfMemoryError, 5 min ago, in a former life"


def replace_rank(box: Box, number: int) -> Box:
    return Box(rank=number, error=box.error)


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (Evidence("held", 3 * GIB, "B"), "held 3.0 GiB"),
        (Evidence("steps", 1204), "steps 1,204"),
        (Evidence("share", 18.25, "%"), "share 18.25 %"),
        (Evidence("clock", 1290, "MHz"), "clock 1,290 MHz"),
        (Evidence("throttle", "hot"), "throttle: hot"),
        (Evidence("age", 0.0421, "s"), "age 0.042 s"),
    ],
)
def test_facts_are_written_with_their_units(fact: Evidence, words: str) -> None:
    assert fact_words(fact) == words


def test_a_narrow_terminal_goes_without_columns_rather_than_break_every_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = at(rank(number) for number in range(2)).snapshot
    print_snapshots([picture])
    assert "no room for" not in capsys.readouterr().out, "a pipe gets all"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    print_snapshots([picture])
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if line.startswith("rank "))
    assert header.split()[-1] == "state"
    assert {"param", "optim", "activ", "Δ", "step"} < set(header.split())
    assert all(len(line.rstrip()) <= 80 for line in lines[lines.index(header) : lines.index(header) + 3])
    assert next(line for line in lines if line.startswith("no room for: ")).endswith("moment")
