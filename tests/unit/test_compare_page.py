"""How a comparison is written: pages of every width, ASCII, Markdown, the JSON contract, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from compared_runs import GIB, Run, ddp, fsdp2
from golden_screens import compare as golden
from rich.cells import cell_len

from ranktop.budget.plan import Layout
from ranktop.tui.compare.command import Wish, run
from ranktop.tui.compare.comparison import Comparison, compare
from ranktop.tui.compare.loading import from_recording
from ranktop.tui.compare.page import as_text, page
from ranktop.tui.view.text import Line
from ranktop.wire.recording import Recording
from ranktop.wire.schema import Card, Job


def recordings(folder: Path) -> list[Path]:
    """DDP, FSDP2, and FSDP2 that failed with a larger cache of activations."""
    made = [Run(ddp(), peak=GIB), Run(fsdp2(), peak=3 * GIB, seconds=lambda step, rank: 2.2 + 0.01 * (step % 3))]
    made.append(Run(fsdp2(), peak=4 * GIB, steps=40, how="exception", code=1))
    made[2].job.job = Job(id="0bad", name="llama-fsdp-oom", world_size=2)
    for one in made:
        one.path = folder / f"{one.job.job.id}.ranktop"
    return [one.record() for one in made]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    loaded = []
    for path in recordings(tmp_path_factory.mktemp("runs")):
        with Recording.open(path) as recording:
            loaded.append(from_recording(path.stem, recording))
    return compare(loaded)


@pytest.fixture(scope="module")
def pair(comparison: Comparison) -> Comparison:
    return compare([side.run for side in comparison.sides[:2]])


def text(lines: list[Line]) -> str:
    return "\n".join(as_text(line, colour=False) for line in lines) + "\n"


NOW = 1_700_000_122.0 + 2 * 3600


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_of_two_runs(pair: Comparison, width: int) -> None:
    golden(f"compare-{width}", text(page(pair, width, colour=False, now=NOW)))


def test_a_job_that_is_over_is_not_told_as_one_that_goes_on(pair: Comparison) -> None:
    def heads(state: str) -> str:
        return text(page(compare([replace(side.run, state=state) for side in pair.sides]), 80, colour=False, now=NOW))

    assert "running, so far" in heads("running")
    assert "so far" not in heads("ended")


def test_the_page_of_three_runs(comparison: Comparison) -> None:
    golden("compare-three-80", text(page(comparison, 80, colour=False, now=NOW)))


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_terminal(comparison: Comparison, pair: Comparison, width: int, colour: bool) -> None:
    for made in (comparison, pair):
        for line in page(made, width, colour=colour, now=NOW):
            assert sum(cell_len(part) for part, _ in line) <= width, line


def test_a_terminal_without_unicode_gets_ascii(pair: Comparison) -> None:
    made = text(page(pair, 80, colour=True, ascii_only=True, now=NOW))
    assert made.isascii()
    assert "B needs 57.8 GiB less per GPU" in made


def test_a_long_page_ends_with_what_its_beginning_says(pair: Comparison) -> None:
    lines = text(page(pair, 80, colour=False, now=NOW, height=24)).splitlines()
    assert lines[0] == "B needs 57.8 GiB less per GPU and its steps are 10 % slower."
    assert lines[0] in lines[-5:]
    assert text(page(pair, 80, colour=False, now=NOW, height=99)).count(lines[0]) == 1


def test_the_bars_are_on_one_scale_and_show_both_sides(pair: Comparison) -> None:
    lines = text(page(pair, 80, colour=False, now=NOW)).splitlines()
    bars = [line for line in lines if line.startswith("   P")]
    filled = [sum(character.isalpha() for character in bar.split()[0]) for bar in bars]
    held = [side.held.held for side in pair.sides if side.held is not None]
    assert filled[0] / filled[1] == pytest.approx(held[0] / held[1], rel=0.05)


def test_markdown_has_the_same_numbers_and_no_markup_of_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = Run(fsdp2(), path=tmp_path / "evil.ranktop")
    evil.job.job = Job(id="ev", name="a|b*[x](http://e)<i>\x1b[31m", world_size=2)
    paths = [*map(str, recordings(tmp_path)[:1]), str(evil.record())]
    assert run(paths, Wish("markdown")) == 0
    told = capsys.readouterr().out
    assert "| **needs** |" in told
    assert "| parameters | 29.9 | 29.9 | 15.0 | 15.0 | -15.0 |" in told
    assert r"a\|b\*\[x\](http://e)&lt;i&gt;" in told
    assert "\x1b" not in told
    tables = [block.splitlines() for block in told.split("\n\n") if block.startswith("|")]
    for rows in tables:
        widths = {len([at for at, mark in enumerate(row) if mark == "|" and row[at - 1] != "\\"]) for row in rows}
        assert len(widths) == 1, rows


def test_stages_of_a_pipeline_are_compared_with_their_like(tmp_path: Path) -> None:
    def stages(card: Card) -> Card:
        assert card.plan is not None
        plan = replace(card.plan, layout=Layout(world_size=2, pipeline=2, pipeline_rank=card.rank))
        return msgspec.structs.replace(card, plan=plan)

    loaded = []
    for at, more in enumerate((0, 9 * GIB)):
        run = Run(fsdp2(), card=stages, path=tmp_path / f"{at}.ranktop")
        spec = run.job.specs[1]
        run.job.specs[1] = replace(spec, activations=spec.activations + more)
        with Recording.open(run.record()) as recording:
            loaded.append(from_recording(str(at), recording))
    told = text(page(compare(loaded), 80, colour=False, now=NOW)).splitlines()
    assert told[0].startswith("B needs 9.0 GiB more per GPU")
    rows = {line.strip().split("  ")[0]: line.split() for line in told if line.startswith("  stage")}
    assert rows["stage 0"][-1] == "0"
    assert rows["stage 1"][-1] == "+9.00"
    assert any("B, fullest rank per peer group: stage 1" in line for line in told)


RUN_KEYS = {
    "run", "source", "id", "name", "simulated", "state", "state_at_end", "host", "started", "ended", "world_size",
    "strategy", "strategy_words", "device", "needs", "memory", "groups", "allocator_peak", "allocator_peak_step",
    "times", "rate", "tokens", "token_unit", "sent", "loss", "reasons", "notes",
}  # fmt: skip
DIFFERENCE_KEYS = {
    "run", "to", "verdict", "because", "memory", "time", "needs", "categories", "times", "rate", "loss",
}  # fmt: skip
TOP_KEYS = {"schema", "steps", "needs_by", "loss_step", "caveats", "runs", "differences", "plan", "findings"}


def test_the_json_is_as_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = list(map(str, recordings(tmp_path)))
    assert run(paths, Wish("json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == TOP_KEYS
    assert told["schema"] == 1
    assert told["needs_by"] == "allocator_peak"
    assert (told["steps"]["first"], told["steps"]["last"], told["steps"]["same"]) == (6, 40, 35)
    for one in told["runs"]:
        assert one.keys() == RUN_KEYS
        assert one["memory"]["held"] == sum(
            value for name, value in one["memory"]["measured"].items() if name != "cache"
        )
    for one in told["differences"]:
        assert one.keys() == DIFFERENCE_KEYS
        base = told["runs"][0]["needs"]
        other = next(side["needs"] for side in told["runs"] if side["run"] == one["run"])
        assert one["needs"]["difference"] == other - base
        assert one["needs"]["real"] is True
    assert told["plan"][0] == {
        "name": "strategy", "values": {"A": "DDP", "B": "FSDP2 full shard", "C": "FSDP2 full shard"},
    }  # fmt: skip
    assert any(finding["runs"] == ["C"] and finding["rule"] == "death" for finding in told["findings"])
    documented = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    assert all(f'"{key}"' in documented for key in (TOP_KEYS | RUN_KEYS | DIFFERENCE_KEYS))


PAGE = Wish()


def test_exit_codes_and_what_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, _ = map(str, recordings(tmp_path))

    def complaint(code: int, sources: list[str], wish: Wish = PAGE) -> str:
        assert run(sources, wish) == code
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("ranktop: ")
        assert said.err.count("\n") == 1
        return said.err

    assert run([one, two], Wish()) == 0
    assert "B needs 57.8 GiB less per GPU" in capsys.readouterr().out
    assert "compare takes 2 to 8 runs, not 1" in complaint(2, [one])
    assert "there is no step from 9 to 3" in complaint(2, [one, two], Wish(first=9, last=3))
    assert "no job 'nosuch' on this machine, live or past" in complaint(3, [one, "nosuch"])
    assert "no file './nosuch.ranktop'" in complaint(3, [one, "./nosuch.ranktop"])
    assert "is a directory" in complaint(2, [one, str(tmp_path)])
    broken = tmp_path / "broken.ranktop"
    broken.write_bytes(b"SQLite format 3\0" + bytes(5000))
    assert "broken.ranktop" in complaint(1, [one, str(broken)])
    silent = Run(fsdp2(), steps=0, how="", path=tmp_path / "silent.ranktop")
    silent.job.specs = {}
    assert "no rank has said anything in it" in complaint(3, [one, str(silent.record(end=3.0))])


def test_a_job_is_named_by_its_id_its_beginning_or_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Run(ddp(), steps=20), Run(fsdp2(), steps=20)
    first.record()
    second.record()
    assert run(["d0", "llama-fsdp"], Wish()) == 0
    assert "A  llama-ddp d0d9" in capsys.readouterr().out
    twin = Run(fsdp2(), steps=20)
    twin.job.job = msgspec.structs.replace(twin.job.job, id="f5ff")
    twin.record()
    assert run(["d0", "llama-fsdp"], Wish()) == 2
    assert "'llama-fsdp' names several jobs: f5" in capsys.readouterr().err
