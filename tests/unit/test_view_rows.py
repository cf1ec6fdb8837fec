"""Rows, columns, scale and detail: what a frame says, as plain data."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from device_view import LIVE, snapshot
from fake_job import FakeClock, FakeSource, fsdp_job, host_job

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.terms import STATES, Amount, Budget
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.view.facts import card_block
from ranktop.tui.view.frame import Frame, frame
from ranktop.tui.view.layout import heights, scrolled
from ranktop.tui.view.options import Options
from ranktop.tui.view.rows import delta_title, table
from ranktop.tui.view.text import ASCII, Line, length
from ranktop.wire.schema import End

GIB = 1024**3
MIB = 1024**2


def drawn(snapshot: Snapshot, options: Options | None = None, size: tuple[int, int] = (80, 24), **link: str) -> Frame:
    return frame(snapshot, Link(**link) if link else LIVE, options or Options(), size, "", snapshot.now)  # type: ignore[arg-type]


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def bar_of(made: Frame) -> int:
    return len(text(made.bars[0]).rstrip("▏ ")[7:])


@pytest.mark.parametrize("width", [40, 60, 79, 80, 100, 120, 160, 200, 300])
def test_every_line_has_the_width_of_the_screen(width: int) -> None:
    for height in (1, 2, 7, 24, 60):
        made = drawn(snapshot(fsdp_job(16)), size=(width, height))
        for line in (made.header, made.heading, made.legend, made.footer):
            assert length(line) == width
        for left, right in zip(made.bars, made.numbers, strict=True):
            assert length(left) + length(right) == width
        for left, right in zip(made.facts, made.side, strict=True):
            assert length(left) + length(right) == width


def test_columns_drop_by_worth_and_the_state_never() -> None:
    picture = snapshot(fsdp_job())
    names = {width: [c.key for c in table(picture, Options(), width).columns.right] for width in (50, 60, 80, 120, 200)}
    assert all(keys[-1] == "state" for keys in names.values())
    for narrow, wide in ((50, 60), (60, 80), (80, 120), (120, 200)):
        assert set(names[narrow]) <= set(names[wide])
    assert "used" in names[60]
    assert set(names[80]) >= {"used", "delta", "utilization"}
    assert "step_s" not in names[80]
    assert set(names[120]) >= {"power", "temperature", "step_s"}
    assert set(names[200]) >= {"expected", "step"}


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_bar_keeps_twenty_cells(width: int) -> None:
    for job in (fsdp_job(16), host_job()):
        picture = snapshot(job)
        made = table(picture, Options(), width)
        taken = 9 + sum(column.width + 1 for column in (*made.columns.left, *made.columns.right))
        assert width - taken >= 20


def test_a_host_has_no_columns_of_dashes() -> None:
    keys = [column.key for column in table(snapshot(host_job()), Options(), 200).columns.right]
    assert not set(keys) & {"utilization", "power", "temperature"}


def test_nodes_are_named_when_there_are_several() -> None:
    assert "node" not in [c.key for c in table(snapshot(fsdp_job(8)), Options(), 80).columns.left]
    assert "node" in [c.key for c in table(snapshot(fsdp_job(16)), Options(), 80).columns.left]


def test_small_jobs_zoom_in_and_say_so() -> None:
    picture = snapshot(host_job())
    made = table(picture, Options(), 120)
    assert made.scale.zoom == "process"
    assert made.scale.unit.name == "MiB"
    # 318 MiB of libraries, 33 MiB of states and 103 MiB of activations at the peak.
    assert made.scale.bytes == 500 * MIB
    assert "process: 500 MiB of 24 GiB" in text(drawn(picture, size=(120, 24)).heading)
    assert "zoom 500 MiB" in text(drawn(picture).heading)
    tensors = table(picture, Options(zoom="tensors"), 120).scale
    assert tensors.bytes == 150 * MIB
    device = table(picture, Options(zoom="device"), 120).scale
    assert (device.bytes, device.unit.name) == (24 * GIB, "GiB")
    assert table(snapshot(fsdp_job()), Options(), 120).scale.zoom == "device"


def test_the_difference_covers_what_has_both_sides_and_is_named_after_it() -> None:
    picture = snapshot(fsdp_job())
    made = table(picture, Options(), 120)
    assert made.budgeted == ("parameters", "gradients", "optimizer", "activations", "buffers", "runtime")
    assert delta_title(made) == "exp"
    assert made.rows[3].total_delta == pytest.approx(10.8 * GIB, rel=0.01)
    assert made.rows[6].delta("runtime") is None, "nothing differs from a guess"
    unknown = Amount(None, "a reason")
    states = {
        moment: {name: amounts[name] if name in STATES else unknown for name in amounts}
        for moment, amounts in _moments(picture).items()
    }
    views = tuple(replace(view, budget=Budget(states)) for view in picture.ranks)
    fewer = table(replace(picture, ranks=views), Options(), 120)
    assert (delta_title(fewer), fewer.rows[3].total_delta) == ("states", 0)


def _moments(picture: Snapshot) -> dict[str, dict[str, Amount]]:
    budget = picture.ranks[0].budget
    assert budget is not None
    return budget.moments


def test_expected_memory_that_is_missing_is_seen_in_the_upper_half() -> None:
    job = fsdp_job()
    parameters, gradients, optimizer = job.specs[2].states
    job.specs[2] = replace(job.specs[2], states=(parameters, gradients, optimizer // 2))
    made = drawn(snapshot(job))
    styles = [style for _, style in made.bars[2]]
    assert "bar:oa" in styles
    assert "-3.7" in text(made.numbers[2])
    assert any("bad bold" in style for _, style in made.numbers[2])


def test_unknown_numbers_are_dashes_and_zero_is_zero() -> None:
    job = host_job()
    made = drawn(snapshot(job), size=(120, 40))
    assert any(text(line).startswith(" ■ cache              –     6.00") for line in made.facts)
    empty = Snapshot(now=0.0, job=None, state="starting", ranks=(RankView(rank=0, state="missing", age=None),))
    assert "–" in text(drawn(empty, size=(120, 40)).numbers[0])


def test_a_guess_is_marked_and_nothing_differs_from_it() -> None:
    lines = [text(line) for line in drawn(snapshot(fsdp_job()), size=(120, 40)).facts]
    runtime = next(line for line in lines if "runtime" in line)
    assert runtime.split()[2:] == ["≈0.72", "2.35"]


def test_a_rank_that_finished_no_step_shows_now() -> None:
    picture = snapshot(fsdp_job())
    import msgspec

    first = picture.ranks[0]
    assert first.sample is not None
    sample = msgspec.structs.replace(first.sample, table=None, step=0)
    views = (replace(first, sample=sample, peak=None, steps=(), state="starting"), *picture.ranks[1:])
    made = drawn(replace(picture, ranks=views), size=(120, 40))
    assert "now (no step finished yet)" in text(made.facts[0]) + text(made.side[0])
    assert "starting" in text(made.numbers[0])
    assert any("no step finished yet" in text(line) for line in made.side)


def test_headers_say_what_is_not_live() -> None:
    picture = snapshot(fsdp_job())
    assert "● live" in text(drawn(picture).header)
    assert "! link lost" in text(drawn(picture, state="lost").header)
    assert "hub ended" in text(drawn(picture, state="ended").header)
    assert "connecting" in text(drawn(picture, state="connecting").header)
    older = drawn(picture, state="lost", detail="the other side is\x1b[2J older")
    assert "! the other side is older" in text(older.footer)
    missed = frame(picture, Link(state="live", lost=3, bad=1), Options(), (80, 24), "", picture.now)
    assert "live, 4 messages lost" in text(missed.header)
    frozen = Options(frozen_at=picture.now)
    assert "FROZEN" in text(drawn(picture, frozen).header)


def test_old_data_over_a_live_link_is_told() -> None:
    clock = FakeClock()
    source = FakeSource(fsdp_job(), clock)
    session = Session(clock)
    session.feed(source.drain())
    clock.advance(20.0)
    assert "live, data 20 s old" in text(drawn(session.snapshot()).header)


def test_ascii_frames_are_ascii() -> None:
    job = fsdp_job(16)
    job.ends[1] = End(rank=1, how="signal", code=9, detail="SIGKILL")
    picture = snapshot(job)
    for size in ((80, 24), (200, 60)):
        made = drawn(picture, Options(glyphs=ASCII, letters=True, page=2), size)
        lines = (made.header, made.heading, *made.bars, *made.numbers, made.legend, made.footer)
        for line in (*lines, *made.facts, *made.side):
            assert text(line).isascii(), text(line)


@pytest.mark.parametrize("total", range(0, 70, 3))
@pytest.mark.parametrize("ranks", [0, 1, 2, 8, 64, 5000])
def test_heights_add_up_to_the_screen(total: int, ranks: int) -> None:
    for detail in (True, False):
        share = heights(total, ranks, detail)
        parts = (share.header, share.heading, share.ranks, share.legend, share.detail, share.footer)
        assert sum(parts) == total
        assert min(parts) >= 0
        if total >= 24 and detail:
            assert share.detail >= 12
            assert share.ranks >= min(max(1, ranks), 4)


def test_scrolling_keeps_the_selection_in_sight_and_wastes_no_room() -> None:
    assert scrolled(0, 5, 4, 10) == 2
    assert scrolled(6, 5, 4, 10) == 5
    assert scrolled(9, None, 4, 10) == 6
    assert scrolled(3, 0, 20, 10) == 0
    assert scrolled(3, 2, 0, 10) == 0


def test_differences_that_cancel_out_are_not_hidden() -> None:
    job = fsdp_job()
    parameters, gradients, optimizer = job.specs[2].states
    job.specs[2] = replace(job.specs[2], states=(parameters + 3 * GIB, gradients - 3 * GIB, optimizer))
    made = drawn(snapshot(job))
    assert made.table.rows[2].total_delta == 0
    assert "±3.0" in text(made.numbers[2])
    assert any("bad bold" in style for _, style in made.numbers[2])


def test_the_card_says_how_many_parameters_are_trained_where_not_all_are() -> None:
    view = snapshot(fsdp_job()).ranks[0]
    assert view.card is not None
    frozen = [Kind((1000, 40), "bfloat16", trainable=False), Kind((8, 40), "float32")]
    for kinds, told in ((frozen, "40.3K parameters in 2 tensors, 320 of them trained"), (frozen[1:], "in 1 tensors")):
        card = msgspec.structs.replace(view.card, model="PeftModel", inventory=Inventory.of(kinds), revision=len(kinds))
        words = " ".join(text(line) for line in card_block(replace(view, card=card), 200)).split(" strategy")[0]
        assert words.rstrip().endswith(told), words


def test_a_name_that_is_longer_than_the_cards_column_breaks_behind_a_dot() -> None:
    view = snapshot(fsdp_job()).ranks[0]
    assert view.card is not None
    card = msgspec.structs.replace(view.card, notes=("checkpointing by torch.utils.checkpoint cannot be seen",))
    rows = [text(line)[12:].rstrip() for line in card_block(replace(view, card=card), 33)]
    assert rows[rows.index("checkpointing by") :][:3] == ["checkpointing by", "torch.utils.", "checkpoint cannot be"]
