"""A real hub records what simulated ranks publish; its replay says what the live dashboard said at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial

import pytest

from ranktop.tui.replay.deck import Deck
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.state import Session
from ranktop.tui.simulate import MODULE, Wish, publishing
from ranktop.wire.endpoints import job_directory, run_directory
from ranktop.wire.recording import Recording
from ranktop.wire.recordings import list_recordings

JOB = "sim-replay"


def told(findings: tuple[Finding, ...]) -> set[tuple[str, str, tuple[int, ...], str]]:
    return {(one.rule, one.severity, one.ranks, one.subject) for one in findings}


@pytest.mark.slow
@pytest.mark.usefixtures("run_directory")
def test_the_replay_of_a_hang_is_what_was_seen_live() -> None:
    wish = Wish(ranks=3, seconds=0.4, faults=("hang:rank=1:from=8",), seed=5)
    arguments = wish.arguments(JOB)
    asked = subprocess.run([sys.executable, "-m", MODULE, *arguments, "--explain"], capture_output=True, check=True)
    run_directory(create=True)
    directory = job_directory(JOB)
    seen: list[tuple[float, str, set[tuple[str, str, tuple[int, ...], str]]]] = []
    with publishing(arguments, wish, json.loads(asked.stdout), directory):
        source, session = HubSource(directory), Session(findings_every=1.0)
        deadline = time.monotonic() + 60
        after = 0
        while after < 2 and time.monotonic() < deadline:
            source.poll(0.2)
            session.feed(source.drain())
            now = time.monotonic()
            if session.ranks and (not seen or now - seen[-1][0] >= 1.5):
                snapshot = session.snapshot()
                seen.append((now, snapshot.state, told(snapshot.findings)))
                after += any(rule == "hang" for rule, _, _, _ in seen[-1][2])
        source.close()
    assert after == 2, seen
    entry = next(one for one in list_recordings() if one.job_id == JOB)
    recording = Recording.open(entry.path)
    # The hub's clock is this machine's, and so is the recording's: the same numbers name the same times.
    assert recording.begin < seen[0][0] < seen[-1][0] <= recording.end
    deck = Deck(recording, real=partial(float, 0))
    for at, state, findings in (seen[-1], seen[len(seen) // 2], seen[-2], seen[-1]):
        deck.seek(at)
        while not deck.work(1.0):
            pass
        replayed = deck.session.snapshot()
        assert (replayed.state, told(replayed.findings)) == (state, findings)
    deck.close()
