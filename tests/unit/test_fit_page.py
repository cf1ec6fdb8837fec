"""``ranktop plan --fit`` as it prints: the table, one plan's lines, what would help, and its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ranktop.tui.plan import plan

BASE = ("--model", "gpt2", "--seq-len", "512", "--world-size", "4", "--global-batch", "32", "--fit")

PLAN_KEYS = {
    *("name", "plan", "also", "layout", "precision", "checkpointing", "micro_batch", "accumulation", "total"),
    *("headroom", "missing", "margin", "tight", "host_bytes", "nvme_bytes", "sent", "seconds", "changes", "configs"),
    *("beside", "assumptions"),
}
FIT_KEYS = {
    *("global_batch", "layouts", "tried", "speeds", "fitting", "present", "nearest", "less_precise", "more_ranks"),
    *("shorter_sequence", "suggestions", "reason"),
}


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def now(tmp_path: Path) -> Path:
    """DeepSpeed's config of what runs now."""
    path = tmp_path / "ds.json"
    config = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    }
    path.write_text(json.dumps(config))
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert plan([*BASE, *arguments]) == 0
    out = capsys.readouterr()
    assert out.err == ""
    return out.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *arguments, "--json"))["fit"]
    return found


def test_the_table_fits_80_columns_and_the_numbers_are_those_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    page = said(capsys, "--device-memory", "8GiB")
    found = answer(capsys, "--device-memory", "8GiB")
    table = page.split("\n\n")[1].splitlines()
    assert max(map(len, page.splitlines())) <= 80
    assert table[0].split()[:5] == ["plan", "batch", "ckpt", "GiB", "left"]
    for number, (row, one) in enumerate(zip(table[1:], found["fitting"], strict=False), 1):
        assert row.startswith(f"{number:2} {one['plan']} ")
        assert f" {one['micro_batch']}×{one['accumulation']} " in row
        total = one["total"] / 2**30
        assert f" {total:.2f} " in row or f" {total:.1f} " in row
        assert ("!" in row) == one["tight"]


def test_the_json_has_every_documented_key(capsys: pytest.CaptureFixture[str]) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    found = answer(capsys, "--device-memory", "8GiB")
    assert set(found) == FIT_KEYS
    for one in found["fitting"]:
        assert set(one) == PLAN_KEYS
        assert one["total"] + one["headroom"] == 8 * 2**30
        seconds = one["seconds"]
        assert seconds["total"] == pytest.approx(sum(seconds.values()) - seconds["total"])
        assert set(one["beside"]) == set(one["configs"])
    for key in FIT_KEYS | PLAN_KEYS:
        assert f'"{key}"' in documented, key


def test_what_runs_now_stands_above_and_every_plan_tells_what_it_changes(
    capsys: pytest.CaptureFixture[str], now: Path
) -> None:
    page = said(capsys, "--device-memory", "8GiB", "--deepspeed", str(now))
    assert "now: zero2, 2 × 4, no checkpointing: " in page
    assert "     zero2 → " in page, "below its row, where there is no room beside it"
    assert max(map(len, page.splitlines())) <= 80
    found = answer(capsys, "--device-memory", "8GiB", "--deepspeed", str(now))
    assert found["present"]["plan"] == "zero2"
    assert found["present"]["changes"] == []
    for one in found["fitting"]:
        assert (one["plan"] == "zero2") == (not any(change.startswith("zero2 → ") for change in one["changes"]))


def test_on_a_wide_terminal_changes_stand_beside(
    capsys: pytest.CaptureFixture[str], now: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    table = said(capsys, "--device-memory", "8GiB", "--deepspeed", str(now)).split("\n\n")[1].splitlines()
    assert table[0].endswith("changes")
    assert any("  zero2 → " in row for row in table[1:])


def test_the_lines_of_any_plan_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--device-memory", "8GiB")["fitting"]
    for number, one in enumerate(found, 1):
        page = said(capsys, "--device-memory", "8GiB", "--fit-plan", str(number))
        assert f"\n{number}. {one['plan']}" in page
        first = next(iter(one["configs"].values()))
        assert "\n".join(f"  {line}" for line in first.splitlines()) in page
    beyond = str(len(found) + 1)
    assert plan([*BASE, "--device-memory", "8GiB", "--fit-plan", beyond]) == 2
    assert capsys.readouterr().err == f"ranktop: --fit-plan {beyond}: there are plans 1 to {len(found)}\n"


def test_when_nothing_fits_the_page_says_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    memory = ("--device-memory", "600MiB", "--strategy", "ddp,zero3,fsdp-full")
    page = said(capsys, *memory)
    found = answer(capsys, *memory)
    nearest = found["nearest"]
    assert found["fitting"] == []
    assert nearest["missing"] == -nearest["headroom"] > 0
    flat = " ".join(page.split())
    assert f"nothing fits for 32 samples a step: of {found['tried']} plans, {nearest['plan']} is nearest" in flat
    assert f"a larger GPU: {nearest['total'] / 2**30:.2f} GiB or more" in flat
    assert max(map(len, page.splitlines())) <= 80


def test_no_colours_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in said(capsys, "--device-memory", "8GiB")
