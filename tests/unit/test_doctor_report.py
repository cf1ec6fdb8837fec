"""The doctor's report: nothing that a check does takes it away, and it fits where it is printed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from doctor_machine import Machine

from ranktop.tui.doctor.check import Check, Line, Result, failed, passed, skipped, warned
from ranktop.tui.doctor.command import GROUPS
from ranktop.tui.doctor.examination import Group, examine
from ranktop.tui.doctor.report import LABEL, as_json, as_text, exit_code
from ranktop.tui.doctor.scene import Scene, ranges, size

TITLES = {"a": "first things", "b": "other things"}


def group(name: str, *checks: Check) -> Group:
    return Group(name, TITLES[name], checks)


def boom(_: Scene) -> Result:
    raise ValueError("it broke\x1b[31m")


def test_an_exception_is_a_line_and_the_next_check_is_made(tmp_path: Path) -> None:
    checks = (Check("a.one", "one", boom), Check("a.two", "two", lambda _: passed("fine")))
    lines, hangs = examine([group("a", *checks)], Machine(tmp_path).scene())
    assert not hangs
    assert [(line.id, line.result.status) for line in lines] == [("a.one", "fail"), ("a.two", "pass")]
    assert "ValueError: it broke" in lines[0].result.found


def test_one_check_may_give_several_lines_or_none(tmp_path: Path) -> None:
    def several(_: Scene) -> Sequence[Result]:
        return [passed("x", label="GPU 0"), failed("y", "z", label="GPU 1")]

    checks = (Check("a.none", "none", lambda _: []), Check("a.gpu", "GPU", several))
    lines, _ = examine([group("a", *checks)], Machine(tmp_path).scene())
    assert [(line.id, line.label) for line in lines] == [("a.gpu", "GPU 0"), ("a.gpu", "GPU 1")]


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that happens only after the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_check_that_hangs_costs_its_own_group_only(tmp_path: Path, never: threading.Event) -> None:
    def hang(_: Scene) -> Result:
        never.wait()
        return passed("too late")

    scene = Scene(environ={}, until=time.monotonic() + 0.1, root=tmp_path)
    groups = [
        group(
            "a", Check("a.zero", "zero", lambda _: passed("")), Check("a.one", "one", hang), Check("a.two", "two", boom)
        ),
        group("b", Check("b.one", "one", lambda _: passed("fine"))),
    ]
    lines, hangs = examine(groups, scene)
    assert hangs
    assert [(line.id, line.result.status) for line in lines] == [
        ("a.zero", "pass"),
        ("a.one", "fail"),
        ("a.two", "skip"),
        ("b.one", "pass"),
    ]


LINES = [
    Line("a.one", "a", "one", passed("fine", number=3)),
    Line(
        "a.two", "a", "a label that is too long", warned("é → ° " + "words " * 30, "do this – at once", path=Path("/x"))
    ),
    Line("b.one", "b", "one", failed("bad \x1b[31mred\x1b[0m", "mend it", id="not this", group="nor this")),
    Line("b.two", "b", "two", skipped("nothing to see")),
]


def test_the_json_has_what_a_script_wants() -> None:
    found = json.loads(as_json(LINES, 1.25, "0.1"))
    assert set(found) == {"schema", "ranktop", "checks", "summary"}
    assert found["schema"] == 1
    assert found["summary"] == {"pass": 1, "warn": 1, "fail": 1, "skip": 1, "seconds": 1.25, "exit": 1}
    for check in found["checks"]:
        assert {"id", "group", "status", "found", "advice"} <= set(check)
    assert found["checks"][0] == {
        "id": "a.one", "group": "a", "status": "pass", "found": "fine", "advice": None, "number": 3
    }  # fmt: skip
    assert found["checks"][1]["path"] == "/x"
    assert found["checks"][2]["id"] == "b.one"
    assert "\x1b" not in found["checks"][2]["found"]


def test_only_a_failure_gives_an_exit_code() -> None:
    assert exit_code(LINES) == 1
    assert exit_code([line for line in LINES if line.result.status != "fail"]) == 0


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_the_text_fits_its_width_and_its_alphabet(width: int, unicode: bool) -> None:
    text = as_text(LINES, TITLES, 1.0, width=width, unicode=unicode, color=False)
    assert "\x1b" not in text
    assert text.isascii() is not unicode
    if width >= 40:
        assert max(map(len, text.splitlines()[:-1])) <= width
    order = [
        text.index(word) for word in ("first things", "fine", "other things", "mend it", "nothing to see", "checks")
    ]
    assert order == sorted(order)
    again = " ".join(text.split()[-40:])
    assert "fail: other things: one" in again
    assert "warn: first things: a label that is too long" in again
    assert text.splitlines()[-1] == "4 checks in 1.0 s: 1 pass, 1 warn, 1 fail, 1 skip"


def test_advice_stands_below_its_line_and_a_status_is_told_by_more_than_colour() -> None:
    lines = as_text(LINES, TITLES, 1.0, width=80, unicode=True, color=True).splitlines()
    at = next(number for number, line in enumerate(lines) if "bad red" in line)
    assert "✗ fail" in lines[at]
    assert "\x1b[1;31m" in lines[at]
    assert "mend it" in lines[at + 1]
    assert lines[at + 1].startswith(" " * 22 + "→")


def test_every_check_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    ids = [check.id for group in GROUPS for check in group.checks]
    assert len(ids) == len(set(ids)) > 30
    assert [id for id in ids if f"`{id}`" not in text] == []
    assert all(check.id.startswith(f"{group.name}.") for group in GROUPS for check in group.checks)


def test_numbers_in_few_words() -> None:
    assert ranges([3, 1, 2, 7]) == "1-3, 7"
    assert ranges([]) == ""
    assert size(512 << 10) == "512 KiB"


def test_every_label_fits_its_column() -> None:
    assert [check.label for group in GROUPS for check in group.checks if len(check.label) > LABEL] == []
