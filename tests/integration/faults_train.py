"""A training loop for jobs with faults put in on purpose, while it runs.

Each rank reads, once a step, the words in the file ``fault.RANK`` of its working folder: the names of the faults that
it has now. No file: it is healthy. The loop ends when there is a file ``over``. Rank 0 counts the steps in ``steps``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import queue
import resource
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from faults_strategies import TRAINERS, Trainer
from torch import Tensor, nn

MIB = 2**20

SLOW = 0.3
"""What a slow rank loses, as a share of its usual step."""

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.06 GiB is "
    "free. Including non-PyTorch memory, this process has 78.04 GiB memory in use. Of the allocated memory 70.11 GiB "
    "is allocated by PyTorch, and 6.40 GiB is reserved by PyTorch but unallocated."
)

SHARES = {"data": 0.1, "forward": 0.3, "backward": 0.45, "optimizer": 0.15}
"""How the time that stands for a device's work is spent."""


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=sorted(TRAINERS), default="ddp")
    parser.add_argument("--model", choices=("gpt", "llama"), default="gpt", help="llama: under DDP or alone")
    parser.add_argument("--pace", type=float, default=0.04, help="seconds of a step that pass beside the arithmetic")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--no-sync", action="store_true", help="reduce gradients at the last micro-batch only")
    parser.add_argument("--data", choices=("fixed", "variable"), default="fixed")
    parser.add_argument("--eval-every", type=int, default=0)
    parser.add_argument("--eval-batches", type=int, default=4)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--mesh", choices=("all", "one"), default="all", help="one: shard over a single rank")
    parser.add_argument("--shard", choices=("all", "blocks", "none"), default="all")
    parser.add_argument("--leak-mib", type=float, default=1.0, help="a leaking rank's per step")
    parser.add_argument("--pause", type=float, default=15.0, help="seconds of a long validation, save or compilation")
    parser.add_argument("--address-mib", type=int, default=0, help="limit of a hungry rank's address space")
    parser.add_argument("--agree-every", type=int, default=1, help="steps between two reductions of the metrics")
    parser.add_argument("--die-once", type=int, default=-1, help="this rank fails at step 10 of the first life")
    parser.add_argument("--minutes", type=float, default=5.0, help="the loop's end, should nobody end it before")
    return parser.parse_args()


class Faults:
    """What is wrong with this rank now."""

    def __init__(self, rank: int) -> None:
        self.file = Path(f"fault.{rank}")
        self.names: frozenset[str] = frozenset()
        self.usual: deque[float] = deque(maxlen=20)
        """Seconds of the last healthy steps."""

    def read(self) -> None:
        """See what the test wants."""
        try:
            self.names = frozenset(self.file.read_text().split())
        except FileNotFoundError:
            self.names = frozenset()

    def finished(self, seconds: float) -> None:
        """Note the length of a step."""
        if not self.names:
            self.usual.append(seconds)

    def loop(self) -> None:
        """Do nothing useful, until healed."""
        while "loop" in self.names:
            for _ in range(100_000):
                pass
            self.read()

    def block(self) -> None:
        """Wait for a batch that never comes, until healed."""
        batches: queue.Queue[Tensor] = queue.Queue()
        while "blocked" in self.names:
            with contextlib.suppress(queue.Empty):
                batches.get(timeout=0.2)
            self.read()

    def delay(self, phase: str) -> float:
        """Return the seconds by which this phase is slow."""
        if f"sleep-{phase}" not in self.names:
            return 0.0
        return SLOW * median(self.usual) if self.usual else 0.0


class Slow:
    """Takes its time to be pickled, like a checkpoint on a slow file system."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[type, tuple[float]]:
        time.sleep(self.seconds)
        return (Slow, (0.0,))


class Loop:
    """One rank's training."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        self.options, self.rank = options, rank
        self.faults = Faults(rank)
        self.trainer: Trainer = TRAINERS[options.strategy](options)
        self.generator = torch.Generator().manual_seed(1000 + (0 if options.strategy == "pipeline" else rank))
        self.metrics = dist.new_group() if dist.is_initialized() else None
        self.kept: list[Any] = []
        """What a leak holds."""
        self.extra: nn.Module | None = None
        self.copied = False
        self.scale = 1.0
        self.slow_down()

    def slow_down(self) -> None:
        """Spend time in the phases, as much as a device would need."""
        modules = self.trainer.module.named_modules()
        first = next(module for name, module in modules if name.endswith(("blocks.0", "layers.0")))

        def forward(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            # One hook for both: the gradient of what goes in is the last that backward makes.
            self.spend("forward")
            if isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
                inputs[0].register_hook(backward)

        def backward(_: Tensor) -> None:
            self.spend("backward")

        first.register_forward_pre_hook(forward)
        step = getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)
        step.register_step_pre_hook(lambda *_: self.spend("optimizer"))

    def spend(self, phase: str) -> None:
        """Let this phase's part of the step pass."""
        parts = self.options.accumulate if phase != "optimizer" else 1
        parts *= 4 if self.options.strategy == "pipeline" and phase in ("forward", "backward") else 1
        work = self.scale if phase in ("forward", "backward") else 1.0
        time.sleep((self.options.pace * SHARES[phase] * work + self.faults.delay(phase)) / parts)

    def batch(self) -> Tensor:
        """Return the next tokens, ``[batch, sequence + 1]``."""
        options = self.options
        self.spend("data")
        if "blocked" in self.faults.names:
            self.faults.block()
        length, batch = options.length, options.batch
        if options.data == "variable":
            length = 8 * int(torch.randint(length // 16, length // 8 + 1, (1,), generator=self.generator))
        if "tokens" in self.faults.names:
            batch = batch * 3 // 2
        self.scale = batch * length / (options.batch * options.length)
        return torch.randint(options.vocabulary, (batch, length + 1), generator=self.generator)

    def step(self) -> None:
        """Train one step with the faults that this rank has."""
        for micro in range(self.options.accumulate):
            logits = self.trainer.micro(self.batch(), micro == self.options.accumulate - 1)
        self.spoil(logits)
        self.trainer.step()

    def spoil(self, logits: Tensor | None) -> None:
        """Do what goes wrong between backward and the optimizer."""
        names = self.faults.names
        if "leak" in names and logits is not None:
            times = max(1, round(self.options.leak_mib * MIB / (logits.numel() * logits.element_size())))
            self.kept.append(logits.repeat(times, 1, 1))
        if "copy" in names and not self.copied:
            self.extra, self.copied = copy.deepcopy(self.trainer.module), True
        if "copy" not in names and self.copied:
            self.extra, self.copied = None, False
        if not names & {"leak", "hungry"}:
            self.kept.clear()
        if "loop" in names:
            self.faults.loop()
        if "raise" in names:
            raise ValueError("loss is not finite")
        if "oom" in names:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        if "hungry" in names:
            self.eat()

    def eat(self) -> None:
        """Hold 32 MiB more with every step, up to a limit where one is given."""
        if self.options.address_mib and not self.kept:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            limit = used + self.options.address_mib * MIB
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        self.kept.append(torch.ones(32 * MIB // 4))

    def between(self, step: int) -> None:
        """Validate, save and compile, as often as wanted."""
        options, names = self.options, self.faults.names
        if "evaluate" in names or (options.eval_every and step % options.eval_every == 0):
            self.evaluate(options.pause if "evaluate" in names else 0.0)
        if "save" in names or (options.save_every and step % options.save_every == 0):
            self.save(options.pause if "save" in names else 0.0)
        if "compile" in names:
            compile_slowly(options.pause)

    def evaluate(self, seconds: float) -> None:
        """Run validation batches for so long, or as many as are wanted."""
        module = getattr(self.trainer, "wrapped", self.trainer.module)
        done, began = 0, time.monotonic()
        with torch.no_grad():
            while done < self.options.eval_batches or time.monotonic() - began < seconds:
                module(self.batch()[:, :-1])
                done += 1

    def save(self, seconds: float) -> None:
        """Write a checkpoint; the other ranks wait for rank 0's."""
        module = getattr(self.trainer, "engine", self.trainer).module
        state = {"model": module.state_dict(), "note": Slow(seconds)}
        if self.rank == 0 or seconds:
            torch.save(state, f"checkpoint.{self.rank}.pt")
        if self.metrics is not None and not seconds:
            dist.barrier(group=self.metrics)

    def agree(self, began: float) -> bool:
        """Tell whether all stop here: what every step's metrics are reduced for."""
        late = time.monotonic() - began > 60 * self.options.minutes
        over = torch.tensor([float(os.path.exists("over") or late)])
        if self.metrics is not None and "skip" not in self.faults.names:
            dist.all_reduce(over, dist.ReduceOp.MAX, group=self.metrics)
        return bool(over.item())

    def run(self) -> None:
        """Train until told to stop."""
        began, step = time.monotonic(), 0
        first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        while True:
            self.faults.read()
            before = time.monotonic()
            self.step()
            step += 1
            if self.options.die_once == self.rank and step == 10 and first_life:
                raise RuntimeError("a link went down")
            over = step % self.options.agree_every == 0 and self.agree(began)
            self.faults.finished(time.monotonic() - before)
            self.between(step)
            if over:
                return


def compile_slowly(seconds: float) -> None:
    """Compile a small module anew, with a backend that takes so long."""

    def backend(graph: Any, _: Any) -> Any:
        time.sleep(seconds)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(nn.Linear(4, 4), backend=backend)(torch.ones(2, 4))


def main() -> None:
    """Train under torchrun, or alone."""
    options = arguments()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    Loop(options, rank).run()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
