"""Recordings are not trusted: whatever numbers and texts they hold, comparing and exporting them goes well."""

from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest
from compared_runs import Run, ddp, fsdp2

from ranktop.budget.terms import Memory
from ranktop.probes.reading import StepTimes
from ranktop.tui.compare.command import Wish, run
from ranktop.tui.export.command import Wish as ExportWish
from ranktop.tui.export.command import export
from ranktop.tui.status import print_status
from ranktop.wire.schema import Card, Sample

NUMBERS = (0, -1, 1, 2**59, -(2**59), 2**31, 10**15)
SECONDS = (None, 0.0, -1.0, 1e300, 1e-300, 5.0, -1e300)


def absurd(luck: random.Random, path: Path) -> Path:
    """Record a job whose cards and samples say impossible things."""

    def card(said: Card) -> Card:
        device = replace(
            said.device, name=luck.choice(("GPU", "", "G\x1b[2JPU\x07")), kind=luck.choice(("cuda", "\x1b["))
        )
        said = msgspec.structs.replace(said, device=device)
        if said.plan is None or luck.random() < 0.2:
            return msgspec.structs.replace(said, plan=None, inventory=None)
        layout = replace(
            said.plan.layout, shard=luck.choice((0, -3, 1, 2, 2**40)), tensor=luck.choice((0, 1, 2, 10**9)),
            pipeline=luck.choice((0, 1, 3)), context=luck.choice((1, 2, 0)), shard_rank=luck.choice(NUMBERS),
        )  # fmt: skip
        precision = replace(said.plan.precision, compute=luck.choice(("bfloat16", "\x1b[2Jx")))
        plan = replace(
            said.plan,
            layout=layout,
            precision=precision,
            strategy=luck.choice(("ddp", "fsdp2", "zero3", "x\x1b[2J", "")),
        )
        return msgspec.structs.replace(said, plan=plan, model=luck.choice(("", "A|b")), node="n\n\x07" * 30)

    def memory() -> Memory:
        return Memory(**{field.name: luck.choice((None, *NUMBERS)) for field in fields(Memory)})

    def sample(said: Sample) -> Sample:
        assert said.table is not None
        moments = {name: memory() for name in ("step_start", "forward_end", "no such moment")}
        table = msgspec.structs.replace(said.table, step=luck.choice((5, 2**60, -4, said.step)), moments=moments)
        step = StepTimes(
            index=luck.choice((said.step, 2**60, -1)), seconds=luck.choice(SECONDS), data=luck.choice(SECONDS),
            tokens=luck.choice((None, *NUMBERS)),
        )  # fmt: skip
        return msgspec.structs.replace(
            said, table=luck.choice((None, table)), steps=(step,) * 3, now=memory(), phase="\x1b]0;x\x07",
            peak_allocated=luck.choice((None, *NUMBERS)), step=luck.choice((said.step, -5, 2**61)),
            step_age=luck.choice(SECONDS),
        )  # fmt: skip

    job = luck.choice((fsdp2, ddp))()
    return Run(job, steps=luck.choice((1, 14, 30)), card=card, sample=sample, path=path).record()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("run_directory")
def test_absurd_numbers_and_texts_break_nothing(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    luck = random.Random(seed)
    paths = [str(absurd(luck, tmp_path / f"{at}.ranktop")) for at in range(2)]
    for form in ("page", "json", "markdown"):
        assert run(paths, Wish(form)) == 0
        told = capsys.readouterr().out
        assert not {"\x1b", "\x07", "\r"} & set(told)
        if form == "json":
            json.loads(told, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    for form in ("csv", "json"):
        assert export(paths[0], ExportWish(output=str(tmp_path / f"x.{form}"))) == 0
        assert b"\x1b" not in (tmp_path / f"x.{form}").read_bytes()
    assert print_status(paths[0], as_json=True) == 0


def test_a_recording_that_is_damaged_in_its_middle_costs_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    path = Run(fsdp2(), steps=80, path=tmp_path / "x.ranktop").record()
    with sqlite3.connect(path) as file:
        file.execute("UPDATE chunks SET data = substr(data, 1, length(data) / 2)")
    file.close()
    assert run([str(path), str(path)], Wish()) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert export(str(path), ExportWish(output=str(tmp_path / "x.csv"))) == 1
    said = capsys.readouterr().err
    assert said.startswith("ranktop: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "x.csv").exists()
