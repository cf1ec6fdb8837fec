"""The command line of ``jobs``, ``export`` and ``compare``: exit codes, and complaints of one line."""

from __future__ import annotations

import pytest
from compared_runs import Run, ddp, fsdp2
from typer.testing import CliRunner

from ranktop.tui.commands import app

pytestmark = pytest.mark.usefixtures("run_directory")


def asked(*words: str) -> tuple[int, str, str]:
    """Exit code, what was printed, what was complained of."""
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_good_ways_end_with_0() -> None:
    Run(ddp(), steps=12).record()
    Run(fsdp2(), steps=12).record()
    code, printed, _ = asked("jobs")
    assert (code, len(printed.splitlines())) == (0, 3)
    code, printed, _ = asked("compare", "d0d9", "f5d9", "--from", "3", "--to", "11")
    assert code == 0
    assert "Compared: steps 3-11." in printed
    code, printed, _ = asked("compare", "d0d9", "f5d9", "--markdown")
    assert (code, printed[:4]) == (0, "**B ")
    code, printed, _ = asked("export", "llama-ddp", "--every", "4")
    assert (code, printed[:7]) == (0, "time,t,")
    assert asked("status", "--job", "f5d9", "--json")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("compare d0d9", 2, "compare takes 2 to 8 runs, not 1"),
        ("compare d0d9 d0d9 --json --markdown", 2, "--json and --markdown are two forms: give one"),
        ("compare d0d9 d0d9 --from 5 --to 4", 2, "there is no step from 5 to 4"),
        ("compare d0d9 nosuch", 3, "no job 'nosuch' on this machine, live or past"),
        ("export d0d9 --format xlsx", 2, "--format takes csv, json, parquet, recording, not 'xlsx'"),
        ("export nosuch", 3, "no job 'nosuch' on this machine, live or past"),
        ("export d0d9 --format recording --to +3", 2, "a recording is copied whole"),
        (f"export {'x' * 300}", 3, "no job 'xxx"),
        ("export gpu01/ab12 -F -x", 2, "-F takes what ssh -F takes"),
        ("replay gpu01:22/ab12 -p 23", 2, "gpu01:22 and -p 23 name different ports"),
        ("compare d0d9 gpu01/ab12 -o ProxyCommand", 2, "-o takes KEY=VALUE as ssh does"),
        ("status --job nosuch", 3, "no job 'nosuch' on this machine, live or past"),
    ],
)
def test_bad_ways_end_with_their_code_and_one_line(words: str, code: int, complaint: str) -> None:
    Run(ddp(), steps=12).record()
    ended, printed, said = asked(*words.split())
    assert (ended, printed) == (code, "")
    assert said.startswith("ranktop: ")
    assert complaint in said
    assert said.count("\n") == 1


def test_no_job_at_all_is_3() -> None:
    code, printed, said = asked("jobs")
    assert (code, printed) == (3, "")
    assert "no job on this machine, live or past; start one with" in said
