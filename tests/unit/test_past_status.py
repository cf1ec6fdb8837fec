"""``ranktop status --job`` of a job that is over: the same numbers as at its end, and said to be of then."""

from __future__ import annotations

import json

import msgspec
import pytest
from compared_runs import Run, fsdp2
from made_recording import WALL

from ranktop.tui.commands import choose
from ranktop.tui.past import headline
from ranktop.tui.status import print_status
from ranktop.tui.status_json import job_json
from ranktop.wire.schema import Sample

pytestmark = pytest.mark.usefixtures("run_directory")


def test_the_json_is_that_of_the_last_moment_with_what_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    path = Run(fsdp2(), steps=8).record()
    assert print_status("f5d9", as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    (job,) = told["jobs"]
    assert (job["id"], job["state"], job["step"]) == ("f5d9", "past", 8)
    recorded = job["recording"]
    assert recorded.keys() == {"path", "host", "started", "ended", "ago", "state", "how"}
    assert (recorded["path"], recorded["state"], recorded["how"]) == (str(path), "ended", "finished")
    assert recorded["started"] == WALL
    assert recorded["ended"] == pytest.approx(WALL + 18.0, abs=0.2)
    assert recorded["ago"] > 86400.0
    assert [rank["state"] for rank in job["ranks"]] == ["ended", "ended"]
    ages = [rank["age"] for rank in job["ranks"]]
    assert ages == pytest.approx([1.0, 1.0]), "counted from the end of the recording, not from now"
    assert job["ranks"][0]["measured"]["parameters"] == 8_030_261_248 * 4 // 2


def test_live_jobs_have_the_same_keys() -> None:
    from ranktop.tui.session.state import Session

    assert job_json(Session().snapshot())["recording"] is None


def test_the_table_says_that_it_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    Run(fsdp2(), steps=8, how="exception", code=1).record()
    assert print_status("llama-fsdp", as_json=False) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("RECORDED, ended ")
    assert out[0].endswith(" d ago (rank 0 failed: exit code 1): all below is of its last moment, ages are from then")
    assert "llama-fsdp (f5d9)" in out[1]
    assert headline({"ago": 7300.0, "how": "finished"}).startswith("RECORDED, ended 2 h ago (finished)")
    assert headline({"ago": None, "how": "cut off"}).startswith("RECORDED, being written (cut off)")


def test_the_dashboard_of_a_job_that_is_over_is_its_replay(capsys: pytest.CaptureFixture[str]) -> None:
    Run(fsdp2(), steps=8).record()
    for wanted, words in (("llama-fsdp", "it is over: ranktop replay f5d9"), ("nosuch", "`ranktop jobs` lists")):
        with pytest.raises(SystemExit) as ended:
            choose(wanted)
        assert ended.value.code == 3
        assert f"no live job '{wanted}' on this machine; {words}" in capsys.readouterr().err


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Run(fsdp2(), steps=8, how="exception", code=1).record()
    assert print_status("f5", as_json=True, fail_on="critical") == 1
    assert json.loads(capsys.readouterr().out)["jobs"][0]["findings"][0]["rule"] == "death"
    assert print_status("nosuch", as_json=False) == 3
    assert "no job 'nosuch' on this machine, live or past" in capsys.readouterr().err
    assert print_status("nosuch", as_json=True) == 3
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "jobs": []}
    assert print_status(str(failed), as_json=True) == 0, "a file will do as well"
    capsys.readouterr()
    failed.write_bytes(b"SQLite format 3\0" + bytes(9000))
    assert print_status(str(failed), as_json=True) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_one_that_was_cut_off_is_told_with_the_state_that_it_had(capsys: pytest.CaptureFixture[str]) -> None:
    def brisk(sample: Sample) -> Sample:
        return msgspec.structs.replace(sample, step_age=0.1)

    Run(fsdp2(), steps=8, how="", sample=brisk).record()
    assert print_status("f5d9", as_json=True) == 0
    job = json.loads(capsys.readouterr().out)["jobs"][0]
    assert (job["state"], job["recording"]["state"], job["recording"]["how"]) == ("past", "running", "cut off")
    assert [rank["state"] for rank in job["ranks"]] == ["ok", "ok"]
