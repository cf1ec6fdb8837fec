"""Starts the ranks of jobs from one process that has imported everything: ``forked.py MODULES RANKS=FOLDER...``.

What a worker measures does not depend on who started it, and importing torch and DeepSpeed anew in every rank takes
longer than most cases do. So the modules, with commas between them, are imported once; then, job after job, the ranks
are forked with the environment that torchrun gives and call the first one's ``main()`` with ``FOLDER`` as its argument.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DIGITS = 5
"""Of a port, as the ranks are told it."""


def run_jobs(
    worker: str, jobs: Mapping[int, Path] | Sequence[tuple[int, Path]], timeout: float, also: str = ""
) -> None:
    """Run one job of the worker for each (number of ranks, folder); fails with what the ranks have written.

    ``also`` is a library that the worker uses as well, where it is installed.
    """
    pairs = jobs.items() if isinstance(jobs, Mapping) else jobs
    modules = f"{worker},{also}" if also and importlib.util.find_spec(also) else worker
    finished = subprocess.run(
        [sys.executable, __file__, modules, *(f"{ranks}={folder}" for ranks, folder in pairs)],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-6000:]


def become(rank: int, ranks: int, port: int, folder: str, worker: Any) -> None:
    """Be a rank to the end of the process."""
    code = 1
    try:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in place.items()}
        # As torchrun does: the store is the launcher's, and rank 0 makes none.
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        sys.argv = [worker.__file__, folder]
        worker.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def job(ranks: int, folder: str, worker: Any) -> bool:
    """Run one job; whether all its ranks ended well."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # A process with threads must not fork: a lock that the store's holds just then stays locked in the rank for ever.
    told, tell = os.pipe()
    pids = set()
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            os.close(tell)
            become(rank, ranks, int(os.read(told, DIGITS)), folder, worker)
        pids.add(pid)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(tell, f"{store.port:0{DIGITS}}".encode() * ranks)
    os.close(tell)
    os.close(told)
    well = True
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        if status:
            well = False
            for other in pids:  # they would wait for it for ever
                os.kill(other, 9)
    return well


def main() -> None:
    """Import the worker and run its jobs, one after the other."""
    names, *jobs = sys.argv[1:]
    worker, *_ = [importlib.import_module(name) for name in names.split(",")]
    # What the first optimizer, and DeepSpeed's first engine with all of torch._inductor, would import in every rank.
    importlib.import_module("torch._dynamo")
    if "deepspeed" in sys.modules:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    gc.collect()
    gc.freeze()
    for one in jobs:
        ranks, folder = one.split("=", 1)
        if not job(int(ranks), folder, worker):
            sys.exit(1)


if __name__ == "__main__":
    main()
