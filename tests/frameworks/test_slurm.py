"""The batch scripts of docs/slurm.md on a real Slurm: seen from within the allocation, and complete when it is over."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Slurm, cluster, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}"),
]

PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"
SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[1])):
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="rt-slurm-", dir="/tmp") as name:
        folder = Path(name)
        with cluster(folder) as running:
            running.environment |= {
                "PATH": f"{Path(sys.executable).parent}:{running.environment['PATH']}",
                "RANKTOP_STATE_DIR": str(folder / "recordings"),
                "OMP_NUM_THREADS": "1",
            }
            (folder / "train.py").write_text(SCRIPT)
            yield running


@pytest.fixture(scope="module")
def numbers(slurm: Slurm) -> list[str]:
    """Slurm's numbers of the page's two jobs: the first trains until it is told to end, the second for 20 steps."""
    return [
        slurm.run("sbatch", "--parsable", str(script_of_the_page(page, slurm, steps)))
        for page, steps in enumerate((100_000, 20))
    ]


def script_of_the_page(number: int, slurm: Slurm, steps: int) -> Path:
    """Return the page's script as it can run here: one node, two ranks, no GPU."""
    text = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)[number]
    for pattern, new in (
        (r"#SBATCH --nodes=2", "#SBATCH --nodes=1"),
        (r"#SBATCH --gpus-per-node=8\n", ""),
        (r"(ntasks-per-node=|nproc-per-node )8", r"\g<1>2"),
        (r"/tmp/ranktop-\$UID", str(slurm.folder / "run")),
        (r"\$\(scontrol [^)]*\)", "127.0.0.1"),
        (r"29500", str(29600 + number)),
        (r"train\.py", f"train.py {steps}"),
    ):
        text, count = re.subn(pattern, new, text)
        assert count or pattern.endswith("\\n") or "nproc" in pattern, f"the page no longer has {pattern}"
    path = slurm.folder / f"page-{number}.sbatch"
    path.write_text(text)
    return path


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)
    return found


def jobs(slurm: Slurm, name: str) -> list[dict[str, Any]]:
    told = slurm.run("ranktop", "jobs", "--json", RANKTOP_RUN_DIR=str(slurm.folder / "run"))
    return [job for job in json.loads(told or "{}").get("jobs", []) if job["name"] == name]


def over(slurm: Slurm, number: str, name: str) -> dict[str, Any]:
    until(lambda: not slurm.run("squeue", "--noheader", "--job", number, "--states=R,CG,PD"))
    job: dict[str, Any] = until(lambda: [job for job in jobs(slurm, name) if job["state"] != "running"])[0]
    return job


def test_torchrun_is_seen_from_within_and_told_after_scancel(slurm: Slurm, numbers: list[str]) -> None:
    number = numbers[0]
    name = f"pretrain-{number}"
    until(lambda: any(job["steps"] for job in jobs(slurm, name)))
    told = slurm.run(
        *("srun", "--jobid", number, "--overlap", "--ntasks", "1", "ranktop", "status", "--json"),
        RANKTOP_RUN_DIR=str(slurm.folder / "run"),
    )
    (job,) = [job for job in json.loads(told)["jobs"] if job["name"] == name]
    assert (job["name"], job["world_size"], job["strategy"]["name"]) == (name, 2, "ddp")
    assert [rank["state"] for rank in job["ranks"]] == ["ok", "ok"]
    slurm.run("scancel", number)
    past = over(slurm, number, name)
    assert past["how"] == "stopped (SIGTERM)"
    assert past["steps"] > 0


def test_a_task_for_each_rank_is_one_job_and_its_end_is_recorded(slurm: Slurm, numbers: list[str]) -> None:
    number = numbers[1]
    past = over(slurm, number, f"pretrain-{number}")
    assert (past["world_size"], past["how"], past["steps"]) == (2, "finished", 20)
