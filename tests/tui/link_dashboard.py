"""Runs the dashboard on a fake job whose time stands still after a while, so that its screens can be compared.

``link_dashboard.py RANKS SECONDS``: the job's clock stops after so many seconds; "inf" for a job that goes on.
"""

from __future__ import annotations

import sys
import time

from fake_findings import Scripted
from fake_job import FakeSource, fsdp_job

from ranktop.tui.app import RanktopApp
from ranktop.tui.exit import guarded


def main(ranks: int, seconds: float, theme: str | None) -> int:
    began = time.monotonic()

    def clock() -> float:
        return 1000.0 + min(time.monotonic() - began, seconds)

    job = fsdp_job(ranks)
    job.history_seconds = 30
    app = RanktopApp(FakeSource(job, clock), theme=theme, clock=clock)
    app.session.findings = Scripted(job)
    return guarded(app)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
