"""One real torchrun job on three nodes (network namespaces), followed through what happens to networks and nodes.

The tests of this file share the job, in their order: it starts, a hub is cut off and comes back, the first node dies.
Two nodes have the same host name, and their monotonic clocks are an hour and a day ahead of the first one's.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from nodes import Lab, NodeViewer, lab, ranks_by_node, refused

from ranktop.tui.session.nodes import NODE_LOST

pytestmark = [
    pytest.mark.skipif(bool(refused()), reason=refused() or "nodes can be made"),
    pytest.mark.timeout(240),
]

HOSTS = ("node-a", "worker", "worker")
AHEAD = (0.0, 3600.0, 86400.0)
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Rank 0 makes the job's store: with the launcher's, torch 2.13 has a node that joins later wait for it in vain."""

CUT = 60.0
"""Seconds that a hub is out of reach."""

ALL = {0: (0, 1), 1: (2, 3), 2: (4, 5)}
States = Sequence[dict[str, Any]]


class Job:
    """The nodes, and one viewer of each."""

    def __init__(self, of: Lab) -> None:
        self.lab = of
        self.viewers = [NodeViewer(node) for node in of.nodes]

    def wait(
        self, wanted: Callable[[States], bool], seconds: float, *, of: Sequence[int] = (0, 1, 2), pause: float = 0.0
    ) -> States:
        """Return the first states of the viewers ``of`` that are wanted, all viewers being fed meanwhile."""
        deadline = time.monotonic() + seconds
        states: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            states = [self.viewers[number].state() for number in of]
            if all(states) and wanted(states):
                return states
            time.sleep(pause)
        told = [(state.get("step"), state_words(state), state.get("nodes")) for state in states]
        raise AssertionError(f"waited {seconds} s in vain: {told}\n{self.lab.output()}")

    def close(self) -> None:
        for viewer in self.viewers:
            viewer.close()


def state_words(state: dict[str, Any]) -> list[str]:
    return [rank["state"] for rank in state.get("ranks", ())]


def node_states(state: dict[str, Any]) -> list[str]:
    return [node["state"] for node in state["nodes"] or ()]


def whole(state: dict[str, Any]) -> bool:
    return state_words(state) == ["ok"] * 6 and ranks_by_node(state) == ALL


def dealt_out(state: dict[str, Any]) -> bool:
    """Whether each of three nodes has one of the three ranks."""
    return sorted(ranks_by_node(state).values()) == [(0,), (1,), (2,)]


def rules(state: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in state["findings"]]


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    """Start the job; its hubs alone talk over the second network."""
    with (
        tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        lab(Path(folder), HOSTS, AHEAD) as made,
    ):
        made.static(RANKTOP_HUB_ADDRESS="side0")
        found = Job(made)
        try:
            yield found
        finally:
            found.close()


def test_every_hub_shows_all_ranks_each_once(job: Job) -> None:
    states = job.wait(lambda states: all(map(whole, states)) and min(state["step"] for state in states) > 5, 120)
    for here, state in enumerate(states):
        assert [rank["rank"] for rank in state["ranks"]] == list(range(6))
        assert [(rank["node"], rank["node_rank"]) for rank in state["ranks"]] == [
            (HOSTS[rank // 2], rank // 2) for rank in range(6)
        ]
        assert node_states(state) == ["here" if node == here else "linked" for node in range(3)]
        assert all(rank["age"] < 3 for rank in state["ranks"]), "clocks that differ by a day do not age anything"
    first = job.lab.nodes[0].jobs()[0].name
    assert {state["id"] for state in states} == {first}, "one job, by the first node's id"
    names = [view.card.node for view in job.viewers[2].session.snapshot().ranks if view.card is not None]
    assert names == ["node-a", "node-a", "worker#1", "worker#1", "worker#2", "worker#2"]
    # The meeting leaves no line, and connects so that torch leaves none that it would not leave without.
    for node in job.lab.nodes:
        lines = [line for line in node.log.splitlines() if line.strip()]
        assert "ranktop" not in node.log
        assert len([line for line in lines if "c10d" in line]) <= 3, node.log


@pytest.mark.slow
def test_what_a_cut_off_hub_recorded_comes_when_it_is_back(job: Job) -> None:
    """After a minute."""
    job.wait(lambda states: all(map(whole, states)), 30)
    away, rest = job.lab.nodes[2], ["ok"] * 4
    before = job.viewers[0].session.ranks[4].sample
    assert before is not None
    cut_at = time.monotonic()
    away.link(up=False)
    try:
        lost = job.wait(lambda states: node_states(states[0])[2] == "lost" == node_states(states[2])[0], 40)
        assert state_words(lost[0]) == [*rest, NODE_LOST, NODE_LOST]
        assert state_words(lost[2])[4:] == ["ok", "ok"]
        assert lost[0]["nodes"][2]["detail"]
        until = lost[0]["step"] + 10
        job.wait(lambda states: states[0]["step"] > until and time.monotonic() > cut_at + CUT, CUT + 30, pause=0.5)
        state = job.viewers[0].state()
        assert state_words(state) == [*rest, NODE_LOST, NODE_LOST]
        assert rules(state) == ["node"]
        assert state["findings"][0]["ranks"] == [4, 5]
    finally:
        away.link(up=True)
    cut = time.monotonic() - cut_at
    states = job.wait(
        lambda states: all(whole(state) and set(node_states(state)) <= {"here", "linked"} for state in states), 60
    )
    assert [state["nodes"][2]["missed"] for state in states] == [0, 0, 0]
    assert job.viewers[2].session.ranks[4].history.column("step")[-1] - before.step > 2 * cut, "it went on meanwhile"
    for here, rank in ((0, 4), (0, 5), (1, 4), (2, 0), (2, 3)):
        assert_complete(job, here, rank, before.step)
    job.wait(lambda states: not any(rules(state) for state in states), 30)


def assert_complete(job: Job, here: int, rank: int, since_step: int) -> None:
    """A viewer has of a rank all samples and all steps that a viewer on the rank's own node has, each in its time."""
    told, true = (job.viewers[number].session.ranks[rank] for number in (here, rank // 2))
    assert told.sample is not None
    assert true.sample is not None
    last = min(told.sample.step, true.sample.step)
    points, truth = (
        [
            (int(step), float(t))
            for step, t in zip(one.history.column("step"), one.history.column("t"), strict=True)
            if since_step < step <= last
        ]
        for one in (told, true)
    )
    assert [step for step, _ in points] == [step for step, _ in truth]
    late = [t - at for (_, t), (_, at) in zip(points, truth, strict=True)]
    assert max(map(abs, late)) < 1.0, late
    # Each keeps its newest steps only, and one of them may be a sample further.
    first = max(min(step.index for step in one.steps) for one in (told, true))
    indexes, all_indexes = (
        {step.index for step in one.steps if max(first - 1, since_step) < step.index <= last} for one in (told, true)
    )
    assert indexes == all_indexes


def test_delay_and_loss_between_the_hubs_cost_no_sample(job: Job) -> None:
    netem = ["tc", "qdisc", "add", "dev", "side0", "root", "netem", "delay", "100ms", "20ms", "loss", "5%"]
    name = job.lab.nodes[1].name
    done = subprocess.run(["ip", "netns", "exec", name, *netem], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this kernel has no netem: {done.stderr.strip()[:80]}")
    try:
        states = job.wait(lambda states: all(map(whole, states)), 30)
        step = states[0]["step"]
        job.wait(lambda states: states[0]["step"] > step + 30, 60)
        assert_complete(job, 0, 2, step)
    finally:
        with contextlib.suppress(OSError):
            subprocess.run(["ip", "netns", "exec", name, *netem[:2], "del", *netem[3:6]], check=False, timeout=10)


def test_when_the_first_node_dies_the_job_is_seen_from_another(job: Job) -> None:
    job.wait(lambda states: all(map(whole, states)), 30)
    job.lab.nodes[0].kill()
    states = job.wait(
        lambda states: all(
            node_states(state)[0] == "lost" and set(state_words(state)[2:]) <= {"failed", "killed"} for state in states
        ),
        90,
        of=(1, 2),
    )
    for state in states:
        assert state_words(state)[:2] == [NODE_LOST, NODE_LOST]
        assert state["state"] == "ended"
        assert [
            finding["ranks"] for finding in state["findings"] if finding["rule"] in ("silent", "missing", "hang")
        ] == []
    # Who comes only now is told of the same.
    late = NodeViewer(job.lab.nodes[1])
    job.viewers.append(late)
    (state,) = job.wait(lambda states: node_states(states[0])[::2] == ["lost", "linked"], 30, of=(3,))
    assert [rank["rank"] for rank in state["ranks"]] == list(range(6))
    # No stack of C++ from the thread that meets, whatever the job's own say.
    for node in job.lab.nodes[1:]:
        assert not re.search(r"ranktop(?!\.agent)", node.log), node.log


@pytest.mark.slow
def test_a_node_that_joins_late_is_seen_by_all(job: Job) -> None:
    """An elastic job with c10d rendezvous, the hubs on whatever address leads to its store."""
    for node in job.lab.nodes:
        node.kill()
    job.close()
    job.viewers = [NodeViewer(node) for node in job.lab.nodes]
    for node in job.lab.nodes[:2]:
        job.lab.c10d(node, "2:3", "elastic", 29600, **OWN_STORE)
    two = {0: (0,), 1: (1,)}
    job.wait(
        lambda states: all(state_words(state) == ["ok"] * 2 and ranks_by_node(state) == two for state in states),
        90,
        of=(0, 1),
    )
    job.lab.c10d(job.lab.nodes[2], "2:3", "elastic", 29600, **OWN_STORE)
    # Which node gets which place is the rendezvous' affair; each has one rank.
    states = job.wait(
        lambda states: all(state_words(state) == ["ok"] * 3 and dealt_out(state) for state in states), 120
    )
    assert {state["world_size"] for state in states} == {3}
    job.wait(lambda states: len({state["id"] for state in states}) == 1, 10)
    for node in job.lab.nodes:
        (node.directory / "over").touch()
    for node in job.lab.nodes:
        assert node.started[-1].wait(40) == 0, node.log
        # Neither the meeting nor what it leaves of torch's at the end of a process says a word.
        assert not re.search(r"ranktop(?!\.agent)|recvValue|terminate called", node.log), node.log
