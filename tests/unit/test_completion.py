"""What a shell completes: in a real bash, and word by word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_recording import items_of, record

from ranktop.budget.models.catalogue import names as models
from ranktop.budget.run import STRATEGIES
from ranktop.tui import completion
from ranktop.tui.completion import PLAIN, beginning
from ranktop.wire.schema import Job

SCRIPT = """
eval "$(ranktop --show-completion)"
complete -p ranktop
for typed in "$@"; do
  COMP_WORDS=($typed)
  [ "${typed% }" = "$typed" ] || COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  _ranktop_completion ranktop
  echo "${COMPREPLY[*]}"
done
"""


def test_a_real_bash_completes_commands_flags_and_values(tmp_path: Path) -> None:
    bash, ranktop = shutil.which("bash"), Path(sys.executable).with_name("ranktop")
    if bash is None or not ranktop.exists():
        pytest.skip("no bash, or ranktop is not installed beside this Python")
    asked = {
        "ranktop si": "simulate",
        "ranktop explain zero-": "zero-infinity",
        "ranktop plan --world": "--world-size",
        "ranktop plan --model gpt2-x": "gpt2-xl",
    }
    done = subprocess.run(
        [bash, "--norc", "-c", SCRIPT, "bash", *asked],
        env={**os.environ, "PATH": f"{ranktop.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    first, *told = done.stdout.splitlines()
    assert first == "complete -o default -F _ranktop_completion ranktop"
    assert told == list(asked.values()), done.stderr


def test_only_words_that_mean_nothing_to_a_shell_are_offered() -> None:
    bad = ["$(reboot)", "a b", "`id`", "a;b", "'x'", "-rf", "x\ny", "a:b", "*", "~", ""]
    assert beginning([*bad, "sim-1", "fsdp_run.2"], "") == ["sim-1", "fsdp_run.2"]
    known = [*models(), *STRATEGIES, *completion.faults(""), *completion.gpus("")]
    assert all(PLAIN.fullmatch(word) for word in known)
    assert len(completion.faults("")) > 20


def test_recorded_jobs_are_offered_by_id_and_name(run_directory: None) -> None:
    assert completion.runs("") == []
    record(Job(id="0a1b2c3d4e", name="fsdp-run", world_size=1), items_of([]), end=2.0)
    assert completion.runs("") == ["0a1b2c3d4e", "fsdp-run"]
    assert completion.runs("fs") == ["fsdp-run"]


def test_machines_are_those_of_the_ssh_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert completion.machines("") == []
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu01 gpu02\n  User me\nhost *.lab !x login\n")
    assert completion.machines("") == ["gpu01", "gpu02", "login"]
    assert completion.machines("gpu") == ["gpu01", "gpu02"]
