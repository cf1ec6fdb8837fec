"""A job of several nodes as a session has it: which are lost, what is said of their ranks, and two of one name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_job import FakeClock

from ranktop.probes.reading import Collectives, GroupPosition
from ranktop.tui.session.nodes import NODE_LOST
from ranktop.tui.session.source import Received, Reset
from ranktop.tui.session.state import Session
from ranktop.tui.status_json import job_json
from ranktop.tui.status_table import job_line
from ranktop.tui.view.facts import steps_block
from ranktop.tui.view.grid import by_node
from ranktop.tui.view.nodes import count_words, nodes_line
from ranktop.tui.view.options import Options
from ranktop.tui.view.status import rank_state
from ranktop.wire.nodes import NodeLink, Nodes
from ranktop.wire.schema import Body, Card, End, Header, Job, Sample

JOB = Job(id="j", name="job", world_size=6)
HOSTS = ("node-a", "worker", "worker")


def message(rank: int, body: Body, *, age: float = 0.0, pid: int = 100) -> Received:
    return Received(Header(type(body).__name__.lower(), rank, pid + rank if rank >= 0 else 0, 0, 0), body, age, 0)


def links(*states: str, since: float = 50.0, seen: int = 3, missed: int = 0) -> Received:
    """Return what a hub says whose clock stood at ``since`` when the last of the states began, just now."""
    found = tuple(
        NodeLink(
            node_rank=node, host=HOSTS[node], state=state, since=since if state != "here" else since - 40,
            ranks=(2 * node, 2 * node + 1) if node < seen else (), missed=missed if state == "behind" else 0,
            detail="no answer from 10.0.0.3:4000" if state in ("lost", "unseen") else "",
        )
        for node, state in enumerate(states)
    )  # fmt: skip
    return message(-1, Nodes(here=states.index("here"), nodes=found))


def samples(ranks: range, step: int, age: float = 0.0) -> list[Received]:
    return [message(rank, Sample(rank=rank, step=step, step_age=0.1), age=age) for rank in ranks]


def cards(ranks: range) -> list[Received]:
    return [
        message(rank, Card(job=JOB, rank=rank, local_rank=rank % 2, local_size=2, node=HOSTS[rank // 2], pid=100,
                           pids=(100,), node_rank=rank // 2))
        for rank in ranks
    ]  # fmt: skip


class Watched:
    """A session of three nodes, two ranks each."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.session = Session(self.clock)
        self.session.feed([Reset(JOB, "h", False), links("here", "linked", "linked"), *cards(range(6))])
        self.step = 0

    def go_on(self, seconds: int, ranks: range = range(6)) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.step += 1
            self.session.feed(samples(ranks, self.step))

    def states(self) -> list[str]:
        return [view.state for view in self.session.snapshot().ranks]

    def rules(self) -> list[str]:
        return [finding.rule for finding in self.session.snapshot().findings]


def test_the_last_word_of_a_lost_node_is_not_called_behind() -> None:
    def told(rank: int) -> str:
        snapshot = watched.session.snapshot()
        lines = steps_block(snapshot.ranks[rank], snapshot, 40, Options().glyphs)
        return "\n".join("".join(part for part, _ in line) for line in lines)

    def feed(ranks: range, calls: int) -> None:
        groups = (GroupPosition(name="0", description="default_pg", size=6, enqueued=calls, completed=calls),)
        found = Collectives(groups=groups)
        watched.session.feed(
            [message(rank, Sample(rank=rank, step=9, step_age=0.1, collectives=found)) for rank in ranks]
        )

    watched = Watched()
    feed(range(6), 40)
    watched.clock.advance(9.0)
    feed(range(4), 90)
    assert "50 behind" in told(4), "a silent rank of a node that is there"
    watched.session.feed([links("here", "linked", "lost")])
    assert "behind" not in told(4)
    assert len(rank_state(watched.session.snapshot().ranks[4], None, Options().glyphs)[0]) <= 16


def test_ranks_of_a_lost_node_are_neither_silent_nor_fresh_and_are_told_once() -> None:
    watched = Watched()
    watched.go_on(30)
    assert watched.states() == ["ok"] * 6
    assert watched.rules() == []
    watched.session.feed([links("here", "linked", "lost")])
    assert watched.states() == ["ok"] * 4 + [NODE_LOST] * 2
    watched.go_on(90, range(4))
    snapshot = watched.session.snapshot()
    assert [view.state for view in snapshot.ranks] == ["ok"] * 4 + [NODE_LOST] * 2
    assert snapshot.state == "running"
    assert all(snapshot.ranks[rank].stale for rank in (4, 5))
    (finding,) = snapshot.findings
    assert (finding.rule, finding.severity, finding.ranks) == ("node", "warning", (4, 5))
    assert finding.sentence == "worker#2 (ranks 4, 5) is not reachable for 90 s"
    assert finding.since == pytest.approx(snapshot.now - 90)
    assert [fact.value for fact in finding.evidence] == ["no answer from 10.0.0.3:4000"]
    assert count_words(snapshot) == "3 nodes, 1 lost"
    assert nodes_line(snapshot) == (
        "nodes: node-a (ranks 0, 1) here, worker#1 (ranks 2, 3) linked, worker#2 (ranks 4, 5) lost for 90 s "
        "(no answer from 10.0.0.3:4000)"
    )
    assert rank_state(snapshot.ranks[4], None, Options().glyphs)[0].endswith("node lost 90s")
    state = job_json(snapshot)
    assert [rank["state"] for rank in state["ranks"]] == ["ok"] * 4 + ["node lost"] * 2
    assert state["nodes"][2] == {
        "node_rank": 2, "host": "worker", "state": "lost", "since_s": pytest.approx(90.0), "ranks": [4, 5],
        "missed": 0, "detail": "no answer from 10.0.0.3:4000",
    }  # fmt: skip


def test_what_was_missed_comes_late_and_in_its_place_and_does_not_date_the_picture() -> None:
    watched = Watched()
    watched.go_on(30)
    watched.session.feed([links("here", "linked", "lost")])
    watched.go_on(60, range(4))
    watched.session.feed([links("here", "linked", "behind")])
    assert watched.states()[4:] == [NODE_LOST] * 2
    for step in range(31, 91):
        watched.session.feed(samples(range(4, 6), step, age=90.0 - step))
        assert watched.session.behind() == 0.0
    watched.session.feed([links("here", "linked", "linked")])
    watched.go_on(5)
    snapshot = watched.session.snapshot()
    assert [view.state for view in snapshot.ranks] == ["ok"] * 6
    assert watched.rules() == []
    for rank in (0, 5):
        history = snapshot.ranks[rank].history
        assert history is not None
        assert [int(step) for step in history.column("step")] == list(range(1, 96)), "no step is missing"
    assert snapshot.nodes[2].state == "linked"


def test_a_hub_that_never_heard_of_another_node_says_so() -> None:
    watched = Watched()
    session = watched.session
    session.feed([Reset(JOB, "h", False), *cards(range(4, 6)), *samples(range(4, 6), 5)])
    asked = NodeLink(node_rank=0, host="node-a", state="unseen", since=60.0, detail="asking 10.0.0.1:4000")
    here = NodeLink(node_rank=2, host="worker", state="here", since=60.0, ranks=(4, 5))
    session.feed([message(-1, Nodes(here=2, nodes=(asked, here)))])
    assert session.snapshot().nodes[0].asking
    watched.go_on(70, range(4, 6))
    assert watched.rules() == [], "while it is being asked it is not lost"
    session.feed([links("unseen", "unseen", "here", seen=0)])
    watched.go_on(40, range(4, 6))
    snapshot = session.snapshot()
    (finding,) = snapshot.findings
    assert (finding.rule, finding.ranks, finding.subject) == ("node", (), "unseen")
    assert (
        finding.sentence
        == "2 nodes are out of reach: node-a has not been reached in 40 s; worker#1 has not been reached in 40 s"
    )
    assert [view.state for view in snapshot.ranks][:4] == ["missing"] * 4
    assert "2/6 ranks" in job_line(snapshot)


def test_a_job_that_waits_for_a_lost_node_has_one_finding_that_says_so() -> None:
    watched = Watched()
    watched.go_on(30)
    watched.session.feed([links("here", "linked", "lost")])
    step = watched.step
    for second in range(120):
        watched.clock.advance(1.0)
        stuck = [
            message(rank, Sample(rank=rank, step=step, step_age=second + 1.0, phase="backward")) for rank in range(4)
        ]
        watched.session.feed(stuck)
    snapshot = watched.session.snapshot()
    assert snapshot.state == "stalled"
    assert [finding.rule for finding in snapshot.findings] == ["node"]
    # Then those that lost their peer fail.
    lost = End(rank=0, how="exception", code=1, detail="RuntimeError: Connection closed by peer [10.0.0.3]:4000")
    watched.session.feed(
        [message(rank, End(rank=rank, how="exception", code=1, detail=lost.detail)) for rank in range(4)]
    )
    watched.clock.advance(20.0)
    snapshot = watched.session.snapshot()
    assert snapshot.state == "ended"
    assert [view.state for view in snapshot.ranks] == ["failed"] * 4 + [NODE_LOST] * 2


def test_a_node_whose_ranks_have_ended_is_not_missed() -> None:
    watched = Watched()
    watched.go_on(30)
    watched.session.feed([message(rank, End(rank=rank, how="exit", code=0)) for rank in (4, 5)])
    watched.session.feed([links("here", "linked", "lost")])
    watched.go_on(30, range(4))
    assert watched.states() == ["ok"] * 4 + ["ended"] * 2
    assert "node" not in watched.rules()


@pytest.mark.parametrize(("heard_after", "told"), [(-2.0, True), (2.0, True), (20.0, False)])
def test_a_node_whose_loss_broke_the_job_is_told_when_the_job_is_over_too(heard_after: float, told: bool) -> None:
    watched = Watched()
    watched.go_on(30)
    gone = "RuntimeError: Connection closed by peer [10.0.0.3]:4000"
    ends = [End(rank=rank, how="exception", code=1, detail=gone) for rank in range(4)]
    broke = watched.clock()
    watched.clock.advance(max(0.0, heard_after))
    watched.session.feed([message(end.rank, end, age=watched.clock() - broke) for end in ends])
    lost = links("here", "linked", "lost")
    watched.session.feed([replace(lost, age=watched.clock() - broke - heard_after)])
    watched.clock.advance(60.0)
    snapshot = watched.session.snapshot()
    assert snapshot.state == "ended"
    assert [finding.rule for finding in snapshot.findings] == (["node"] if told else ["death"])


def test_two_nodes_of_one_name_are_two_and_their_process_ids_are_not_mixed_up() -> None:
    watched = Watched()
    watched.go_on(3)
    snapshot = watched.session.snapshot()
    assert [view.card.node for view in snapshot.ranks if view.card] == [
        "node-a", "node-a", "worker#1", "worker#1", "worker#2", "worker#2",
    ]  # fmt: skip
    assert [(row.label, row.ranks) for row in by_node(snapshot).rows] == [
        ("node-a", (0, 1)), ("worker#1", (2, 3)), ("worker#2", (4, 5)),
    ]  # fmt: skip
    state = job_json(snapshot)
    assert [(rank["node"], rank["node_rank"]) for rank in state["ranks"][2:5:2]] == [("worker", 1), ("worker", 2)]
    # All have pid 100 here: on a node of two ranks it is nobody's, so give each its own.
    for rank in (2, 4):
        card = Card(job=JOB, rank=rank, node="worker", node_rank=rank // 2, pid=7, pids=(7,))
        watched.session.feed([message(rank, card)])
    owners = watched.session.snapshot().owners
    assert (owners["worker#1", 7], owners["worker#2", 7]) == (2, 4)


def test_a_name_is_plain_again_when_no_other_node_has_it() -> None:
    watched = Watched()
    for rank in (4, 5):
        watched.session.feed([message(rank, Card(job=JOB, rank=rank, node="node-c", node_rank=2))])
    assert [view.card.node for view in watched.session.snapshot().ranks if view.card][2:] == [
        "worker", "worker", "node-c", "node-c",
    ]  # fmt: skip


def test_a_job_of_one_node_has_none_of_it() -> None:
    clock = FakeClock()
    session = Session(clock)
    session.feed([Reset(Job(id="j", name="job", world_size=2), "h", False), *samples(range(2), 3)])
    snapshot = session.snapshot()
    assert (snapshot.nodes, nodes_line(snapshot), count_words(snapshot)) == ((), "", "")
    assert job_json(snapshot)["nodes"] is None


def test_the_jobs_identity_follows_the_hub() -> None:
    watched = Watched()
    later = Card(job=Job(id="of-the-first", name="job", world_size=8), rank=0, node="node-a")
    watched.session.feed([message(0, later)])
    snapshot = watched.session.snapshot()
    assert snapshot.job is not None
    assert (snapshot.job.id, snapshot.world_size) == ("of-the-first", 8)


def test_ranks_that_join_an_elastic_job_are_not_missed_while_it_starts_anew() -> None:
    clock = FakeClock()
    session = Session(clock)
    before, after = Job(id="j", name="job", world_size=2), Job(id="j", name="job", world_size=4)
    session.feed([Reset(before, "h", False), *(message(rank, Card(job=before, rank=rank)) for rank in range(2))])
    for step in range(1, 91):
        clock.advance(1.0)
        session.feed(samples(range(2), step))
    session.feed([message(rank, End(rank=rank, how="signal", code=15)) for rank in range(2)])
    clock.advance(5.0)
    session.feed(
        [message(0, Card(job=after, rank=0, pid=200), pid=200), message(0, Sample(rank=0, uptime=1.0), pid=200)]
    )
    snapshot = session.snapshot()
    assert [view.state for view in snapshot.ranks] == ["starting", "killed", "missing", "missing"]
    assert "missing" not in [finding.rule for finding in snapshot.findings]
    clock.advance(70.0)
    session.feed([message(0, Sample(rank=0, uptime=71.0), pid=200)])
    assert "missing" in [finding.rule for finding in session.snapshot().findings]
