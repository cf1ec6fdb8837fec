from __future__ import annotations

from collections.abc import Iterator

import pytest
from hub_cluster import Cluster, cluster

RANKS = range(6)


@pytest.fixture
def lab() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


def test_the_first_nodes_hub_tells_of_all_ranks(lab: Cluster) -> None:
    nodes = [lab.node(rank) for rank in range(3)]
    for node in nodes:
        node.train(range(3))
    lab.meet()
    viewer = lab.watch(nodes[0])
    lab.until(lambda: viewer.states() == "here linked linked" and all(len(viewer.steps(rank)) >= 3 for rank in RANKS))
    for node in nodes:
        node.train(range(3, 6))
    lab.until(lambda: all(viewer.steps(rank) == [0, 1, 2, 3, 4, 5] for rank in RANKS))
    print(viewer.links)
