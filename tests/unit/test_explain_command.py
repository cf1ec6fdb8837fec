"""``ranktop explain``: what is printed, what is complained about, and in which colours."""

from __future__ import annotations

import sys

import pytest

from ranktop.tui import printing
from ranktop.tui.cli import main
from ranktop.tui.explain import explain

SMALL = ["--model", "gpt2", "--world-size", "2"]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["zero2", *SMALL], [*SMALL, "zero2"], [*SMALL, "--strategy", "zero2"], ["ZeRO-2", *SMALL], [*SMALL, "ZERO_2"],
        [*SMALL, "--strategy", "ZeRO-2"],
    ],
)  # fmt: skip
def test_the_strategy_may_stand_anywhere(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(arguments) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "124,439,808 parameters" in out
    assert "ZeRO-2 · dp 2" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 90


def test_flags_change_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(["ddp", *SMALL, "--micro-batch", "3", "--link", "10GB/s"]) == 0
    out = capsys.readouterr().out
    assert "micro-batch 3 → 6" in out
    assert "at 10 GB/s" in out


def test_a_global_batch_becomes_accumulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(["ddp", *SMALL, "--global-batch", "8"]) == 0
    assert "accumulation 4 → 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zero9", *SMALL], "no strategy 'zero9' (did you mean"),
        (["zero9", *SMALL], "there are single, dp, ps, ddp"),
        ([], "say which strategy"),
        (["zero2,zero3", *SMALL], "no strategy 'zero2,zero3'"),
        (["zero2"], "say which model"),
        (["zero2", "--modl", "gpt2"], "no flag --modl"),
        (["zero2", "--model", "gpt2", "extra"], "unexpected 'extra'"),
        (["tp", "--model", "gpt2", "--tp", "5", "--world-size", "5"], "tp 5 does not divide the 12 heads"),
        (["dp", "--model", "gpt2", "--world-size", "64"], "dp is not possible here: DataParallel is one process"),
        (["ddp", *SMALL, "--global-batch", "3"], "3 samples per step are not"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert said in err


def test_the_command_line_knows_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ranktop", "explain", "fsdp-full", *SMALL])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "FSDP2 full shard" in capsys.readouterr().out


def test_without_unicode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    assert explain(["ddp", *SMALL]) == 0
    body = capsys.readouterr().out.split("ddp  DDP", 1)[1]
    assert body.isascii()


def test_help_lists_the_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        explain(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "ranktop explain STRATEGY" in out
    assert "fsdp-hybrid" in out


@pytest.mark.parametrize(("term", "colorterm", "wanted"), [("xterm-256color", "truecolor", "38;2;127;168;255"),
                                                           ("xterm-256color", "", "38;5;"),
                                                           ("linux", "", "34")])  # fmt: skip
def test_colours_are_those_of_the_terminal(
    term: str, colorterm: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TEXTUAL_THEME", "COLORFGBG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLORTERM", colorterm)
    printing._palette.cache_clear()
    try:
        line = printing.printed(((" ", ""), ("■", "key:p"), (" parameters", "text"), ("   ", "")))
    finally:
        printing._palette.cache_clear()
    assert f"\x1b[{wanted}" in line
    assert line.endswith(" parameters")
