"""Runs the dashboard on a fake job in the terminal it is given; started by test_dashboard_pty.py in a pty."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fake_job import FakeSource, fsdp_job

from ranktop.tui.app import run
from ranktop.tui.cli import configure
from ranktop.tui.session.source import Received, Reset


class LiveSource(FakeSource):
    """A fake job in real time that leaves a trace of being asked and may hang when it is let go."""

    def __init__(self, trace: Path, hang: bool) -> None:
        job = fsdp_job(4)
        job.history_seconds = 30
        super().__init__(job, time.monotonic)
        self._trace, self._hang = trace, hang

    def drain(self) -> list[Received | Reset]:
        self._trace.touch()
        return super().drain()

    def close(self) -> None:
        if self._hang:
            time.sleep(60)


if __name__ == "__main__":
    configured = sys.argv[2] == "configured"
    if configured:
        configure()
    source = LiveSource(Path(sys.argv[1]), sys.argv[2] == "hang")
    sys.exit(run(source, theme=None if configured else "dark", ascii=None if configured else False))
