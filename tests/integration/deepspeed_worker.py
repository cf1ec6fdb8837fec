"""One rank of a job that trains a small model under DeepSpeed, case after case, and counts its bytes.

Started by test_deepspeed_states.py with a folder: ``cases.json`` is read there, every rank writes ``rank<N>.json``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ranktop.budget.terms import STATES
from ranktop.budget.zero import states as zero
from ranktop.probes import deepspeed as probe

SCALAR = 8
"""Bytes up to which a tensor that nobody claims is a counter, a norm or a flag."""

PATIENCE_S = 2.0
"""Seconds that bytes nobody claims may take to go away."""

STEPS = 3


class Model(nn.Module):
    """675 trainable elements that neither 2 nor 3 ranks divide; a tied weight, a frozen layer and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(26, 7)
        self.up = nn.Linear(7, 29)
        self.norm = nn.LayerNorm(29)
        self.frozen = nn.Linear(29, 3)
        self.down = nn.Linear(29, 7, bias=False)
        self.head = nn.Linear(7, 26, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(17))
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.up(self.embed(tokens)).relu())
        hidden = hidden + self.frozen(hidden).sum(-1, keepdim=True)
        logits: torch.Tensor = self.head(self.down(hidden))
        return logits


class Live(TorchDispatchMode):
    """Knows every storage that an operator has made or seen, and when it was born."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.born: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.time: tuple[int, int, str] = (-1, 0, "init")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.see(args)
        result = func(*args, **(kwargs or {}))
        self.see(result)
        return result

    def see(self, tree: Any) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                if storage not in self.born:
                    self.born[storage] = self.time

    def storages(self) -> dict[int, tuple[int, tuple[int, int, str]]]:
        """Return address -> (bytes, birth) of what lives now."""
        return {s.data_ptr(): (s.nbytes(), born) for s, born in self.born.items() if s.nbytes()}


def addresses(tensors: Any) -> dict[int, int]:
    """Return address -> bytes of the tensors' storages, each once."""
    found = (t.untyped_storage() for t in tensors)
    return {s.data_ptr(): s.nbytes() for s in found if s.nbytes()}


class Watch:
    """Reads the moments of every step through the same hooks as the agent, and keeps what it finds."""

    def __init__(self, engine: Any, live: Live) -> None:
        self.engine, self.live = engine, live
        self.rows: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.held: list[torch.Tensor] = []
        self.step = 0
        self.started = self.stepping = False
        self.public_optimizer: dict[int, int] = {}
        model = engine.module
        self.handles = [
            model.register_forward_pre_hook(self.model_begin, prepend=True),
            model.register_forward_hook(self.model_end),
            engine.register_forward_pre_hook(lambda *_: self.event("engine begins")),
            engine.register_forward_hook(lambda *_: self.event("engine ends")),
            register_optimizer_step_pre_hook(self.optimizer_begin),
            register_optimizer_step_post_hook(self.optimizer_end),
        ]

    def event(self, name: str) -> None:
        if self.step == 1:
            self.events.append(name)

    def model_begin(self, module: nn.Module, args: Any) -> None:
        self.event("model begins")
        if not self.started:
            self.started = True
            self.read("step_start")

    def model_end(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        self.event("model ends")
        self.read("forward_end")
        output.register_hook(lambda _: self.output_gradient())

    def output_gradient(self) -> None:
        self.event("output has its gradient")
        self.read("backward_start")

    def optimizer_begin(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.event("optimizer begins")
        if not self.stepping:
            self.stepping = True
            self.public_optimizer = {}
            self.read("backward_end", self.parameters_of(optimizer))

    def optimizer_end(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.event("optimizer ends")
        states = (t for values in optimizer.state.values() for t in values.values() if torch.is_tensor(t))
        self.public_optimizer |= addresses([*self.parameters_of(optimizer), *states])
        self.rows = [r for r in self.rows if (r["step"], r["moment"]) != (self.step, "step_end")]
        self.read("step_end", self.parameters_of(optimizer))

    @staticmethod
    def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def step_done(self) -> None:
        self.step += 1
        self.started = self.stepping = False

    def read(self, moment: str, updated: list[torch.Tensor] | None = None) -> None:
        """Compare what the probe claims with what lives."""
        self.rows = [r for r in self.rows if (r["step"], r["moment"]) != (self.step, moment)]
        claimed: dict[int, str] = {}
        measured = dict.fromkeys((*STATES, "buffers"), 0)
        for category, tensors in probe.resident_tensors(self.engine).items():
            for address, size in addresses(tensors).items():
                if address not in claimed:
                    claimed[address] = category
                    measured[category] += size
        self.rows.append(
            {
                "step": self.step,
                "moment": moment,
                "measured": measured,
                "exist": probe.gradients_exist(self.engine),
                "key": repr(probe.layout_key(self.engine)),
                "public": self.public(moment, claimed, updated),
                **self.settled(moment, claimed),
            }
        )

    def settled(self, moment: str, claimed: dict[int, str]) -> dict[str, Any]:
        """Account for every live byte; what a collective's thread or a garbage cycle holds goes away soon."""
        deadline = time.monotonic() + PATIENCE_S
        account = self.account(moment, claimed)
        while account["unexplained"] and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.001)
            account = self.account(moment, claimed)
        return account

    def account(self, moment: str, claimed: dict[int, str]) -> dict[str, Any]:
        live = self.live.storages()
        held = addresses(self.held)
        rest = {a: v for a, v in live.items() if a not in claimed and a not in held}
        newborn: set[int] = set()
        if moment in ("forward_end", "backward_start"):
            now = self.live.time[:2]
            newborn = {a for a, (_, born) in rest.items() if born[:2] == now and born[2] != "step"}
        small = {a for a, (size, _) in rest.items() if a not in newborn and size <= SCALAR}
        return {
            "live": sum(size for size, _ in live.values()),
            "held": sum(size for a, size in held.items() if a in live and a not in claimed),
            "activations": sum(rest[a][0] for a in newborn),
            "scalars": sum(rest[a][0] for a in small),
            "unexplained": [v for a, v in rest.items() if a not in newborn and a not in small],
            "missing": sum(a not in live for a in claimed),
        }

    def public(self, moment: str, claimed: dict[int, str], updated: list[torch.Tensor] | None) -> dict[str, str]:
        """Say where torch's own public view of the optimizer contradicts the probe."""
        wrong: dict[str, str] = {}
        for tensor in updated or ():
            if tensor.grad is not None and claimed.get(tensor.grad.untyped_storage().data_ptr()) != "gradients":
                wrong["gradients"] = str(tensor.grad.shape)
        if moment == "step_end":
            own = {a for a, category in claimed.items() if category == "optimizer"}
            parameters = {a for a, category in claimed.items() if category == "parameters"}
            if self.public_optimizer.keys() - own - parameters:
                wrong["optimizer"] = "not all of the base optimizer's tensors are claimed"
        return wrong

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


def config(case: dict[str, Any], world: int) -> dict[str, Any]:
    accumulation = case.get("accumulation", 1)
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": 2 * world * accumulation,
        "bf16": {"enabled": case["dtype"] == "bf16"},
        "zero_optimization": {"stage": case["stage"], **case.get("zero", {})},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        **case.get("config", {}),
    }


def groups_of(model: nn.Module, case: dict[str, Any]) -> Any:
    """One optimizer group, or matrices and the rest in two."""
    if not case.get("groups"):
        return list(model.parameters())
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def run(case: dict[str, Any], world: int) -> dict[str, Any]:
    torch.manual_seed(0)
    live = Live()
    with live:
        model = Model()
        live.see([*model.parameters(), *model.buffers()])
        groups = groups_of(model, case)
        optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(groups, lr=1e-3, foreach=case.get("foreach", True))
            if case["optimizer"] == "adamw"
            else torch.optim.SGD(groups, lr=1e-3, momentum=0.9)
        )
        del groups
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(case, world))
        watch = Watch(engine, live)
        inventory = probe.inventory(engine)
        before = probe.plan(engine)
        train(engine, watch, live, case.get("accumulation", 1))
        after = probe.plan(engine)
        watch.close()
        found = probe.find(model) is engine and probe.find(engine) is engine
    result = {
        "rows": watch.rows,
        "events": watch.events,
        "found": found,
        "plan": {"strategy": after.strategy, "wrapper": after.zero.wrapper if after.zero else None},
        "expected": {
            "first": amounts(zero.expected(inventory, before, first_step=True)),
            "later": amounts(zero.expected(inventory, after)),
            "later, planned before": amounts(zero.expected(inventory, before)),
        },
    }
    engine.destroy()
    del engine, optimizer, model, watch, live
    gc.collect()
    return result


def train(engine: Any, watch: Watch, live: Live, accumulation: int) -> None:
    tokens = torch.arange(10).reshape(2, 5)
    watch.held = [tokens]
    for step in range(STEPS):
        for micro in range(accumulation):
            live.time = (step, micro, "forward")
            output = engine(tokens)
            loss = output.float().pow(2).mean()
            live.time = (step, micro, "backward")
            watch.held = [tokens, output, loss]
            del output
            engine.backward(loss)
            live.time = (step, micro, "step")
            watch.held = [tokens, loss]
            engine.step()
            del loss
            watch.held = [tokens]
        watch.step_done()


def amounts(table: Any) -> dict[str, dict[str, tuple[int | None, int, str]]]:
    return {
        moment: {category: (a.bytes, a.slack, a.rule) for category, a in row.items()} for moment, row in table.items()
    }


def main() -> None:
    out = Path(sys.argv[1])
    cases = json.loads((out / "cases.json").read_text())
    # DeepSpeed would compile a kernel of its own for collectives within a machine.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    gc.collect()
    gc.freeze()
    rank, world = dist.get_rank(), dist.get_world_size()
    results = {name: run(case, world) for name, case in cases.items()}
    (out / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
