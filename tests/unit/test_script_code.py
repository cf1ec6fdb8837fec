"""The hash that tells whether ranks run the same script: of the file that runs, in every form it can be started."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from ranktop.agent.script_code import LARGEST, ScriptCode

SCRIPT = "import sys\nfrom ranktop.agent.script_code import ScriptCode\nprint(ScriptCode().digest())\n# \u00e9\n"


def expected(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@pytest.mark.parametrize(
    "command",
    [
        ["train.py"],
        ["-m", "jobs.train"],
        ["-m", "ranktop.agent", "train.py", "--flag"],
        ["-m", "ranktop.agent", "-m", "jobs.train"],
        ["-m", "ranktop.agent", "jobs"],
        ["-m", "ranktop.agent", "-m", "jobs"],
    ],
)
def test_every_form_of_starting_a_script_tells_its_file(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    for path in ("train.py", "jobs/train.py", "jobs/__main__.py"):
        (tmp_path / path).write_text(SCRIPT, "utf-8")
    env = {**os.environ, "RANKTOP_DISABLE": "1"}
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected(SCRIPT)


def test_code_without_a_file_has_no_hash() -> None:
    command = [sys.executable, "-c", SCRIPT]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == ""


def main_of(monkeypatch: pytest.MonkeyPatch, path: object) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__["__file__"] = path
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def test_the_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    main = main_of(monkeypatch, None)
    code = ScriptCode()
    assert code.digest() == "", "the script does not run yet"
    main.__file__ = str(script)
    assert code.digest() == expected("one")
    script.write_text("two")
    assert code.digest() == expected("one"), "what runs is what was read"


def test_what_is_no_plain_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(LARGEST + 1)
    for path in (pipe, large, tmp_path, tmp_path / "missing", "a\0b", 7, ""):
        main_of(monkeypatch, path if isinstance(path, int) else str(path))
        assert ScriptCode().digest() == ""
