"""Which job and rank a process takes itself for, from a launcher's environment."""

from __future__ import annotations

import os

import pytest

from ranktop.agent.identity import discover

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


def test_torchrun() -> None:
    found = discover("/home/me/train.py", TORCHRUN)
    assert (found.rank, found.local_rank, found.job.world_size, found.restart) == (5, 1, 8, 2)
    assert (found.job.name, found.job.launcher, found.job.run_id) == ("train", "torchrun", "")
    assert (found.pid, found.local_size) == (os.getpid(), 4)


def test_a_job_keeps_its_id_over_restarts_and_ports() -> None:
    again = {**TORCHRUN, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "3", "MASTER_PORT": "41234"}
    assert discover("train.py", again).job.id == discover("train.py", TORCHRUN).job.id


def test_other_jobs_have_other_ids() -> None:
    ids = {
        discover("train.py", TORCHRUN).job.id,
        discover("train.py", {**TORCHRUN, "TORCHELASTIC_RUN_ID": "other"}).job.id,
        discover("train.py", {}).job.id,
        discover("train.py", {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}).job.id,
        discover("train.py", {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "2"}).job.id,
    }
    assert len(ids) == 5


def test_without_a_launcher_it_is_rank_0_of_1() -> None:
    found = discover("", {})
    assert (found.rank, found.local_rank, found.job.world_size, found.job.launcher) == (0, 0, 1, "python")
    assert found.job.name == "python"


@pytest.mark.parametrize(
    ("environment", "rank", "size", "launcher"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, 3, 4, "mpirun"),
        ({"SLURM_PROCID": "6", "SLURM_NTASKS": "8", "MASTER_ADDR": "n1"}, 6, 8, "srun"),
        ({"RANK": "x", "WORLD_SIZE": ""}, 0, 1, "launcher"),
        ({"RANK": "9", "WORLD_SIZE": "2"}, 9, 10, "launcher"),
    ],
)
def test_other_launchers_and_nonsense(environment: dict[str, str], rank: int, size: int, launcher: str) -> None:
    found = discover("t.py", environment)
    assert (found.rank, found.job.world_size, found.job.launcher) == (rank, size, launcher)


@pytest.mark.parametrize(
    ("environment", "node_rank", "nodes"),
    [
        ({**TORCHRUN, "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "3"}, 1, 3),
        (TORCHRUN, 1, 2),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "5"}, 0, 1),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"}, 0, 0),
        ({**TORCHRUN, "GROUP_RANK": "7", "GROUP_WORLD_SIZE": "3"}, 0, 0),
        ({"RANK": "8", "WORLD_SIZE": "16", "CROSS_RANK": "1", "CROSS_SIZE": "2", "LOCAL_SIZE": "8"}, 1, 2),
        (
            {"SLURM_PROCID": "6", "SLURM_NTASKS": "8", "MASTER_ADDR": "n1", "SLURM_NODEID": "2", "SLURM_NNODES": "3"},
            2,
            3,
        ),
        ({"SLURM_PROCID": "6", "SLURM_NTASKS": "8", "SLURM_NODEID": "2", "SLURM_NNODES": "3"}, 0, 0),
        ({**MPIRUN, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1, 2),
        # Dealt out in turn: which node is which cannot be told.
        ({**MPIRUN, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 0, 0),
        ({}, 0, 0),
    ],
)
def test_the_node_and_how_many_there_are(environment: dict[str, str], node_rank: int, nodes: int) -> None:
    found = discover("t.py", environment)
    assert (found.node_rank, found.nodes) == (node_rank, nodes)


def test_names_given_by_the_user_win() -> None:
    found = discover("train.py", {"RANKTOP_JOB_ID": "my-run_1", "RANKTOP_JOB_NAME": "llama-sft"})
    assert (found.job.id, found.job.name) == ("my-run_1", "llama-sft")
    hashed = discover("train.py", {"RANKTOP_JOB_ID": "../../etc"})
    assert hashed.job.id.isalnum()


def test_a_job_that_slurm_starts_again_is_another_run() -> None:
    job = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "2", "SLURM_JOB_ID": "7"}
    ids = {discover("train.py", {**job, **more}).job.id for more in ({}, {"SLURM_RESTART_COUNT": "1"})}
    assert len(ids) == 2


def test_deepspeeds_launcher_is_named_and_its_jobs_on_one_node_are_told_apart_though_they_share_a_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    ranks |= {"CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": "2"}
    found = discover("train.py", ranks)
    assert (found.job.launcher, found.rank, found.nodes) == ("deepspeed", 1, 1)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert discover("train.py", ranks).job.id != found.job.id
    several = {**ranks, "CROSS_SIZE": "2"}
    monkeypatch.undo()
    before = discover("train.py", several).job.id
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert discover("train.py", several).job.id == before
