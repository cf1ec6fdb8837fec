"""``ranktop status`` and a real hub: the findings of one question, and the exit code that they make."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fake_job import GIB, FakeJob, fsdp_job
from hub_harness import JOB, Node, pump, until
from typer.testing import CliRunner

from ranktop.agent.publisher import Publisher
from ranktop.tui.commands import app
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.status import ask
from ranktop.wire.endpoints import find_jobs
from ranktop.wire.schema import Box, Card, End, Job, Sample

SECONDS = 45
"""Samples of each rank: more than the hub hands out."""


class Playing:
    """A fake job on a real hub, and a viewer that has followed it from its first message."""

    def __init__(self, node: Node, job: FakeJob) -> None:
        self.job = replace(job, job=Job(id=JOB.id, name="train", world_size=len(job.specs)))
        self.publishers = {rank: self._connected(node, rank) for rank in self.job.specs}
        self.viewer = node.viewer()
        self.following = Session()
        self.fed = 0

    def _connected(self, node: Node, rank: int) -> Publisher:
        publisher = node.publisher(rank)
        publisher.send(self.job.card(rank))
        publisher.send(self.job.described(rank))
        until(lambda: pump(publisher).connected)
        return publisher

    def play(self, seconds: int) -> None:
        for second in range(seconds):
            for rank, publisher in self.publishers.items():
                publisher.send(self.job.sample(rank, second))
            self.follow(second)

    def follow(self, second: int) -> None:
        def look() -> bool:
            for publisher in self.publishers.values():
                publisher.pump()
            events = self.viewer.drain()
            self.following.feed(events[self.fed :])
            self.fed = len(events)
            return all(self._heard(rank, second) for rank in self.publishers)

        until(look)

    def _heard(self, rank: int, second: int) -> bool:
        state = self.following.ranks.get(rank)
        return state is not None and state.sample is not None and state.sample.uptime == 3600 + second


def asked() -> Snapshot:
    (entry,) = find_jobs().jobs
    session = ask(entry)
    assert session is not None
    return session.snapshot()


def in_short(findings: tuple[Finding, ...]) -> set[tuple[str, str, tuple[int, ...], str]]:
    return {(finding.rule, finding.subject, finding.ranks, finding.severity) for finding in findings}


def status(*options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["status", *options])
    return done.exit_code, done.stdout, done.stderr


def findings_of(output: str) -> list[dict[str, Any]]:
    (job,) = json.loads(output)["jobs"]
    found: list[dict[str, Any]] = job["findings"]
    return found


def test_one_question_has_the_findings_of_a_viewer_that_followed(node: Node) -> None:
    playing = Playing(node, fsdp_job(4))
    playing.play(SECONDS)
    followed = in_short(playing.following.snapshot().findings)
    assert ("memory", "activations", (3,), "warning") in followed
    assert in_short(asked().findings) == followed


def test_the_exit_code_follows_the_gravest_finding(node: Node) -> None:
    publishers = [node.publisher(rank) for rank in range(2)]
    for rank, publisher in enumerate(publishers):
        publisher.send(Card(job=Job(id=JOB.id, name="train", world_size=2), rank=rank, pid=1, node="here"))
        # Its next sample is not due before the test is over: nobody is silent.
        publisher.send(Sample(rank=rank, step=12, interval=100.0))
    viewer = node.viewer()
    until(lambda: [pump(publisher) for publisher in publishers] and len(viewer.bodies(Sample)) == 2)
    for options in ((), ("--fail-on", "warning"), ("--fail-on", "critical"), ("--json", "--fail-on", "warning")):
        code, output, problems = status(*options)
        assert (code, problems) == (0, ""), options
        assert output
    publishers[1].send(Box(rank=1, error="OutOfMemoryError: CUDA out of memory", asked=GIB, calls=()))
    publishers[1].send(End(rank=1, how="exception", code=1, detail="OutOfMemoryError: CUDA out of memory"))
    until(lambda: [pump(publisher) for publisher in publishers] and len(viewer.bodies(End)) == 1)
    assert status()[0] == 0, "without --fail-on a finding is no failure"
    for severity in ("warning", "critical"):
        code, output, _ = status("--json", "--fail-on", severity)
        assert code == 1
        (finding,) = [one for one in findings_of(output) if one["severity"] == "critical"]
        assert (finding["ranks"], finding["rule"]) == ([1], "oom")
    code, output, _ = status("--fail-on", "critical")
    assert code == 1
    assert "OutOfMemoryError" in output


def test_a_value_that_is_none_is_bad_usage_and_no_job_is_no_job(node: Node) -> None:
    code, output, problem = status("--fail-on", "info")
    assert (code, output) == (2, "")
    assert problem == "ranktop: --fail-on takes warning or critical, not 'info'\n"
    assert status("--fail-on", "warning")[0] == 3
    assert status("--json", "--fail-on", "warning")[0] == 3
