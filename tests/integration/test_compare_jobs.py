"""Two real jobs of one model, DDP and FSDP2: what they are said to differ in is what their tensors differ in."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import run_jobs
from jobs import end_hubs, environment, wait_until

from ranktop.tui.compare.command import Wish, run
from ranktop.tui.export.command import Wish as ExportWish
from ranktop.tui.export.command import export
from ranktop.tui.jobs import print_jobs
from ranktop.tui.status import print_status
from ranktop.wire.endpoints import find_jobs

STRATEGIES = ("ddp", "fsdp2")

pytestmark = pytest.mark.slow


class Pair:
    """The two jobs, which have ended, and what they have counted themselves. The second one's hub is still there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.run = folder / "fsdp2" / "run"

    def counted(self, strategy: str, rank: int) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.folder / strategy / f"{rank}.json").read_text())
        return found


@pytest.fixture(scope="module")
def both() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as name:
        pair = Pair(Path(name))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANKTOP_STATE_DIR", str(pair.state))
            patch.setenv("RANKTOP_INTERVAL", "0.2")
            patch.setenv("RANKTOP_HUB_LINGER", "60")
            places = [pair.folder / strategy for strategy in STRATEGIES]
            for place in places:
                place.mkdir()
            try:
                run_jobs("compared_worker", [(2, place) for place in places], timeout=110)
                patch.setenv("RANKTOP_RUN_DIR", str(places[0] / "run"))
                end_hubs()
                yield pair
            finally:
                for place in places:
                    patch.setenv("RANKTOP_RUN_DIR", str(place / "run"))
                    end_hubs()


@pytest.fixture
def pair(both: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(both.run))
    monkeypatch.setenv("RANKTOP_STATE_DIR", str(both.state))
    return both


def test_the_difference_is_that_of_their_tensors(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ddp", "fsdp2"], Wish("json")) == 0
    told = json.loads(capsys.readouterr().out)
    one, two = told["runs"]
    (away,) = told["differences"]
    for strategy, side in zip(STRATEGIES, told["runs"], strict=True):
        counted = pair.counted(strategy, side["memory"]["rank"])
        for name, size in counted.items():
            assert side["memory"]["measured"][name] == pytest.approx(size, abs=64), (strategy, name)
    parameters = 4 * (768 * 768 + 768) * 4
    whole, shard = (pair.counted(*at) for at in (("ddp", one["memory"]["rank"]), ("fsdp2", two["memory"]["rank"])))
    assert shard["parameters"] - whole["parameters"] == -parameters // 2
    for name, size in whole.items():
        assert away["categories"][name]["difference"] == pytest.approx(shard[name] - size, abs=128)
        assert away["categories"][name]["real"] is True
    assert away["memory"] == "less"
    assert away["verdict"].startswith("B needs ")
    assert " less per rank and " in away["verdict"]
    assert away["needs"]["difference"] == two["needs"] - one["needs"]
    plan = {row["name"]: row["values"] for row in told["plan"]}
    assert plan["strategy"] == {"A": "DDP", "B": "FSDP2 full shard"}
    assert not {"model", "parameters", "optimizer", "world size"} & plan.keys()
    # A ring of two sends in an all-reduce as much as it reduces.
    assert one["sent"]["bytes"] == parameters


def test_both_are_listed_told_and_written_out(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    wait_until(lambda: all(entry.ended for entry in find_jobs().jobs), 20)
    assert print_jobs(as_json=True) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["jobs"]}
    assert [listed[strategy]["state"] for strategy in STRATEGIES] == ["past", "ended"]
    for strategy in STRATEGIES:
        assert (listed[strategy]["world_size"], listed[strategy]["how"]) == (2, "finished")
        path = pair.folder / f"{strategy}.csv"
        assert export(strategy, ExportWish(output=str(path))) == 0
        rows = [row for row in csv.DictReader(path.open()) if row["rank"] == "0" and row["measured_parameters"]]
        parameters = pair.counted(strategy, 0)["parameters"]
        assert int(rows[-1]["measured_parameters"]) == pytest.approx(parameters, abs=64)
        assert int(rows[-1]["expected_parameters"]) == parameters
    assert print_status("ddp", as_json=True) == 0
    (status,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (status["state"], status["recording"]["how"], status["strategy"]["name"]) == ("past", "finished", "ddp")


def test_a_copy_through_a_pipe_is_as_good_as_the_recording(pair: Pair) -> None:
    copy = pair.folder / "copy.ranktop"
    command = [sys.executable, "-m", "ranktop.tui.cli"]
    env = environment(pair.folder / "fsdp2", RANKTOP_STATE_DIR=str(pair.state))
    with copy.open("wb") as file:
        subprocess.run(
            [*command, "export", "fsdp2", "--format", "recording", "--output", "-"], env=env, stdout=file, timeout=60,
            check=True,
        )  # fmt: skip
    done = subprocess.run(
        [*command, "compare", str(copy), "ddp", "--markdown"], env=env, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert done.stdout.startswith("**B needs ")
    assert " more per rank and " in done.stdout
