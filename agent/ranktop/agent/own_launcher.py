"""Ranks that Lightning's own launcher makes: the script that the user started is a rank, and starts the others itself.

It runs the same command once more for each of them, with ``LOCAL_RANK`` and its like in the environment, and puts these
into its own environment only then. No process of a launcher is above them, and ``RANK`` is not told.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

from ranktop.probes.kernel_files import started

TOLD: Final = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_PORT")
"""What every rank has by the time it trains."""

LIBRARIES: Final = ("lightning", "pytorch_lightning", "lightning_fabric")


def leader(environ: Mapping[str, str] | None = None, began: Mapping[str, str] | None = None) -> int | None:
    """Return the id of the process that has started the ranks of this node: this one or its parent; None for neither.

    ``began``: this process's environment when it started; by default what the kernel has kept of it.
    """
    env = os.environ if environ is None else environ
    if any(name not in env for name in TOLD) or "TORCHELASTIC_RUN_ID" in env:
        return None
    first = initial() if began is None else began
    if "LOCAL_RANK" not in first:
        # Scripts that spawn their ranks may put these names into the environment, too.
        alone = env["LOCAL_RANK"] == "0" and not _spawned()
        return os.getpid() if alone and any(name in sys.modules for name in LIBRARIES) else None
    if any(name not in first for name in TOLD) or "RANK" in first or not _same_program(os.getppid()):
        return None
    return os.getppid()


def _spawned() -> bool:
    """Whether ``multiprocessing`` has started this process: then it is loaded, and nothing is to be loaded for it."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def initial() -> Mapping[str, str]:
    """Return the environment that this process was started with."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return os.environ
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if b"=" in entry)


def _same_program(pid: int) -> bool:
    """Whether another process is the same Python: a shell or another kind of launcher has no rank in it."""
    try:
        return os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath("/proc/self/exe")
    except OSError:
        return False


def job_id_of(pid: int) -> str:
    """Return the id of the job that a process is which nothing else has launched."""
    return hashlib.sha256("\0".join([str(os.getuid()), "python", process_name(pid)]).encode()).hexdigest()[:10]


def process_name(pid: int) -> str:
    """Name a process so that no later one is taken for it."""
    return f"{socket.gethostname()}:{pid}:{started(pid)}"
