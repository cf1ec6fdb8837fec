"""How large a hub becomes in time: the part ``memory`` of ``bench_hub.py``.

Two thirds of an hour cannot be waited for. What a hub knows is filled by the same code with the messages of 40 minutes
on an injected clock, in a process of its own; what libzmq takes for a connection is told by real ones that say 300
messages each. As a script: ``hub_memory.py state RANKS`` or ``hub_memory.py connections N``.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import zmq
from bench.hub_load import Tape
from bench.simulated import DEVICE_EVERY, SimulatedJob, raise_file_limit

from ranktop.agent.hub_state import HubState, item_bytes
from ranktop.wire.codec import encode_body, encode_header
from ranktop.wire.points import HISTORY_SECONDS, point_spacing
from ranktop.wire.schema import Header

MIB = 2**20
_MESSAGES = 300


def resident() -> float:
    """Return this process's resident memory in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB


def fill(ranks: int) -> str:
    """Fill what a hub knows of so many ranks; returns a line of the table."""
    job = SimulatedJob(ranks)
    state = HubState(job.job, "hub", 0.0)
    tape = Tape(job)
    gc.collect()
    empty = resident()
    cards = 0
    for rank in range(ranks):
        body = encode_body(job.card(rank, 1000 + rank))
        cards += len(body)
        state.accept(0.0, encode_header(Header("card", rank, 1000 + rank, 0, 0)), body)
    begun = resident() - empty
    # Of a large job a point of a rank is kept every some seconds: what comes between would only take time here.
    every = max(1.0, point_spacing(ranks) + 0.1)
    turns = int(4 / 3 * HISTORY_SECONDS / every)
    half = 0.0
    for turn in range(1, turns + 1):
        for rank in range(ranks):
            t = turn * every + rank / ranks
            head = Header("sample", rank, 1000 + rank, 0, turn)
            state.accept(t, encode_header(head), encode_body(tape.sample(rank, t, 1.0)))
            if turn % max(1, round(DEVICE_EVERY / every)) == 0:
                state.accept(
                    t, encode_header(Header("device", rank, 1000 + rank, 0, turn)), encode_body(tape.device(rank))
                )
        if turn == turns * 3 // 4:
            half = resident() - empty
    gc.collect()
    points = sum(len(rank.history) for rank in state.ranks.values())
    samples = sum(item_bytes(item) for rank in state.ranks.values() for item in rank.samples._items)
    return (
        f"{ranks:>6}{begun:>12.0f}{half:>12.0f}{resident() - empty:>12.0f}{1024 * (resident() - empty) / ranks:>12.0f}"
        f"{state.stream.held_bytes / MIB:>10.0f}{samples / MIB:>9.0f}{points * 112 / MIB:>9.0f}{cards / MIB:>8.0f}"
    )


def connections(count: int) -> str:
    """Return what a ROUTER takes for each of its connections once so many messages have come and been answered."""
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as folder:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.linger = 0
        router.rcvhwm = router.sndhwm = 1000
        router.bind(f"ipc://{folder}/z")
        told = []
        before = resident()
        for messages in (1, _MESSAGES):
            command = [sys.executable, __file__, "speak", str(count), str(messages), f"{folder}/z"]
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            for _ in range(count * messages):
                router.send_multipart((router.recv_multipart()[0], b"x" * 70))
            told.append(1024 * (resident() - before) / count)
            child.wait(30)
        context.destroy(linger=0)
    return f"{told[0]:.0f} KiB after the first message, {told[1]:.0f} KiB after {_MESSAGES}"


def speak(count: int, messages: int, path: str) -> None:
    """Say so many messages of a usual size on each of so many sockets, and read the answers."""
    raise_file_limit()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.max_sockets = count + 16
    sockets = [context.socket(zmq.DEALER) for _ in range(count)]
    for socket in sockets:
        socket.connect(f"ipc://{path}")
    for _ in range(messages):
        for socket in sockets:
            socket.send_multipart((bytes(18), bytes(1700)))
        for socket in sockets:
            socket.recv()
    context.destroy(linger=0)


def table(sizes: tuple[int, ...]) -> None:
    """Print what hubs of some sizes grow to."""
    print("\nwhat a hub knows, MiB of resident memory; 40 minutes of messages on an injected clock, no sockets")
    print(
        f"{'ranks':>6}{'with cards':>12}{'30 min':>12}{'40 min':>12}{'KiB/rank':>12}{'stream':>10}{'samples':>9}"
        f"{'history':>9}{'cards':>8}"
    )
    for ranks in sizes:
        print(_child("state", str(ranks)), flush=True)
    print(f"libzmq for each connection: {_child('connections', '200')}", flush=True)


def _child(*words: str) -> str:
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.rstrip()


if __name__ == "__main__":
    what, number = sys.argv[1], int(sys.argv[2])
    if what == "speak":
        speak(number, int(sys.argv[3]), sys.argv[4])
    else:
        print(fill(number) if what == "state" else connections(number))
