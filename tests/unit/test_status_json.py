"""The contract for scripts: keys, types and reasons of ``ranktop status --json``, on a session made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.plan import Layout, Plan
from ranktop.budget.terms import MOMENTS, Amount, Budget, Memory
from ranktop.probes.reading import AllocatorReading, DeviceIdentity, StepTimes
from ranktop.tui.session.expected import difference
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session
from ranktop.tui.status import job_json, print_table
from ranktop.tui.status_findings import finding_json
from ranktop.tui.status_json import KEYS, rank_json
from ranktop.tui.status_table import job_line, table_row
from ranktop.wire.schema import Box, Call, Card, End, Header, Job, Mark, Sample, Stack, Table

GIB = 2**30
JOB = Job(id="abc", name="train\x1b[31m", world_size=3, launcher="torchrun")
RANK_KEYS = {
    *("rank", "local_rank", "node", "node_rank", "pid", "pids", "restart", "mesh", "device", "moment", "moments_step"),
    *("measured", "expected"),
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
        "progress",
        "rate",
        "activity",
        "trainer",
    ),
    *("age", "state", "end", "process", "stack", "box"),
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
    assert {"id", "name", "state", "world_size", "strategy", "step", "ranks", "findings"} <= set(state)
    assert [rank["state"] for rank in state["ranks"]] == ["ok", "killed", "missing"]
    assert [rank["mesh"] for rank in state["ranks"]] == [
        dict.fromkeys(("replicate", "shard", "tensor", "pipeline"), 0),
        None,
        None,
    ]
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
    assert rows[2][2:10] == ["–"] * 8, "unknown is not zero"


def test_the_table_says_what_a_difference_of_nothing_means_and_where_no_library_raised(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    failed = session()
    detail = "RuntimeError: [/__w/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer"
    end = End(rank=1, how="exception", code=1, detail=detail)
    failed.feed([Received(Header("end", 1, 11, 0, 9), end, 8.0, 9)])
    print_table([failed])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("0: within the rules' error") and len(line) <= 118 for line in lines)
    (line,) = [line for line in lines if "rank 1 failed" in line]
    assert line.startswith("✖ rank 1 failed (exit code 1): RuntimeError: Connection closed by peer  (for ")


FINDING_KEYS = {
    *("rule", "severity", "ranks", "subject", "sentence", "evidence", "advice", "since", "confidence", "peers"),
}


def test_findings_have_every_key_and_say_since_when_in_seconds_ago() -> None:
    (finding,) = json.loads(json.dumps(job_json(session().snapshot())))["findings"]
    assert set(finding) == FINDING_KEYS
    assert (finding["rule"], finding["severity"], finding["ranks"]) == ("death", "critical", [1])
    assert finding["sentence"] == "rank 1 was killed (signal 9): SIGKILL"
    assert finding["since"] == {"seconds": 0.5, "step": None}
    assert (finding["confidence"], finding["subject"], finding["peers"]) == ("high", "", [])
    assert all(set(fact) == {"name", "value", "unit"} for fact in finding["evidence"])
    assert {"name": "process id", "value": 11, "unit": ""} in finding["evidence"]


def test_what_one_question_cannot_know_is_null_and_no_number_is_infinite() -> None:
    snapshot = session().snapshot()
    facts = (Evidence("spreads", float("inf")), Evidence("held", 5, "B"), Evidence("share", float("nan"), "%"))
    found = Finding(
        rule="memory", severity="info", ranks=(0,), sentence="x", evidence=facts, since=snapshot.now, step=8
    )
    told = finding_json(found, snapshot)
    assert told["since"] is None, "dated by this very look"
    assert [fact["value"] for fact in told["evidence"]] == [None, 5, None]
    json.dumps(told, allow_nan=False)
    assert finding_json(replace(found, step=3), snapshot)["since"] == {"seconds": None, "step": 3}
    assert finding_json(replace(found, since=90.0), snapshot)["since"] == {"seconds": 10.0, "step": 8}
    assert finding_json(replace(found, since=None, step=None), snapshot)["since"] is None


def test_a_stuck_rank_has_its_stack_and_its_nodes_word() -> None:
    found = session()
    calls = (Call("train.py", 10, "main"), Call("loader.py", 88, "read"))
    stuck = Stack(rank=0, step=8, waited=12.5, calls=calls)
    found.feed([Received(Header("stack", 0, 10, 0, 3), stuck, 2.0, 5)])
    found.feed([Received(Header("mark", 0, 10, 0, 4), Mark(what="process", detail="stopped"), 1.0, 6)])
    rank, dead, _ = job_json(found.snapshot())["ranks"]
    assert rank["stack"] == {
        "step": 8, "waited": 12.5, "reason": "", "age": 2.0,
        "calls": [
            {"file": "train.py", "line": 10, "function": "main"}, {"file": "loader.py", "line": 88, "function": "read"},
        ],
    }  # fmt: skip
    assert rank["process"] == "stopped"
    assert (dead["stack"], dead["process"], dead["box"]) == (None, None, None)


BOX = Box(
    rank=1, error="OutOfMemoryError: CUDA out of memory", step=41, phase="forward", asked=4 * GIB, free=2 * GIB,
    limit=80 * GIB, memory=Memory(activations=40 * GIB, parameters=7 * GIB, cache=GIB, free=2 * GIB, total=80 * GIB),
    allocator=AllocatorReading(backend="native", largest_free=GIB, ooms=1), inputs=("int64 [8, 1024]",),
    calls=tuple(Call("model.py", line, "forward") for line in range(7)), reasons={"memory.optimizer": "not told"},
)  # fmt: skip


def test_the_black_box_of_a_rank_is_whole_and_may_be_of_its_former_life() -> None:
    found = session()
    found.feed([Received(Header("box", 1, 11, 0, 7), BOX, 0.75, 7)])
    box = json.loads(json.dumps(job_json(found.snapshot())))["ranks"][1]["box"]
    assert set(box) == {
        *("error", "step", "phase", "asked", "free", "limit", "memory", "allocator", "collectives", "inputs", "calls"),
        *("reasons", "former_life", "age"),
    }
    assert (box["step"], box["asked"], box["age"], box["former_life"]) == (41, 4 * GIB, 0.75, False)
    assert tuple(box["memory"]) == KEYS
    assert (box["memory"]["activations"], box["memory"]["optimizer"]) == (40 * GIB, None)
    assert (box["allocator"]["largest_free"], box["allocator"]["backend"]) == (GIB, "native")
    assert box["calls"][-1] == {"file": "model.py", "line": 6, "function": "forward"}
    found.feed([Received(Header("card", 1, 21, 1, 0), Card(job=JOB, rank=1, pid=21, restart=1), 0.1, 8)])
    after = job_json(found.snapshot())["ranks"][1]["box"]
    assert (after["former_life"], after["error"]) == (True, BOX.error)
