"""The lines of an explanation: as wide as asked, with what was found, whatever the terminal can show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explain_answer import sharded, staged

from ranktop.budget.explain import Explanation, explain
from ranktop.budget.model import Model
from ranktop.budget.models.catalogue import find
from ranktop.budget.planning.sizes import GIB
from ranktop.budget.run import STRATEGIES, Run
from ranktop.budget.terms import STEP
from ranktop.tui.theme import DARK, MONO, resolve
from ranktop.tui.view.explain import explain_lines
from ranktop.tui.view.text import ASCII, UNICODE, length

DENSE = replace(find("llama-3.2-1b"), layers=8)


def text_of(explanation: Explanation, width: int, ascii_only: bool = False) -> str:
    lines = explain_lines(explanation, width, ASCII if ascii_only else UNICODE, ascii_only)
    return "\n".join("".join(part for part, _ in line).rstrip() for line in lines)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_line_is_longer_than_the_width(strategy: str) -> None:
    found = explain(Run(model=DENSE, world_size=8, sequence_length=512, device_memory=8 << 30), strategy)
    for width in (1, 19, 40, 79, 80, 120, 200):
        for glyphs in (UNICODE, ASCII):
            lines = explain_lines(found, width, glyphs, glyphs.ascii)
            assert {length(line) for line in lines} == {width}
            if glyphs.ascii:
                assert all(text.isascii() for line in lines for text, _ in line)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_numbers_are_on_the_page(width: int) -> None:
    text = " ".join(text_of(sharded(), width).split())
    assert "35.0 GiB at the peak, in backward" in text
    assert "45.0 GiB of 80.0 GiB stay free" in text
    assert "it needs 2.00 GiB" in text
    assert "micro-batch 1 → 2" in text
    assert "+12.0" in text
    assert "18.0" in text  # sent in all: 3/4 of 8 + 16 GiB


def test_the_picture_shows_each_rank_s_part() -> None:
    row = next(line for line in text_of(sharded(), 80).splitlines() if line.startswith(" ■ parameters"))
    boxes = row[15:].split()[:4]
    assert len(set(boxes)) == 4
    assert [box.find("█") for box in boxes] == [0, 2, 4, 6]
    assert row.split()[-2:] == ["1/4", "2.50"]


def test_a_device_that_is_too_small_is_marked_in_the_bar() -> None:
    text = text_of(staged(), 80)
    assert "12.5 GiB more than the 80.0 GiB of a GPU" in " ".join(text.split())
    assert "│" in text
    assert "fits; forward twice" in text


def test_without_colour_bars_are_letters() -> None:
    lines = explain_lines(staged(), 80, UNICODE, letters=True)
    bar = next("".join(part for part, _ in line) for line in lines if line[0][0].startswith(" stage 0"))
    assert "PPP" in bar
    assert "OOO" in bar
    assert "█" not in bar


@pytest.mark.parametrize("palette", [DARK, MONO])
def test_every_style_is_one_that_the_theme_knows(palette: object) -> None:
    from ranktop.tui.theme import Palette

    assert isinstance(palette, Palette)
    words = {*palette.words, "bold", "dim", "italic", "reverse", "underline", "faded"} | {*DARK.words}
    for line in explain_lines(staged(), 100, UNICODE):
        for _, style in line:
            resolve(style, palette)
            assert all(word in words or word[:4] in ("key:", "bar:") for word in style.split()), style


def test_a_refused_strategy_says_why() -> None:
    found = explain(Run(model=find("gpt2"), world_size=64), "dp")
    text = " ".join(text_of(found, 80).split())
    assert "not possible: DataParallel is one process on one node" in text


def test_unknown_parts_are_said_to_be_unknown() -> None:
    found = explain(Run(model=Model(name="7.5e9", count=7_500_000_000), world_size=8), "zero3")
    text = " ".join(text_of(found, 80).split())
    assert "not known; the formulas below say why" in text
    assert "no closed form for the activations of a bare number of parameters" in text
    assert "known sent" in text


def test_a_knob_s_remark_has_room_beside_a_long_name() -> None:
    found = explain(Run(model=DENSE, world_size=8, sequence_length=512, device_memory=80 << 30), "zero-infinity")
    lines = text_of(found, 100).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(" What changes it"))
    assert lines[start + 1].split() == ["peak", "sent", "host", "NVMe"]
    assert next(line for line in lines[start:] if "micro-batch 1 →" in line).endswith("2x the samples")
    below = next(i for i, line in enumerate(lines[start:], start) if "stage3_gather_16bit" in line) + 1
    assert len(lines[below].split()[:4]) == 4


def test_activations_that_are_not_cut_evenly_are_said_so() -> None:
    run = Run(model=DENSE, world_size=8, sequence_length=512)
    tensor, staged = text_of(explain(run, "tp"), 80), text_of(explain(run, "pp-1f1b"), 80)
    row = next(line for line in tensor.splitlines() if line.startswith(" ■ activations"))
    assert "partly" in row
    assert "▒" in row
    assert "whole on every rank around them" in tensor
    assert "for up to 8 micro-batches in flight; the fewest: 1" in " ".join(staged.split())
    assert "own" in next(line for line in staged.splitlines() if line.startswith(" ■ activations"))


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2"])
def test_without_a_peak_bar_parts_and_plan_agree_on_what_is_known(strategy: str) -> None:
    run = Run(model=Model(count=7_500_000_000), world_size=64)
    found = explain(run, strategy)
    rows = text_of(found, 100).splitlines()
    first, full = (next(i for i, line in enumerate(rows) if word in line) for word in ("At its peak", "full bar"))
    bar = max((line.partition("≥")[2].split()[0] for line in rows[first + 1 : full]), key=float)
    rank = found.projection.rank
    assert rank is not None
    known = {moment: sum(a.bytes or 0 for a in rank.budget.at(moment).values()) for moment in STEP}
    assert bar == GIB.write(max(known.values()))
    parts = " ".join(rows[full + 1 : full + 3]).replace("?", "").split()
    sizes = [float(word) for word in parts if word[0].isdigit()]
    assert sum(sizes) == pytest.approx(float(bar), rel=0.01)


def test_title_and_passing_pieces_are_not_cut_at_80_columns() -> None:
    run = Run(model=DENSE, world_size=8, sequence_length=512, device_memory=80 << 30)
    offloaded = " ".join(text_of(explain(run, "zero3-offload"), 80).split())
    assert "bf16 + fp32 master · DeepSpeedCPUAdam" in offloaded
    staged_lines = text_of(explain(run, "pp-1f1b"), 80).splitlines()
    start, stop = (next(i for i, line in enumerate(staged_lines) if word in line) for word in ("One step", "By which"))
    step = staged_lines[start:stop]
    assert "…" not in "".join(step)
    assert "copies of every tensor" in " ".join(" ".join(step).split())
