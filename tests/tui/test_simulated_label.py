"""A simulated job is called one on every screen and in what ``ranktop status`` prints, at any size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from dashboard import dashboard
from fake_job import FakeClock, FakeJob, FakeSource, fsdp_job
from rich.cells import cell_len

from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.status import job_json
from ranktop.tui.status_table import job_line
from ranktop.tui.view import header as header_module
from ranktop.tui.view.header import header, title_line
from ranktop.tui.view.label import labelled
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, length
from ranktop.wire.schema import Card

SCREENS = {
    "ranks": (), "imbalance": ("i",), "findings": ("exclamation_mark",), "diff": ("c",), "device": ("d",),
    "help": ("question_mark",), "strategies": ("s",), "explain": ("s", "enter"), "what fits": ("s", "g"),
}  # fmt: skip
"""Screen -> keys that lead to it."""


class Simulated(FakeJob):
    """A fake job whose cards say that it is simulated."""

    def card(self, rank: int) -> Card:
        return msgspec.structs.replace(super().card(rank), simulated=True)


def simulated_job() -> Simulated:
    job = fsdp_job(8)
    return Simulated(job.job, job.inventory, job.plan, job.specs, job.node, job.device, details=job.details)


def first_lines(job: FakeJob, keys: Sequence[str], *sizes: tuple[int, int]) -> list[str]:
    async def look() -> list[str]:
        lines = []
        async with dashboard(job, sizes[0]) as run:
            for key in keys:
                await run.press(key)
            lines.append(run.text().splitlines()[0])
            for size in sizes[1:]:
                await run.pilot.resize_terminal(*size)
                await run.draw()
                lines.append(run.text().splitlines()[0])
        return lines

    return asyncio.run(look())


@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen_begins_with_the_label(screen: str) -> None:
    sizes = [(80, 24), (120, 40), (30, 8)]
    for line, size in zip(first_lines(simulated_job(), SCREENS[screen], *sizes), sizes, strict=True):
        assert line.lstrip().startswith("SIMULATED ") if screen == "help" else line.startswith(" SIMULATED ")
        assert cell_len(line) <= size[0]


def test_no_label_on_a_real_job() -> None:
    for keys in SCREENS.values():
        assert "SIMULATED" not in first_lines(fsdp_job(8), keys, (80, 24))[0]


def snapshot_of(job: FakeJob) -> Snapshot:
    clock = FakeClock()
    source, session = FakeSource(job, clock), Session(clock)
    session.feed(source.drain())
    return session.snapshot()


def test_status_says_it_in_text_and_json() -> None:
    real, simulated = snapshot_of(fsdp_job(8)), snapshot_of(simulated_job())
    assert job_line(simulated).startswith("SIMULATED, nothing here was measured: llama8b-sft")
    assert "SIMULATED" not in job_line(real)
    assert (job_json(real)["simulated"], job_json(simulated)["simulated"]) == (False, True)


@pytest.mark.parametrize(
    ("line", "begin", "end"),
    [
        (((" ranktop ", "head accent"), (" job", "head bold"), ("     ", "head"), ("live ", "head good")),
         " SIMULATED  job", "  live "),
        (((" what ", "head"), ("fits  and much more text", "head")), " SIMULATED  what fits", "t"),
        (((" ranktop ", "head accent"),), " SIMULATE", "E"),
        ((), "", ""),
    ],
)  # fmt: skip
def test_the_label_takes_its_room_from_the_gap(line: Line, begin: str, end: str) -> None:
    (marked,) = labelled({"text": [line]})["text"]
    text = "".join(part for part, _ in marked)
    assert length(marked) == length(line)
    assert text.startswith(begin)
    assert text.endswith(end) or len(line) == 2


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_label_crops_nothing_of_how_the_job_is_doing(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state = (("stalled 12 min, 3 of 8 silent", "head bad"),)
    monkeypatch.setattr(header_module, "job_state", lambda *_: state)
    snapshot = snapshot_of(simulated_job())
    for link in (Link("lost", age=70.0), Link("live", age=0.1, lost=1234), Link("lost", age=70.0, place="me@gpu01")):
        for line in (
            header(snapshot, link, Options(), width),
            title_line("imbalance by step time", snapshot, link, Options(), width),
        ):
            (marked,) = labelled({"header": [line]})["header"]
            shown, told = ("".join(text for text, _ in spans).rstrip() for spans in (marked, line))
            assert shown.startswith(" SIMULATED ")
            assert shown.endswith(told[-8:])
            assert length(marked) == width


def test_only_the_first_line_is_labelled() -> None:
    other = ((" ranktop ", "head"),)
    parts = labelled({"none": [], "header": [(("x" * 20, ""),), other], "bars": [other]})
    assert "SIMULATED" in parts["header"][0][0][0]
    assert parts["header"][1] == other
    assert parts["bars"] == [other]
    assert labelled({}) == {}
