"""``ranktop status``: what every rank says now, as a table for people and as JSON for scripts.

The JSON is a public contract (schema 1, ``docs/status.md``): bytes as integers, seconds as floats, unknown as null with
a reason beside it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Final

from ranktop.tui.cli import FAILED, FOUND, NONE, matching
from ranktop.tui.session.state import Session
from ranktop.tui.status_findings import reaches
from ranktop.tui.status_json import job_json
from ranktop.tui.status_table import print_snapshots, print_table
from ranktop.wire.codec import clean
from ranktop.wire.endpoints import Found, JobEntry, find_jobs

__all__ = ["SCHEMA", "job_json", "nothing_found", "print_status", "print_table"]

SCHEMA: Final = 1

ANSWER_SECONDS: Final = 3.0
"""How long a hub is waited for."""


def print_status(wanted: str | None, *, as_json: bool, fail_on: str | None = None) -> int:
    """Print the state of the jobs found and return the exit code.

    0: a job was found; 1: one has a finding of at least the severity ``fail_on``; 3: there is no job.
    """
    found = find_jobs()
    jobs = matching(found.jobs, wanted)
    if wanted is not None and not jobs:
        return _past(found, wanted, as_json=as_json, fail_on=fail_on)
    sessions = [session for entry in jobs if (session := ask(entry)) is not None]
    snapshots = [session.snapshot() for session in sessions]
    for problem in found.problems:
        print(f"ranktop: {clean(problem)}", file=sys.stderr)
    if as_json:
        told = [job_json(snapshot, session.job_id) for snapshot, session in zip(snapshots, sessions, strict=True)]
        print(json.dumps({"schema": SCHEMA, "jobs": told}, indent=2))
    elif snapshots:
        print_snapshots(snapshots)
    elif not jobs:
        print(nothing_found(), file=sys.stderr)
    if not sessions:
        return NONE
    return FAILED if fail_on and any(reaches(snapshot.findings, fail_on) for snapshot in snapshots) else FOUND


def _past(found: Found, wanted: str, *, as_json: bool, fail_on: str | None) -> int:
    """Tell of a job that is no longer live; the exit code."""
    from ranktop.tui.past import print_past
    from ranktop.tui.runs import NoRun, find_run

    for problem in found.problems:
        print(f"ranktop: {clean(problem)}", file=sys.stderr)
    try:
        return print_past(find_run(wanted), schema=SCHEMA, as_json=as_json, fail_on=fail_on)
    except NoRun as error:
        if as_json and error.code == NONE:
            print(json.dumps({"schema": SCHEMA, "jobs": []}, indent=2))
        print(f"ranktop: {error}", file=sys.stderr)
        return error.code


def nothing_found() -> str:
    """Return the line that says that there is no job, and what to do."""
    return "ranktop: no job on this machine; start one with: torchrun ... -m ranktop.agent train.py"


class Asked(Session):
    """A session that was filled by one question to a hub."""

    job_id: str = ""


def ask(entry: JobEntry) -> Asked | None:
    """Return the present state of a job, or None when its hub doesn't answer (told on standard error)."""
    from ranktop.tui.session.receiver import HubSource

    source = HubSource(entry.directory)
    session = Asked()
    session.job_id = entry.id
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        while time.monotonic() < deadline:
            source.poll(0.1)
            session.feed(source.drain())
            if source.caught_up and session.ranks and not any(node.asking for node in session.nodes.views):
                return session
    finally:
        source.close()
    if session.job is not None:
        return session
    detail = source.link().detail or f"its hub did not answer within {ANSWER_SECONDS:.0f} s"
    print(f"ranktop: job {entry.id} ({clean(entry.name)}): {clean(detail)}", file=sys.stderr)
    return None
