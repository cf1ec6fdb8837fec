"""Who this process is: its job, rank and place, from what the launcher left in the environment."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ranktop.agent import own_launcher
from ranktop.agent.own_launcher import process_name
from ranktop.wire.schema import Job

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_WORLD_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_NODES = (
    ("GROUP_RANK", "GROUP_WORLD_SIZE"),
    ("CROSS_RANK", "CROSS_SIZE"),
    ("SLURM_NODEID", "SLURM_STEP_NUM_NODES"),
    ("SLURM_NODEID", "SLURM_NNODES"),
)
"""(node's place, number of nodes), as torchrun, DeepSpeed's launcher and Slurm tell them."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}")


@dataclass(frozen=True, slots=True)
class Identity:
    """This process within its job."""

    job: Job
    rank: int
    local_rank: int
    node: str
    pid: int
    restart: int
    local_size: int = 0
    """Ranks on this node; 0 where the launcher does not tell."""
    node_rank: int = 0
    """This node's place among the job's; 0 where the launcher does not tell."""
    nodes: int = 0
    """Nodes of the job; 0 where the launcher does not tell."""


def discover(script: str, environ: Mapping[str, str] | None = None) -> Identity:
    """Work out the identity of this process.

    Without a launcher it is what torch's process group says, where there is one, else rank 0 of 1. A job's id depends
    on what all its ranks on this node share and no other job does: the launcher's run id and process; it stays the same
    when elastic torchrun restarts the ranks.
    """
    env = os.environ if environ is None else environ
    leader = own_launcher.leader() if environ is None else None
    launcher = "lightning" if leader is not None else _launcher(env)
    rank, world_size = _number(env, _RANK, 0), _number(env, _WORLD_SIZE, 1)
    local_rank = _number(env, _LOCAL_RANK, 0)
    group = _default_group() if launcher in ("python", "lightning") else None
    if launcher == "lightning" and group is None:
        rank = local_rank  # without a group only a job of one node can tell
    if group is not None:
        launcher = "spawn" if leader is None else launcher
        rank, world_size = group
        local_rank = _number(env, _LOCAL_RANK, rank)
    world_size = max(world_size, rank + 1)
    local_size = _number(env, _LOCAL_SIZE, 0) if group is None else 0
    node_rank, nodes = _nodes(env, launcher, (rank, world_size), (local_rank, local_size))
    run_id = env.get("TORCHELASTIC_RUN_ID") or env.get("SLURM_JOB_ID") or ""
    name = env.get("RANKTOP_JOB_NAME") or Path(script).stem or "python"
    job = Job(
        id=_job_id(env, launcher, run_id, leader or os.getpid()),
        name=name[:64],
        world_size=world_size,
        launcher=launcher,
        run_id="" if run_id == "none" else run_id[:64],
    )
    return Identity(
        job=job,
        rank=rank,
        local_rank=local_rank,
        node=socket.gethostname(),
        pid=os.getpid(),
        restart=_number(env, ("TORCHELASTIC_RESTART_COUNT",), 0),
        local_size=local_size,
        node_rank=node_rank,
        nodes=nodes,
    )


def _nodes(env: Mapping[str, str], launcher: str, world: tuple[int, int], local: tuple[int, int]) -> tuple[int, int]:
    """Return (this node's place, nodes of the job) as the launcher tells or by ranks dealt out in blocks; else 0, 0.

    ``world`` and ``local``: (rank, size) in the job and on this node.
    """
    if launcher in ("python", "spawn", "lightning"):
        return 0, 0
    for place, count in _NODES:
        if env.get(place, "").isdigit() and env.get(count, "").isdigit():
            found = int(env[place]), int(env[count])
            return found if found[0] < found[1] else (0, 0)
    (rank, size), (local_rank, local_size) = world, local
    if local_size > 0 and size % local_size == 0 and rank % local_size == local_rank:
        return rank // local_size, size // local_size
    return 0, 0


def _number(env: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = env.get(name, "")
        if text.isdigit():
            return int(text)
    return default


def _launcher(env: Mapping[str, str]) -> str:
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    if "OMPI_COMM_WORLD_RANK" in env or "PMI_RANK" in env:
        return "mpirun"
    if "SLURM_PROCID" in env and "MASTER_ADDR" in env:
        return "srun"
    if "RANK" in env and "WORLD_SIZE" in env:
        return "deepspeed" if "CROSS_RANK" in env and "LOCAL_SIZE" in env else "launcher"
    return "python"


def _default_group() -> tuple[int, int] | None:
    """Return (rank, world size) of torch's process group, where a script made its ranks by itself."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _job_id(env: Mapping[str, str], launcher: str, run_id: str, leader: int) -> str:
    """Hash what the ranks of one job share: launcher process where it is the parent, else the rendezvous address.

    ``leader``: the process that has started the job's ranks, or is its only one.
    """
    explicit = env.get("RANKTOP_JOB_ID", "")
    if _PLAIN.fullmatch(explicit):
        return explicit
    if explicit:
        facts = ["explicit", explicit]
    elif launcher == "torchrun":
        facts = ["torchrun", run_id, process_name(os.getppid())]
    elif launcher == "spawn":
        facts = ["spawn", env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", ""), process_name(os.getppid())]
    elif launcher in ("python", "lightning"):
        return own_launcher.job_id_of(leader)
    else:
        facts = [launcher, run_id, env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", ""), env.get("SLURM_STEP_ID", "")]
        # Slurm keeps the number of a job that it starts again; it is another run.
        if again := env.get("SLURM_RESTART_COUNT", ""):
            facts.append(again)
        # DeepSpeed's launcher always takes the same port: on one node its process tells two jobs apart.
        if not any(facts[1:]) or (launcher == "deepspeed" and env.get("CROSS_SIZE") == "1"):
            facts.append(process_name(os.getppid()))
    return hashlib.sha256("\0".join([str(os.getuid()), *facts]).encode()).hexdigest()[:10]
