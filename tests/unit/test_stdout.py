"""Standard output that nobody reads, or that takes nothing: an exit code and at most one line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("run_directory")


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(("words", "code"), [("--help", 0), ("status --json", 3), ("jobs --json", 3)])
def test_a_reader_that_has_left_is_no_failure(words: str, code: int, buffered: bool) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    ended, said = ran(words, writable, buffered)
    os.close(writable)
    # What is printed before the code is known ends the command well, as it does for ``head``.
    assert ended == code or (ended == 0 and not buffered)
    assert said == ""


@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_is_told_in_one_line(buffered: bool) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    assert ran("status --json", full, buffered) == (1, "ranktop: cannot write: No space left on device\n")
    os.close(full)


def ran(words: str, output: int, buffered: bool) -> tuple[int, str]:
    """Exit code, standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "ranktop.tui.cli", *words.split()], stdout=output, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr
