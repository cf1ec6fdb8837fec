"""Text of others (jobs, hosts, errors, words of ssh) never steers the terminal, whatever command shows it."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from compared_runs import Run, ddp, fsdp2
from made_recording import WALL, Told, items_of, record
from replayed import replayed

from ranktop.tui.compare.command import Wish, run
from ranktop.tui.export.command import Wish as ExportWish
from ranktop.tui.export.command import export
from ranktop.tui.jobs import print_jobs
from ranktop.tui.remote.explain import explain, forbidden
from ranktop.tui.remote.far import FarError, read_listing
from ranktop.tui.remote.passing import _Lines
from ranktop.tui.remote.ssh import Ssh
from ranktop.tui.remote.target import Target, TargetError, parse_target, split_job
from ranktop.tui.replay.command import replay
from ranktop.tui.status import print_status
from ranktop.wire.nodes import NodeLink, Nodes
from ranktop.wire.recording import Recording
from ranktop.wire.recordings import recording_path
from ranktop.wire.schema import Box, Card, End, Mark, Sample

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x1b[?1049l\x9b31m\x1bP+q\x1b\\\r\n\t\x00\x7f\u202e\u2066[red]x[/red]"
PARSED = ("kind", "state", "phase", "how", "what", "id", "strategy", "launcher", "code", "uuid", "algorithm", "dtype")
"""Fields whose words mean something; a foreign word there would hide what else is shown."""

SCREENS = "down enter tab tab tab escape e escape f enter escape d escape s escape question_mark escape"

_M = TypeVar("_M")


def evil(message: _M, every: bool) -> _M:
    """Return a message with steering characters in its texts; ``every``: also in those that mean something."""

    def turned(value: Any, name: str) -> Any:
        if isinstance(value, str):
            return value if name in PARSED and not every else value[:8] + EVIL
        if isinstance(value, dict):
            return {key: turned(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [turned(inner, name) for inner in value]
        return value

    return msgspec.convert(turned(msgspec.to_builtins(message), ""), type(message), strict=False)


def harmful(text: str) -> list[str]:
    """Return the characters of a text that a terminal would act on."""
    bidi = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return [character for character in text if unicodedata.category(character) == "Cc" or character in bidi]


def hostile(path: Path | None, every: bool) -> Path:
    """Record a job all of whose texts are hostile."""
    made = (ddp if every else fsdp2)()

    def card(said: Card) -> Card:
        said = evil(msgspec.structs.replace(said, model="M", node="n", script="s", backend="b", notes=("n",)), every)
        return msgspec.structs.replace(said, job=msgspec.structs.replace(said.job, id=made.job.id))

    def sample(said: Sample) -> Sample:
        return said if not every else evil(said, False)

    of = Run(made, steps=14, card=card, sample=sample, how="")
    link = NodeLink(node_rank=1, host=EVIL, state="lost", since=3.0, ranks=(7,), detail=EVIL)
    more: list[Told] = [
        (20.0, -1, Nodes(here=0, nodes=(NodeLink(node_rank=0, host="a" + EVIL, state="here"), link))),
        (21.0, -1, Mark(what="hub-replaced" if not every else EVIL, detail=EVIL)),
        (40.0, 1, Box(rank=1, error="OutOfMemoryError: " + EVIL, phase=EVIL)),
        (41.0, 1, End(rank=1, how="signal" if not every else EVIL, code=9, detail=EVIL)),
    ]
    told = sorted([*of.told(), *more], key=lambda one: one[0])
    job = msgspec.structs.replace(made.job, name="train" + EVIL, run_id=EVIL)
    return record(job, items_of(told), path=path or recording_path(made.job.id, WALL))


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.usefixtures("run_directory")
def test_no_command_passes_on_what_steers_a_terminal(
    every: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    listed = hostile(None, every)
    path = str(hostile(tmp_path / "a.ranktop", every))
    job = listed.name.partition("-")[0]
    shows: dict[str, Callable[[], int]] = {
        "jobs": lambda: print_jobs(as_json=False),
        "jobs --json": lambda: print_jobs(as_json=True),
        "status": lambda: print_status(path, as_json=False),
        "status of a past job": lambda: print_status(job, as_json=False),
        "status --json": lambda: print_status(path, as_json=True),
        "replay": lambda: replay(path),
        "replay --json": lambda: replay(path, as_json=True),
        "compare": lambda: run([path, path], Wish("page")),
        "compare --markdown": lambda: run([path, path], Wish("markdown")),
        "compare --json": lambda: run([path, path], Wish("json")),
        "export csv": lambda: export(path, ExportWish(form="csv", output="-")),
        "export json": lambda: export(path, ExportWish(form="json", output="-")),
    }
    for name, show in shows.items():
        code = show()
        said = capsys.readouterr()
        assert code in (0, 1), name
        assert not set(harmful(said.out + said.err)) - {"\n"}, f"{name}: {said.out[:2000]!r} {said.err!r}"
        assert "[red" in said.out.replace("\\", "") or "csv" in name, f"{name}: {said.out[:2000]!r}"
        if "json" in name and "export" not in name:
            json.loads(said.out)


async def screens(path: Path) -> None:
    with Recording.open(path) as recording:
        async with replayed(recording, (140, 40), at=recording.end) as board:  # type: ignore[arg-type]
            for key in SCREENS.split():
                await board.press(key)
                text = board.text()
                assert not set(harmful(text)) - {"\n"}, f"{key}: {text!r}"
            assert "[red]x" in text
    with Recording.open(path) as recording:
        async with replayed(recording, (140, 40)) as board:  # type: ignore[arg-type]
            # No rank has said anything yet: there is nothing to compute, and that is not tried without end.
            await board.press("s")
            assert not set(harmful(board.text())) - {"\n"}


@pytest.mark.parametrize("every", [False, True])
def test_no_screen_passes_on_what_steers_a_terminal(every: bool, tmp_path: Path) -> None:
    asyncio.run(screens(hostile(tmp_path / "a.ranktop", every)))


@pytest.mark.parametrize("text", [
    "-oProxyCommand=id", "me@-oProxyCommand=id", "ssh://-oProxyCommand=id", "ssh://me@-x", "$(id)", "`id`@h", "a;id",
    "h|id", "me@h&", "h\nid", "h\x1b[2J", "[::1%;id]", "[-x]", "u%d@h", "h:-1", "h:0", "h:99999", "h:\u0663", "", "@",
    "\x00", "x" * 5000, "h/-x", "h/--output=x", "h/a\nb", "h/a\x1b[2J",
])  # fmt: skip
def test_a_target_is_never_taken_for_anything_else(text: str) -> None:
    for read in (parse_target, split_job):
        with pytest.raises(TargetError) as caught:
            read(text)
        assert not harmful(str(caught.value))
        assert len(str(caught.value)) < 300


BASE = {"schema": 1, "ranktop": "0.1.0", "wire": 1, "host": "h", "jobs": []}
JOB = {"id": "a1", "name": "n", "state": "running", "socket": "/tmp/r/a1/viewers.sock", "bytes": 5}


def listing(**changed: object) -> bytes:
    return json.dumps({**BASE, "jobs": [{**JOB, **changed}]}).encode()


@pytest.mark.parametrize("answer", [
    *(listing(id=value) for value in (5, True, None, ["a"], "a\n", "-x", "../a", "a" * 33, {"a": 1})),
    *(listing(socket=value) for value in (
        5, None, "viewers.sock", "/tmp/a\n/viewers.sock", "/tmp/../x/viewers.sock", "/tmp/a:b/viewers.sock",
        "/etc/passwd", "/tmp/%d/viewers.sock", "/tmp/${HOME}/viewers.sock",
        "/" + "a" * 200 + "/viewers.sock", "/tmp/ x/viewers.sock",
    )),
])  # fmt: skip
def test_a_job_of_a_far_side_that_cannot_be_is_left_out(answer: bytes) -> None:
    found = read_listing(answer, 0, "", Ssh(Target("h")), "0.1.0")
    assert found.jobs == ()
    assert all(isinstance(name, str) for name in found.sizes)
    assert not [problem for problem in found.problems if harmful(problem)]


@pytest.mark.parametrize("answer", [
    b"", b"null", b"[]", b"[" * 8_000_000, b"\xff\xfe", EVIL.encode(), b'{"wire":' + b"9" * 5000 + b"}",
    json.dumps({**BASE, "wire": 10**4000}).encode(), json.dumps({**BASE, "schema": -(10**4000)}).encode(),
    json.dumps({**BASE, "wire": EVIL}).encode(), json.dumps({**BASE, "ranktop": EVIL, "wire": 2}).encode(),
])  # fmt: skip
def test_an_answer_of_a_far_side_that_is_none_is_one_line(answer: bytes) -> None:
    with pytest.raises(FarError) as caught:
        read_listing(answer, 1, EVIL * 100, Ssh(Target("h")), "0.1.0")
    assert not harmful(str(caught.value))
    assert len(str(caught.value)) < 500


def test_words_and_numbers_of_a_far_side_are_bounded() -> None:
    told = {**JOB, "name": EVIL * 100, "bytes": 10**400, "world_size": 2**70}
    answer = json.dumps({**BASE, "host": EVIL, "jobs": [told]})
    found = read_listing(answer.encode(), 0, f"ranktop: {EVIL}\n" * 100, Ssh(Target("h")), "0.1.0")
    (job,) = found.jobs
    assert found.sizes == {}
    assert job.world_size == 0
    assert not harmful(job.name + found.host + "".join(found.problems))
    assert len(job.name) <= 200
    assert len(found.problems) <= 20


@pytest.mark.parametrize("said", [
    EVIL, f"{EVIL}@h: Permission denied (publickey).", f"ssh: Could not resolve hostname {EVIL}: x",
    f"Host key for {EVIL} has changed", f"Bad configuration option: {EVIL}", "Permission denied (" * 100_000,
    f"connect to host {EVIL} port 22: Connection refused", "\n" * 100_000, "open failed " + EVIL, "x" * 10**6,
])  # fmt: skip
def test_what_ssh_says_becomes_one_harmless_line(said: str) -> None:
    _, line = explain(said, Target("h"))
    assert line
    assert not harmful(line + forbidden(said, Target("h")))
    assert len(line) < 1000


def test_a_line_without_end_from_a_far_side_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    lines = _Lines()
    for _ in range(20):
        lines(b"x" * 65536 + b"\x1b[2J")
        assert len(lines._rest) <= 1024 * 1024 + 65600
    lines(EVIL.encode())
    lines.close()
    monkeypatch.undo()
    assert len(shown.getvalue()) >= 20 * 65536
    assert not set(harmful(shown.getvalue())) - {"\n"}
