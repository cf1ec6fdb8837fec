"""Runs every case for a few steps; writes what was measured, expected and counted independently to one JSON a rank."""

from __future__ import annotations

import gc
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from live_storages import LiveStorages
from states_cases import CPU, Case, Odd, cases

from ranktop.budget.states import expected_states
from ranktop.budget.words import strategy_words
from ranktop.probes.model import ModelProbe
from ranktop.probes.strategy import Seen, detect

STEPS = 3


class Run:
    """One case: the job, the probe beside it, and the tracker that knows nothing of either."""

    def __init__(self, case: Case, dtype: torch.dtype, live: LiveStorages) -> None:
        self.case, self.dtype, self.live = case, dtype, live
        self.rows: list[dict[str, Any]] = []
        self.exist: list[str] = []

    def row(self, step: int, moment: str) -> None:
        self.probe.refresh()
        resident = self.probe.resident()
        if step == STEPS - 1 and self.probe.gradients_exist():
            self.exist.append(moment)
        measured = (resident.parameters, resident.gradients, resident.optimizer, resident.buffers)
        live = self.live.settled(self.before + sum(size or 0 for size in measured)) - self.before
        self.rows.append(
            {
                "step": step,
                "moment": moment,
                "live": live,
                "measured": {
                    "parameters": resident.parameters,
                    "gradients": resident.gradients,
                    "optimizer": resident.optimizer,
                    "buffers": resident.buffers,
                },
                "reasons": resident.reasons,
            }
        )

    def run(self) -> dict[str, Any]:
        tokens = torch.arange(6).reshape(2, 3) % 11
        gc.collect()
        self.before = self.live.total()
        model_in = self.case.wrap(Odd().to(self.dtype))
        optimizer = self.case.optimizer(model_in)
        self.probe = ModelProbe(model_in, [optimizer], CPU)
        for step in range(STEPS):
            self.row(step, "step_start")
            loss = model_in(tokens).float().square().mean()
            loss.backward()
            del loss
            self.row(step, "backward_end")
            optimizer.step()
            self.row(step, "step_end")
            optimizer.zero_grad()
            self.row(step, "zeroed")
        seen = Seen(gradients_at=tuple(m for m in self.exist if m != "zeroed"), micro_batch=2)
        plan = detect(model_in, [optimizer], CPU, seen)
        inventory = self.probe.inventory()
        budgets = {
            first: {
                moment: {name: [a.bytes, a.slack, a.rule] for name, a in amounts.items()}
                for moment, amounts in expected_states(inventory, plan, first_step=first).moments.items()
            }
            for first in (True, False)
        }
        return {
            "rows": self.rows,
            "first": budgets[True],
            "later": budgets[False],
            "strategy": plan.strategy,
            "words": strategy_words(plan),
            "layout": {name: getattr(plan.layout, name) for name in ("replicate", "shard", "tensor", "world_size")},
            "fsdp": None if plan.fsdp is None else plan.fsdp.sharding,
            "notes": plan.notes,
        }


def main() -> None:
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    gc.collect()
    gc.freeze()  # the imports' objects: without them a collection takes no time
    for case in cases(world):
        for dtype in (torch.float32, torch.bfloat16):
            # What three ranks share out unevenly are elements, of whichever size.
            if dtype is torch.bfloat16 and ("mixed" in case.name or world == 3):
                continue
            name = f"{case.name}-{str(dtype).removeprefix('torch.')}"
            with LiveStorages() as live:
                try:
                    results[name] = Run(case, dtype, live).run()
                except Exception:
                    results[name] = {"error": traceback.format_exc()}
    (out / f"rank{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
