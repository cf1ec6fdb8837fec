"""One rank of the agent's benchmark: runs blocks of steps and writes what they took. Started by ``bench_agent.py``.

The first argument is a JSON object:

- ``cells``: a list of (kind, tensors, step in ms, groups); every group has two blocks of each tool, in a random order
  and then in that order backwards (ABBA), so that what drifts evenly counts the same for all.
- ``tools``, ``block`` and ``warm``: names, and seconds of a block and of the steps before it, which are not counted.
- ``hooks``: seconds in which the agent's hooks themselves are timed instead.
- ``out``: the file that rank 0 writes: for each cell its step in ms, and per tool, group and block the seconds of a
  step (CPU of the training thread, wall clock), the mean over all ranks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.agent_jobs import Job, filled, make
from bench.agent_tools import OFF, Tool, tools

Block = tuple[float, float]


def measure(step: Callable[[], None], steps: int) -> Block:
    """Return the mean (CPU seconds of this thread, seconds) of a step: a mean sees every cost, also the rare ones."""
    began, cpu = time.perf_counter(), time.thread_time()
    for _ in range(steps):
        step()
    return (time.thread_time() - cpu) / steps, (time.perf_counter() - began) / steps


def block(tool: Tool, job: Job, steps: int, warm: int) -> Block:
    """Return what a step takes with a tool.

    The steps before it are not counted: what begins with a tool is paid once in a job's life.
    """
    step = tool.on(job)
    together()
    for _ in range(warm):
        step()
    found = measure(step, steps)
    tool.off()
    together()
    return found


def cell(job: Job, step_ms: float, groups: int, spec: dict[str, Any]) -> dict[str, list[tuple[Block, Block]]]:
    """Return per tool its two blocks in each group."""
    beside = tools(spec["tools"])
    found: dict[str, list[tuple[Block, Block]]] = {name: [] for name in beside}
    steps, warm = (max(2, round(1e3 * spec[name] / step_ms)) for name in ("block", "warm"))
    order = random.Random(spec.get("seed", 0))
    for name in beside:  # what is imported and started once
        block(beside[name], job, 1, 1)
    for _ in range(groups):
        names = list(beside)
        order.shuffle(names)
        first = {name: block(beside[name], job, steps, warm) for name in names}
        for name in reversed(names):
            found[name].append((first[name], block(beside[name], job, steps, warm)))
    return found


def hooks(job: Job, step_ms: float, seconds: float) -> dict[str, list[float]]:
    """Return the seconds that the agent's hooks took in each step that was only counted, and in each followed one."""
    from torch.optim import optimizer as torch_optimizer

    from ranktop.agent import attaching
    from ranktop.agent.watch import Watch

    spent, clock = [0.0], time.perf_counter

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def hook(*args: Any) -> Any:
            began = clock()
            try:
                return call(*args)
            finally:
                spent[0] += clock() - began

        return hook

    for name in ("_output_differentiated", "_backward_ended"):
        setattr(Watch, name, timed(getattr(Watch, name)))
    tools(["ranktop"])["ranktop"].on(job)
    for _ in range(8):
        job.step()
    watch: Any = attaching._agent.watch if attaching._agent is not None else None
    places: list[Any] = [torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks]
    places += [where for m in watch.model.root.modules() for where in (m._forward_pre_hooks, m._forward_hooks)]
    for place in places:
        for key, hook in list(place.items()):
            if type(hook).__module__.startswith("ranktop") or hook.__module__.startswith("ranktop"):
                place[key] = timed(hook)
    found: dict[str, list[float]] = {"counted": [], "followed": []}
    for _ in range(max(2, round(1e3 * seconds / step_ms))):
        spent[0] = 0.0
        job.step()
        found["counted" if watch.recorder.skimming else "followed"].append(spent[0])
    attaching.detach()
    return found


def together() -> None:
    """Wait for the other ranks."""
    if dist.is_initialized():
        dist.barrier()


def means(values: dict[str, list[tuple[Block, Block]]]) -> dict[str, list[list[list[float]]]]:
    """Return the means over all ranks."""
    every: list[Any] = [values]
    if dist.is_initialized():
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, values)
    return {
        name: [
            [
                [sum(rank[name][group][turn][which] for rank in every) / len(every) for which in (0, 1)]
                for turn in (0, 1)
            ]
            for group in range(len(values[name]))
        ]
        for name in values
    }


def main() -> None:
    """Run the cells."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    results: list[dict[str, Any]] = []
    for kind, tensors, step_ms, groups in spec["cells"]:
        job = make(kind, tensors)
        took = filled(job, step_ms)
        row: dict[str, Any] = {"kind": kind, "tensors": tensors, "asked": step_ms, "step_ms": took}
        if spec.get("hooks"):
            row.update(hooks(job, took, spec["hooks"]))
        else:
            found = means(cell(job, took, groups, spec))
            row["blocks"] = found
            # The mean step of the blocks without any tool: the calibration was a moment's.
            row["step_ms"] = 1e3 * sum(b[1] for pair in found[OFF] for b in pair) / (2 * len(found[OFF]))
        results.append(row)
        together()
    if os.environ.get("RANK", "0") == "0":
        Path(spec["out"]).write_text(json.dumps(results))
    together()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
