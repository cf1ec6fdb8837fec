"""Jobs on meshes of four ranks, built as torchtitan does: what is shown, against what the script counts itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import AGENT, TORCHRUN, Viewer, job, output, steps_done

from ranktop.tui.session.findings.groups import peer_groups
from ranktop.tui.view.grid import by_mesh
from ranktop.tui.view.plan import place

pytestmark = pytest.mark.usefixtures("run_directory")

WORKER = str(Path(__file__).with_name("mesh_worker.py"))
FOUR = [*TORCHRUN, "--nproc-per-node", "4", *AGENT, WORKER]
COUNTED = ("parameters", "gradients", "optimizer")
SINGLE = {"replicate": 0}


def trained(kind: str, directory: Path, viewer: Viewer) -> dict[str, Any]:
    """Run a job until all is known of it, end it, and return its state while it ran."""
    files = [directory / f"counted{rank}.json" for rank in range(4)]
    with job([*FOUR, kind], directory) as process:
        state = viewer.wait(lambda state: steps_done(state, 4) and all(file.exists() for file in files), 150)
        (directory / "over").touch()
        assert process.wait(90) == 0, output(directory)
    return state


def counted(directory: Path, rank: int) -> dict[str, int]:
    """Return what the script has counted after a step, its gradients still there."""
    found: dict[str, int] = json.loads((directory / f"counted{rank}.json").read_text())
    return found


def check_states(state: dict[str, Any], directory: Path) -> None:
    """Measured is counted is expected, at the end of a step and at its peak, to the byte."""
    for rank in state["ranks"]:
        after = rank["moments"]["step_end"]
        assert {name: after[name] for name in COUNTED} == counted(directory, rank["rank"])
        for name in COUNTED:
            assert rank["measured"][name] == rank["expected"][name], (rank["rank"], name)
            assert rank["tolerance"][name] == 0
        assert rank["agent"]["errors"] == 0


def words(finding: dict[str, Any]) -> str:
    return f"{finding['rule']}: {finding['sentence']}"


def test_fsdp2_over_tensor_and_sequence_parallel_blocks(tmp_path: Path, viewer: Viewer) -> None:
    state = trained("titan", tmp_path, viewer)
    strategy = state["strategy"]
    assert strategy["words"] == "FSDP2 full shard · dp 2 · tp 2 · bf16/fp32 · AdamW"
    assert strategy["precision"]["compute"] == "bfloat16"
    assert strategy["precision"]["reduce"] == "float32"
    assert (strategy["micro_batch"], strategy["sequence_length"], strategy["accumulation"]) == (4, 32, 1)
    assert strategy["checkpointing"] == "full"
    meshes = [rank["mesh"] for rank in state["ranks"]]
    assert meshes == [{**SINGLE, "shard": r // 2, "tensor": r % 2, "pipeline": 0} for r in range(4)]
    check_states(state, tmp_path)
    groups = peer_groups(viewer.session.snapshot().ranks)
    assert all(group.role.startswith("of tensor-parallel rank") for group in groups)
    assert [place(view.card.plan) for view in viewer.session.snapshot().ranks if view.card and view.card.plan] == [
        f"shard {r // 2} of 2, tensor rank {r % 2} of 2" for r in range(4)
    ]
    axes = by_mesh(viewer.session.snapshot())
    assert ([row.ranks for row in axes.rows], axes.across) == ([(0, 1), (2, 3)], "tensor rank")
    assert [words(each) for each in state["findings"] if each["severity"] != "info"] == []


def test_two_stages_of_one_forward_one_backward_each_sharded(tmp_path: Path, viewer: Viewer) -> None:
    state = trained("pipeline", tmp_path, viewer)
    strategy = state["strategy"]
    assert strategy["words"] == "FSDP2 full shard · dp 2 · pp 2 · bf16/fp32 · AdamW"
    assert (strategy["micro_batch"], strategy["accumulation"], strategy["checkpointing"]) == (1, 4, "full")
    assert {rank["step"]["micro_batches"] for rank in state["ranks"]} == {4}
    meshes = [rank["mesh"] for rank in state["ranks"]]
    assert meshes == [{**SINGLE, "shard": r % 2, "tensor": 0, "pipeline": r // 2} for r in range(4)]
    # The first stage has the embedding, the last one a norm more and the head: that is no rank out of line.
    sizes = [rank["measured"]["parameters"] for rank in state["ranks"]]
    assert sizes[0] == sizes[1] != sizes[2] == sizes[3]
    check_states(state, tmp_path)
    axes = by_mesh(viewer.session.snapshot())
    assert ([row.ranks for row in axes.rows], axes.across) == ([(0, 2), (1, 3)], "stage")
    assert [words(each) for each in state["findings"] if each["severity"] != "info"] == []
