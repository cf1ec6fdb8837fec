"""The demo says at once when its job and the dashboard have no place to meet; no job is started then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ranktop.tui import demo


@pytest.mark.parametrize("case", ["open to others", "too long", "a file"])
def test_a_run_directory_that_cannot_be_used_ends_the_demo_with_advice(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / ("x" * 90 if case == "too long" else "run")
    if case == "open to others":
        place.mkdir()
        os.chmod(place, 0o755)
    elif case == "a file":
        place.write_text("")
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(place))
    monkeypatch.setattr("ranktop.tui.demo.subprocess.Popen", lambda *_: pytest.fail("a job was started"))
    assert demo.run_demo("fsdp2", 2, 1.0) == 1
    (told,) = capsys.readouterr().err.splitlines()
    advice = {"open to others": f"chmod 700 {place}", "too long": "to a shorter one", "a file": "not a directory"}
    assert told.startswith("ranktop: ")
    assert advice[case] in told
