"""One rank of a job that trains the reference GPT under DeepSpeed and counts the bytes of every storage.

Started by test_deepspeed_peaks.py with a folder: ``cases.json`` is read there, every rank writes ``rank<N>.json``:
bytes when the engine is made, at forward's end, after backward and after the step, and the peaks between.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist
from fake_models import Gpt, ReferenceGpt, default_dtype
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

BLOCK = 512
"""The allocator's unit on a GPU; here every storage is rounded so."""

STEPS = 6
"""The second step is the first one of the usual kind: the optimizer has its state, ZeRO-3 its trace.

Of a stretch and of a moment the least of the steps from then on counts: a thread of gloo may hold the tensor of a
collective a little longer than it takes, or not.
"""

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}


class Peak(TorchDispatchMode):
    """Counts live storages, and the most that lived at once since the last look."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.now = self.most = 0

    def see(self, tree: Any) -> None:
        """Count the storages behind the tensors of a tree."""
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                self._count(leaf.untyped_storage())

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        entry = self.known.get(storage)
        if entry is None:
            entry = [0]

            def gone(_: object, entry: list[Any] = entry) -> None:
                self.now -= entry[0]
                entry[0] = 0

            entry.append(weakref.ref(storage, gone))
            self.known[storage] = entry
        self.now += size - entry[0]
        entry[0] = size
        self.most = max(self.most, self.now)

    def taken(self) -> int:
        """Return the peak, and begin a new one.

        Threads of gloo hold the tensors of their last collective until the next one.
        """
        dist.barrier()
        gc.collect()
        most, self.most = self.most, self.now
        return most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(result)
        return result


def config(case: dict[str, Any], world: int) -> dict[str, Any]:
    """DeepSpeed's config of a case."""
    batch, steps, precision = case.get("batch", 1), case.get("accumulation", 1), case.get("precision", "bf16")
    return {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": steps,
        "train_batch_size": batch * steps * world,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
        "zero_optimization": case["zero"],
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        **case.get("config", {}),
    }


def run(case: dict[str, Any], world: int) -> dict[str, int]:
    """Train a case and return its bytes."""
    torch.manual_seed(0)
    shape = Gpt(layers=2, checkpointing=case.get("checkpointing", "none"))
    peak = Peak()
    found: dict[str, int] = {}
    with peak:
        with default_dtype(DTYPES[case.get("precision", "bf16")]):
            model = ReferenceGpt(shape)
        peak.see(list(model.parameters()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        peak.taken()
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(case, world))
        found["load"] = peak.taken()
        gc.collect()  # what the engine has let go of in cycles goes when Python likes, and does not live
        found["engine"] = peak.now
        tokens = torch.randint(0, shape.vocab, (case.get("batch", 1), shape.positions))
        peak.taken()
        for step in range(STEPS):
            usual: dict[str, int] = {}
            for _ in range(case.get("accumulation", 1)):
                loss = engine(tokens, tokens)
                usual["forward"], usual["forward_end"] = peak.taken(), peak.now
                engine.backward(loss)
                del loss
                usual["backward"], usual["between"] = peak.taken(), peak.now
                engine.step()
                usual["optimizer_step"], usual["step_start"] = peak.taken(), peak.now
            if step:
                found.update({name: min(size, found.get(name, size)) for name, size in usual.items()})
        if case["zero"].get("stage3_gather_16bit_weights_on_model_save"):
            weights = engine._zero3_consolidated_16bit_state_dict()
            found["checkpoint_save"] = peak.taken()
            del weights
    engine.destroy()
    return found


def main() -> None:
    """Run all cases of the folder."""
    out = Path(sys.argv[1])
    # DeepSpeed would compile a kernel of its own for collectives within a machine.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    rank, world = dist.get_rank(), dist.get_world_size()
    gc.collect()
    gc.freeze()
    results: dict[str, dict[str, int]] = {}
    for name, case in json.loads((out / "cases.json").read_text()).items():
        results[name] = run(case, world)
        gc.collect()
    (out / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
