"""Positions read from a thread of a rank whose main thread hangs in a collective."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

WORKER = """
import json, sys, threading
import torch, torch.distributed as dist
from ranktop.probes.collectives import CollectiveProbe

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
pair = dist.new_group([0, 1], group_desc="pair")
tensor = torch.ones(8)

def serve():
    # Each line asks for one reading, also while the main thread hangs.
    for _ in sys.stdin:
        found = CollectiveProbe().read()
        groups = {g.description: [g.size, g.enqueued] for g in found.groups}
        done = {g.description: g.completed for g in found.groups}
        print(json.dumps({"groups": groups, "pair": done.get("pair"), "reason": found.reason}), flush=True)

for _ in range(3):
    dist.all_reduce(tensor)
dist.all_reduce(tensor, group=pair)
if rank == 1:
    print("ready", flush=True)
    sys.stdin.readline()
    dist.all_reduce(tensor, group=pair)
else:
    thread = threading.Thread(target=serve)
    thread.start()
    dist.all_reduce(tensor, group=pair)
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    thread.join()
"""


def start(rank: int, store: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(rank), str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def ask(process: subprocess.Popen[str]) -> dict[str, object]:
    print("read", file=stream(process.stdin), flush=True)
    line = stream(process.stdout).readline()
    assert line, process.stderr
    answer: dict[str, object] = json.loads(line)
    return answer


@pytest.mark.slow
def test_a_rank_that_hangs_in_a_collective_still_tells_where(tmp_path: Path) -> None:
    ranks = [start(rank, tmp_path / "store") for rank in (0, 1)]
    try:
        assert stream(ranks[1].stdout).readline() == "ready\n"
        # The other rank has not come: the second collective of the pair is enqueued here and can't complete.
        hung = {"groups": {"default_pg": [2, 3], "pair": [2, 2]}, "pair": 1, "reason": None}
        answers = [ask(ranks[0])]
        while answers[-1] != hung and len(answers) < 2000:
            answers.append(ask(ranks[0]))
        assert answers[-1] == hung
        print("go on", file=stream(ranks[1].stdin), flush=True)
        stream(ranks[0].stdin).close()
        assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            for pipe in (rank.stdin, rank.stdout, rank.stderr):
                stream(pipe).close()
