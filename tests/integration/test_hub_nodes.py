from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import psutil
import pytest
from hub_cluster import Cluster, Node, Watcher, cluster

from ranktop.agent import hub_gathering
from ranktop.agent.hub_gather import ASK_WAIT, LOST_AFTER, Gather
from ranktop.agent.hub_ranks import Rank
from ranktop.agent.hub_state import HubState
from ranktop.wire.codec import decode_body, decode_header
from ranktop.wire.schema import Body, Brief, Card, End, Mark, Sample, Stack

RANKS = range(6)
LOST = ASK_WAIT + LOST_AFTER + 0.1


@pytest.fixture
def lab() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


def three(lab: Cluster, *ahead: float) -> tuple[Node, Node, Node]:
    """Start three nodes that know of each other, each rank with three samples."""
    nodes = [lab.node(rank, ahead=shift) for rank, shift in enumerate(ahead or (0.0, 0.0, 0.0))]
    for node in nodes:
        node.train(range(3))
    lab.meet()
    return nodes[0], nodes[1], nodes[2]


def watched(lab: Cluster, node: Node) -> Watcher:
    viewer = lab.watch(node)
    lab.until(lambda: "linked" in viewer.states() and not {"lost", "unseen", "behind"} & set(viewer.states().split()))
    return viewer


def has(viewer: Watcher, steps: range, ranks: range = RANKS) -> bool:
    return all(viewer.steps(rank) == list(steps) for rank in ranks)


def test_the_first_nodes_hub_tells_of_all_ranks(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3)))
    for node in nodes:
        node.train(range(3, 6))
    lab.until(lambda: has(viewer, range(6)))
    assert viewer.states() == "here linked linked"
    lab.until(lambda: {node: link.ranks for node, link in viewer.links.items()} == {0: (0, 1), 1: (2, 3), 2: (4, 5)})
    assert [link.host for _, link in sorted(viewer.links.items())] == ["host0", "host1", "host2"]
    assert [link.detail for link in viewer.links.values()] == ["", "", ""]


def test_the_job_has_the_first_nodes_id_everywhere(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[2])
    lab.until(lambda: has(viewer, range(3)))
    cards = {event.body.rank: event.body for event in viewer.received() if isinstance(event.body, Card)}
    assert {card.job.id for card in cards.values()} == {"n0"}
    assert sorted(cards) == list(RANKS)
    assert [node.hub.state.job.id for node in nodes] == ["n0", "n0", "n0"]
    nodes[2].card(4)  # its agents go on to know the job by the node's own id
    assert nodes[2].hub.state.refused == 0


def test_the_job_keeps_its_id_when_its_first_node_leaves(lab: Cluster) -> None:
    nodes = three(lab)
    lab.until(lambda: len(nodes[0].hub.state.ranks) == 6)
    # Elastic torchrun gives the nodes that stay other places; a node that comes then never heard of the first one.
    nodes[0].frozen = True
    nodes[1].node_rank, nodes[2].node_rank = 0, 1
    late = lab.node(3)
    late.node_rank = 2
    late.train(range(3))
    for node in (nodes[1], nodes[2]):
        node.introduce(())
    lab.meet(among=(nodes[1], nodes[2], late))
    viewer = watched(lab, nodes[1])
    assert viewer.states() == "here linked linked"
    lab.until(lambda: viewer.links[1].ranks == (4, 5))
    assert [node.hub.state.job.id for node in (nodes[1], nodes[2], late)] == ["n0", "n0", "n0"]


@pytest.mark.parametrize("ahead", [(0.0, 600.0, -600.0), (1e6, 0.0, 5.0)])
def test_clocks_that_are_minutes_apart_change_no_age(lab: Cluster, ahead: tuple[float, float, float]) -> None:
    nodes = [lab.node(rank, ahead=shift) for rank, shift in enumerate(ahead)]
    for node in nodes:
        node.train(range(4))
    lab.meet()
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(4)))
    for rank in RANKS:
        said = nodes[rank // 2].said[rank]
        assert [at for _, at in viewer.at[rank]] == pytest.approx(said, abs=0.6)
        assert viewer.points[rank] == pytest.approx(said, abs=0.6)
    for link in viewer.links.values():
        assert abs(link.since - nodes[0].hub.state.started) < 60


def test_an_answer_that_lay_about_while_the_hub_was_stopped_is_as_old_as_it_is(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3)))
    door = nodes[1].hub.nodes._door
    assert door is not None
    lab.until(lambda: door.viewers.deadline() is not None)  # the first node's question is open there
    nodes[0].frozen = True
    nodes[1].train(range(3, 4))
    lab.skipped += 30
    nodes[0].frozen = False
    lab.until(lambda: has(viewer, range(4), range(2, 4)))
    for rank in (2, 3):
        assert [at for _, at in viewer.at[rank]] == pytest.approx(nodes[1].said[rank], abs=0.6)


def test_a_node_that_comes_late_is_unseen_until_then(lab: Cluster) -> None:
    first, second = lab.node(0), lab.node(1)
    for node in (first, second):
        node.train(range(3))
    lab.meet(nodes=3)
    viewer = lab.watch(first)
    lab.until(lambda: viewer.states() == "here linked unseen")
    assert viewer.links[2].detail == "its hub has not been heard of"
    third = lab.node(2)
    third.train(range(3))
    lab.meet()
    lab.until(lambda: viewer.states() == "here linked linked" and has(viewer, range(3)))
    assert [event for event in viewer.events if not hasattr(event, "header")][1:] == [], "no viewer begins anew for it"


def test_what_a_node_said_while_it_was_cut_off_comes_late_and_whole(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3)))
    wire = nodes[1].wire
    assert wire is not None
    heard = nodes[0].hub._clock()
    wire.cut()
    lab.skipped += LOST
    lab.until(lambda: viewer.states() == "here lost linked")
    assert viewer.links[1].detail == f"no answer from 127.0.0.1:{wire.listens}"
    assert viewer.links[1].since == pytest.approx(heard, abs=2.0), "it is told when it was last heard of"
    nodes[1].train(range(3, 63))
    wire.mend()
    lab.skipped += 15  # for the next try
    lab.until(lambda: viewer.states() == "here linked linked" and has(viewer, range(63), range(2, 4)))
    assert viewer.links[1].missed == 0
    for rank in (2, 3):
        assert [at for _, at in viewer.at[rank]] == pytest.approx(nodes[1].said[rank], abs=0.6), "with its true time"
    assert len([event for event in viewer.events if not hasattr(event, "header")]) == 1
    nodes[1].train(range(63, 65))
    lab.until(lambda: has(viewer, range(65), range(2, 4)))
    check_history(nodes[0])


def test_when_the_nodes_hub_no_longer_holds_the_gap_its_history_fills_it(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3)))
    wire, own = nodes[1].wire, nodes[1].hub.state.own
    assert wire is not None
    assert own is not None
    wire.cut()
    own.max_items = 20
    nodes[1].train(range(3, 103))
    wire.mend()
    lab.skipped += 15  # for the next try
    lab.until(lambda: viewer.states() == "here linked linked" and 102 in viewer.steps(3))
    assert viewer.links[1].missed >= 200 - 20
    assert viewer.links[2].missed == 0
    for rank in (2, 3):
        assert viewer.steps(rank) == [0, 1, 2, *range(63, 103)], "the last samples, and none twice"
        assert viewer.points[rank][-100:] == pytest.approx(nodes[1].said[rank][3:], abs=0.6)
        history = nodes[0].hub.state.ranks[rank].history.points(nodes[0].hub._clock())
        assert [point.step for point in history] == list(range(103))
    check_history(nodes[0])


def test_a_hub_that_was_replaced_is_followed_through_its_new_door(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3)))
    nodes[1].replace_hub()
    nodes[1].card(2)
    nodes[1].card(3)
    nodes[1].train(range(3, 5))
    for _ in range(20):
        lab.turn()
    lab.skipped += LOST
    lab.until(lambda: viewer.states() == "here lost linked")
    lab.meet()
    lab.until(lambda: viewer.states() == "here linked linked" and has(viewer, range(5), range(2, 4)))
    marks = [event.body for event in viewer.received() if isinstance(event.body, Mark) and event.header.rank < 0]
    assert [mark.what for mark in marks] == ["hub-replaced"]
    assert marks[0].detail.startswith("node 1 (host1): the hub before this one was killed")
    assert len(nodes[0].hub.state.ranks[2].history) == 5
    check_history(nodes[0])


def test_any_other_nodes_hub_gathers_while_it_is_watched(lab: Cluster) -> None:
    nodes = three(lab)
    lab.until(lambda: len(nodes[0].hub.state.ranks) == 6)
    assert set(nodes[1].hub.state.ranks) == {2, 3}
    viewer = watched(lab, nodes[1])
    assert viewer.told[0].here == 1
    lab.until(lambda: viewer.states() == "linked here linked" and has(viewer, range(3)))
    lab.viewers.remove(viewer)
    viewer.source.close()
    for _ in range(20):
        lab.turn()
    lab.skipped += hub_gathering.KEEP + 1
    for node in nodes:
        node.train(range(3, 6))
    for _ in range(20):
        lab.turn()
    assert nodes[1].hub.state.ranks[0].step == 2, "nobody watches, so nothing is asked of the others"
    again = watched(lab, nodes[1])
    lab.until(lambda: has(again, range(6)))


def test_when_the_first_node_is_dead_another_one_tells_of_the_rest(lab: Cluster) -> None:
    nodes = three(lab)
    lab.until(lambda: len(nodes[0].hub.state.ranks) == 6)
    nodes[0].frozen = True
    viewer = lab.watch(nodes[2])
    lab.until(lambda: viewer.links and viewer.links[0].detail.startswith("asking 127.0.0.1:"))
    assert all(abs(link.since - lab.clock()) < 60 for link in viewer.links.values())
    lab.skipped += LOST
    lab.until(lambda: viewer.states() == "unseen linked here" and has(viewer, range(3), range(2, 6)))
    lab.until(lambda: viewer.links[0].detail.startswith("no answer from 127.0.0.1:"))


def test_what_was_gathered_is_not_passed_on(lab: Cluster) -> None:
    nodes = three(lab)
    viewers = [watched(lab, node) for node in nodes]
    lab.until(lambda: all(has(viewer, range(3)) for viewer in viewers))
    for node in nodes:
        node.train(range(3, 5))
    lab.until(lambda: all(has(viewer, range(5)) for viewer in viewers))
    for node in nodes:
        own = node.hub.state.own
        assert own is not None
        told = [*own.after(-1, 10**9), *node.hub.state.snapshot(own=True)]
        assert {decode_header(item.header).rank for item in told} == set(node.ranks)
        items = node.hub.state.stream.after(-1, 10**9)
        heads = [decode_header(item.header) for item in items]
        samples = [(head.rank, head.seq) for head in heads if head.kind == "sample"]
        assert len(samples) == len(set(samples)) == 30


def test_this_nodes_own_word_on_a_rank_counts_more_than_anothers(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3)))
    nodes[1].send("sample", 0, sample_of(0, 77))
    nodes[1].send("sample", 9, sample_of(9, 77))
    lab.until(lambda: viewer.steps(9) == [77])
    assert viewer.steps(0) == [0, 1, 2]
    nodes[0].say(Sample(rank=9, step=5))
    lab.until(lambda: viewer.steps(9) == [77, 5])
    nodes[1].send("sample", 9, sample_of(9, 78))
    nodes[1].train(range(3, 4))
    lab.until(lambda: viewer.steps(3) == [0, 1, 2, 3])
    assert viewer.steps(9) == [77, 5]


def test_a_rank_may_move_to_another_node_once_its_life_is_over(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3)))
    nodes[1].say(End(rank=2, how="exception"))
    lab.until(lambda: nodes[0].hub.state.ranks[2].end is not None)
    nodes[2].pids[2] = 4242
    nodes[2].send("sample", 2, sample_of(2, 9))
    lab.until(lambda: viewer.steps(2) == [0, 1, 2, 9])
    lab.until(lambda: (viewer.links[1].ranks, viewer.links[2].ranks) == ((3,), (2, 4, 5)))


def test_ends_stacks_and_boxes_of_other_nodes_are_kept(lab: Cluster) -> None:
    nodes = three(lab)
    nodes[1].say(Stack(rank=2, step=2, waited=30.0))
    nodes[1].say(End(rank=3, how="exception", detail="ValueError: no"))
    viewer = watched(lab, nodes[0])
    lab.until(lambda: {"Stack", "End"} <= {type(event.body).__name__ for event in viewer.received()})
    kept = [type(decode_body(decode_header(item.header), item.body)) for item in nodes[0].hub.state.snapshot()]
    assert kept.count(Stack) == kept.count(End) == 1


def test_silence_is_judged_by_the_ranks_own_node(lab: Cluster) -> None:
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3)))
    lab.skipped += 10
    lab.until(lambda: any(isinstance(event.body, Mark) and event.header.rank == 2 for event in viewer.received()))
    assert nodes[0].hub.state.silent(nodes[0].hub._clock()) == [0, 1]
    # A process of the same number dies on this node: that is not the other node's rank.
    before = nodes[0].hub.state.ranks[2].end
    nodes[0].hub.state.end_process(1e9, os.getpid(), "signal", 9, "SIGKILL")
    assert nodes[0].hub.state.ranks[0].end is not None
    assert nodes[0].hub.state.ranks[2].end is before is None


def test_a_failure_while_gathering_costs_that_message_only(lab: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = HubState.keep

    def fails(self: HubState, rank: Rank, message: Body, *rest: Any) -> None:
        if isinstance(message, (Sample, Brief)) and message.step == 1 and rank.way is not None:
            raise RuntimeError("a fault of ours")
        keep(self, rank, message, *rest)

    monkeypatch.setattr(HubState, "keep", fails)
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3), range(2)) and all(viewer.steps(rank) == [0, 2] for rank in range(2, 6)))
    assert nodes[0].hub.state.refused == 4


def test_the_first_nodes_hub_stays_until_the_others_ranks_have_ended(lab: Cluster) -> None:
    nodes = three(lab)
    hub = nodes[0].hub
    hub._linger = hub._stay = 5.0
    lab.until(lambda: len(hub.state.ranks) == 6)
    hub._presence = NoProcesses()  # type: ignore[assignment]
    nodes[1].hub._presence = NoProcesses()  # type: ignore[assignment]
    for rank in (0, 1):
        nodes[0].say(End(rank=rank, how="exit", code=0))
    for _ in range(5):
        lab.skipped += 4.0
        nodes[1].train(range(3, 4))
        nodes[2].train(range(3, 4))
        lab.turn()
    assert not hub._stopping
    assert not hub._entry.ended
    assert hub._alone is False
    for node in nodes[1:]:
        for rank in node.ranks:
            node.say(End(rank=rank, how="exit", code=0))
    lab.until(lambda: hub._alone)
    lab.skipped += 3.0
    lab.until(lambda: hub._entry.ended)
    assert not hub._stopping
    lab.skipped += 3.0
    lab.until(lambda: hub._stopping)


def test_ranks_of_a_node_that_is_lost_for_long_keep_no_hub(lab: Cluster) -> None:
    nodes = three(lab)
    hub = nodes[0].hub
    hub._linger = hub._stay = 5.0
    lab.until(lambda: len(hub.state.ranks) == 6)
    hub._presence = NoProcesses()  # type: ignore[assignment]
    for node in nodes[1:]:
        node.frozen = True
    lab.skipped += LOST
    lab.until(lambda: not hub._alone)
    lab.skipped += 20
    lab.turn()
    assert not hub._stopping
    lab.skipped += 5
    lab.until(lambda: hub._alone)
    lab.skipped += 6
    lab.until(lambda: hub._stopping)


def test_a_job_of_one_node_opens_no_port(lab: Cluster) -> None:
    def ports() -> set[int]:
        return {c.laddr.port for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}

    before = ports()
    node = lab.node(0)
    node.train(range(3))
    viewer = lab.watch(node)
    lab.until(lambda: has(viewer, range(3), range(2)))
    assert ports() == before
    node.introduce(())
    assert node.door is not None
    assert ports() - before == {node.door.port}


class NoProcesses:
    """Stands for a node on which no rank is left."""

    alone = True

    def fileno(self) -> int:
        return -1

    def collect(self, now: float, signalled: bool) -> list[object]:
        return []

    def deadline(self) -> None:
        return None

    def follow(self, header: object, now: float) -> None:
        pass

    def activity(self, pid: int) -> str:
        return ""

    def close(self) -> None:
        pass


def sample_of(rank: int, step: int) -> bytes:
    from ranktop.wire.codec import encode_body

    return encode_body(Sample(rank=rank, step=step))


def check_history(node: Node) -> None:
    """Every rank's points are in order, and no second is told of twice."""
    for rank in node.hub.state.ranks.values():
        times = [point.t for point in rank.history.points(node.hub._clock())]
        assert times
        assert all(later - earlier > 0.5 for earlier, later in pairwise(times))


def test_a_node_that_has_nothing_to_say_is_not_looked_at(lab: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    take, looks = Gather.take, []

    def counted(self: Gather, now: float) -> bool:
        found = take(self, now)
        looks.append(found)
        return found

    monkeypatch.setattr(Gather, "take", counted)
    nodes = three(lab)
    viewer = watched(lab, nodes[0])
    lab.until(lambda: has(viewer, range(3), RANKS))
    assert looks
    assert all(looks)
