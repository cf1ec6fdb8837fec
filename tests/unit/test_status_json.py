"""The contract for scripts: keys, types and reasons of ``ranktop status --json``, on a session made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Layout, Plan
from ranktop.budget.terms import MOMENTS, Amount, Budget, Memory
from ranktop.probes.reading import DeviceIdentity, StepTimes
from ranktop.tui.session.expected import difference
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session
from ranktop.tui.status import job_json, print_table
from ranktop.tui.status_json import KEYS, rank_json
from ranktop.tui.status_table import end_line, job_line, table_row
from ranktop.wire.schema import Card, End, Header, Job, Sample, Table

JOB = Job(id="abc", name="train\x1b[31m", world_size=3, launcher="torchrun")
RANK_KEYS = {
    *("rank", "local_rank", "node", "pid", "pids", "restart", "device", "moment", "moments_step", "measured"),
    "expected",
    *(
        "rules",
        "tolerance",
        "now",
        "moments",
        "reasons",
        "step",
        "collectives",
        "utilization",
        "power",
        "temperature",
        "agent",
        "allocator",
        "strays",
        "notes",
    ),
    *("age", "state", "end"),
}


def session() -> Session:
    """Rank 0 runs, rank 1 was killed before its model ran, rank 2 never appeared."""
    now = Memory(400, None, 800, 100, 0, 10, None, 500, 1000, 2810)
    table = Table(step=7, moments={"backward_end": Memory(400, 400, 800, 50, 0, 10, 150, 0, 1000, 2810)})
    plan = Plan(strategy="ddp", layout=Layout(world_size=3, replicate=3))
    inventory = Inventory.of([Kind((100,), "float32")])
    device = DeviceIdentity(kind="cuda", uuid="GPU-1", name="H100", total=2810)
    card = Card(job=JOB, rank=0, node="n0", pid=10, device=device, inventory=inventory, plan=plan)
    sample = Sample(
        rank=0,
        now=now,
        table=table,
        reasons={"gradients": "shown together with activations", "runtime": "no permission"},
        step=8,
        step_age=0.5,
        steps=(StepTimes(8, 0.5, 0.1, 0.1, 0.2, 0.1),),
    )
    end = End(rank=1, how="signal", code=9, detail="SIGKILL")
    found = Session(lambda: 100.0)
    found.feed(
        [
            Reset(job=JOB, hub="h", replaced=False),
            Received(Header("card", 0, 10, 0, 0), card, 1.0, 0),
            Received(Header("sample", 0, 10, 0, 1), sample, 0.25, 1),
            Received(Header("card", 1, 11, 0, 0), Card(job=JOB, rank=1, pid=11), 1.0, 2),
            Received(Header("end", 1, 11, 0, 1), end, 0.5, 3),
        ]
    )
    return found


def test_every_rank_has_every_key_and_every_null_its_reason() -> None:
    state = json.loads(json.dumps(job_json(session().snapshot())))
    assert {"id", "name", "state", "world_size", "strategy", "step", "ranks"} <= set(state)
    assert [rank["state"] for rank in state["ranks"]] == ["ok", "killed", "missing"]
    for rank in state["ranks"]:
        assert set(rank) == RANK_KEYS
        assert set(rank["moments"]) == set(MOMENTS)
        for memory in (rank["measured"], rank["expected"], rank["now"], *rank["moments"].values()):
            assert tuple(memory) == KEYS
            assert all(value is None or type(value) is int for value in memory.values())
        for side in ("measured", "expected", "now"):
            missing = {key for key, value in rank[side].items() if value is None}
            assert missing <= set(rank["reasons"]) | ({"total"} if side == "expected" else set())


def test_values_are_those_of_the_peak_moment() -> None:
    rank = job_json(session().snapshot())["ranks"][0]
    assert (rank["moment"], rank["moments_step"], rank["age"]) == ("backward_end", 7, 0.25)
    assert rank["measured"]["gradients"] == 400 == rank["expected"]["gradients"]
    assert rank["now"]["gradients"] is None
    assert rank["reasons"]["gradients"] == "now: shown together with activations"
    assert rank["reasons"]["runtime"].startswith("now: no permission")
    assert rank["reasons"]["cache"] == "expected: not part of a budget"
    known = {"kind": "cuda", "uuid": "GPU-1", "name": "H100", "total": 2810, "torch_index": None, "nvml_index": None}
    assert {key: rank["device"][key] for key in known} == known
    assert rank["step"]["seconds"] == pytest.approx(0.5)
    assert rank["end"] is None


def test_how_far_a_right_measurement_may_be_off_stands_beside_what_is_expected() -> None:
    snapshot = session().snapshot()
    view = snapshot.ranks[0]
    exact, near, guess = Amount(1000, slack=3), Amount(1000, within=0.02), Amount(7, within=None)
    amounts = {"parameters": exact, "activations": near, "runtime": guess}
    told = rank_json(replace(view, budget=Budget({view.peak or "": amounts})), snapshot)
    assert told["tolerance"] == {"parameters": 3, "activations": 20, "runtime": None}
    for amount, measured, delta in ((exact, 1003, 0), (exact, 1004, 4), (near, 979, -21), (guess, 9, None)):
        assert difference(measured, amount) == delta


def test_how_a_known_value_was_come_by_stands_apart_from_why_others_are_unknown() -> None:
    found = session()
    sample = found.ranks[0].sample
    assert sample is not None
    said = {"activations": "less 5 bytes that were never touched", "gradients": "shown together with activations"}
    found.feed([Received(Header("sample", 0, 10, 0, 2), msgspec.structs.replace(sample, reasons=said), 0.0, 4)])
    rank = job_json(found.snapshot())["ranks"][0]
    assert rank["notes"] == {"activations": said["activations"]}
    assert "activations" not in rank["reasons"] or said["activations"] not in rank["reasons"]["activations"]


def test_a_killed_and_a_missing_rank_say_so() -> None:
    state = job_json(session().snapshot())
    assert state["ranks"][1]["end"] == {"how": "signal", "code": 9, "detail": "SIGKILL"}
    assert state["ranks"][2]["pid"] is None
    assert state["ranks"][2]["device"]["kind"] is None
    assert state["strategy"]["name"] == "ddp"


def test_the_table_is_for_people_and_free_of_escapes() -> None:
    snapshot = session().snapshot()
    assert "\x1b" not in job_line(snapshot)
    rows = [table_row(view) for view in snapshot.ranks]
    assert [row[-1] for row in rows] == ["ok", "killed", "missing"]
    assert end_line(snapshot.ranks[1]) == "rank 1 killed (code 9): SIGKILL"
    assert rows[2][2:10] == ["–"] * 8, "unknown is not zero"


def test_the_table_says_what_a_difference_of_nothing_means_and_where_no_library_raised(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    failed = session()
    detail = "RuntimeError: [/__w/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer"
    end = End(rank=1, how="exception", code=1, detail=detail)
    failed.feed([Received(Header("end", 1, 11, 0, 9), end, 0.0, 9)])
    print_table([failed])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("0: within the rules' error") and len(line) <= 118 for line in lines)
    assert "rank 1 failed (code 1): RuntimeError: Connection closed by peer" in lines
