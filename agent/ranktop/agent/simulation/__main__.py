"""``python -m ranktop.agent.simulation``: the ranks of a simulated job, until its standard input ends.

Meant for ``ranktop simulate``, which starts as many of these as are needed and shows the job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ranktop.agent.simulation.faults import parse, placed, table
from ranktop.agent.simulation.job import STRATEGIES, Setup


def options() -> argparse.ArgumentParser:
    """Return what the command line may say."""
    parser = argparse.ArgumentParser(prog="python -m ranktop.agent.simulation", description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--local", type=int, default=8, help="ranks of one node")
    parser.add_argument("--strategy", choices=STRATEGIES, default="fsdp2")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a healthy step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[:rank=K][:by=X][:from=STEP]")
    parser.add_argument("--id", default="simulated", help="of the job")
    parser.add_argument("--of", default="", help="ranks that this process speaks for, as FIRST:COUNT; all by default")
    parser.add_argument("--without", action="append", type=int, default=[], help="leave out this rank of them")
    parser.add_argument("--epoch", type=float, default=0.0, help="CLOCK_MONOTONIC at which the job begins; now without")
    parser.add_argument("--stops", action="store_true", help="stop this process when its rank is stopped")
    parser.add_argument("--list", action="store_true", help="print the faults and exit")
    parser.add_argument("--explain", action="store_true", help="print which rank has which fault, as JSON, and exit")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Publish until the input ends; exit code 2 for what cannot be simulated, 1 when there is no hub."""
    given = options().parse_args(arguments)
    if given.list:
        print(table())
        return 0
    try:
        setup = setup_of(given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.explain:
        faults = [{"name": one.name, "rank": one.rank, "by": one.by, "from": one.start} for one in setup.faults]
        print(json.dumps({"name": setup.job.name, "faults": faults}))
        return 0
    return speak(setup, given)


def setup_of(given: argparse.Namespace) -> Setup:
    """Return what is to be simulated; ValueError."""
    if given.ranks < 1 or given.local < 1 or not 0.01 <= given.seconds <= 600:
        raise ValueError("there must be at least one rank, one rank a node, and a step of 0.01 to 600 seconds")
    faults = placed([parse(text) for text in given.fault], given.ranks, given.seed)
    return Setup(given.ranks, given.local, given.strategy, given.seconds, given.seed, faults, given.id)


def speak(setup: Setup, given: argparse.Namespace) -> int:
    """Publish; prints ``ready`` when the hub has every rank, and at the end what was sent, as JSON."""
    from ranktop.agent.simulation.publishing import Speakers, raise_file_limit
    from ranktop.wire.endpoints import RunDirectoryError, job_directory

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the dashboard's; it ends this by ending the input
    raise_file_limit()
    first, _, count = given.of.partition(":")
    numbers = range(int(first), int(first) + int(count)) if count else range(setup.ranks)
    ranks = [rank for rank in numbers if rank not in given.without]
    stop = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(stop,), daemon=True).start()
    try:
        speakers = Speakers(setup, ranks, job_directory(setup.id), given.epoch or time.monotonic(), given.stops)
        speakers.connect()
    except (RunDirectoryError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print("ready", flush=True)
    speakers.publish(stop)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(speakers.close()), flush=True)
    if 0 in ranks:
        end_hub(job_directory(setup.id))
    return 0


def end_hub(directory: Path) -> None:
    """Have the hub end at once: nobody is to look at a job that never was. Whoever started this may be gone."""
    from ranktop.wire.endpoints import read_job_file

    with contextlib.suppress(OSError, ValueError):
        if (hub := read_job_file(directory).hub_pid) > 1:
            os.kill(hub, signal.SIGTERM)


def _wait_for_the_end(stop: threading.Event) -> None:
    # Not through sys.stdin: its buffer's lock would be held while the interpreter ends.
    while os.read(0, 4096):
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
