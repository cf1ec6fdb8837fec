"""Runs the dashboard on a fake job whose time stands still after a while, so that its screens can be compared.

``link_dashboard.py RANKS SECONDS [THEME [TROUBLE]]``: the job's clock stops after so many seconds; "inf" for a job
that goes on. TROUBLE: "beat" for an exception in the application when somebody presses x, "thread" for one on a thread.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fake_findings import Scripted
from fake_job import FakeSource, fsdp_job
from textual import events

import ranktop.tui.app
from ranktop.tui.app import RanktopApp
from ranktop.tui.exit import guarded


class Troubled(RanktopApp):
    """Fails when somebody presses x."""

    CSS_PATH = str(Path(ranktop.tui.app.__file__).with_name("ranktop.tcss"))
    trouble_in = ""

    def on_key(self, event: events.Key) -> None:
        if event.key == "x" and self.trouble_in == "beat":
            raise RuntimeError("trouble in the application")
        if event.key == "x" and self.trouble_in == "thread":
            self.in_background(self._fails, print)

    def _fails(self) -> None:
        raise RuntimeError("trouble on a thread")


def main(ranks: int, seconds: float, theme: str | None, trouble: str) -> int:
    began = time.monotonic()

    def clock() -> float:
        return 1000.0 + min(time.monotonic() - began, seconds)

    job = fsdp_job(ranks)
    job.history_seconds = 30
    app = Troubled(FakeSource(job, clock), theme=theme, clock=clock)
    app.trouble_in = trouble
    app.session.findings = Scripted(job)
    return guarded(app)


if __name__ == "__main__":
    wanted = [*sys.argv[3:], "", ""]
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), wanted[0] or None, wanted[1]))
