"""Counts the collectives that a process really issues: every c10d operator that passes torch's dispatcher."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS: Final = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
}
"""Operator -> kind; an operator that is not listed fails the test that meets it."""

IN_PARTS: Final = ("all_gather_into_tensor", "allgather_")
"""Operators whose arguments hold no tensor of the whole."""

WITHOUT_BYTES: Final = ("barrier", "wait_tensor", "_wrap_tensor_autograd")

Totals = dict[tuple[str, int], tuple[int, int]]
"""(kind, ranks) -> (full-size bytes, calls)."""


class Collectives(TorchDispatchMode):
    """Sums what was sent; single numbers (norms, flags) are left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: Counter[tuple[str, int]] = Counter()
        self.calls: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.count(func._schema.name.split("::")[1], args)
        return func(*args, **(kwargs or {}))

    def count(self, name: str, args: Any) -> None:
        if name in WITHOUT_BYTES:
            return
        kind = KINDS[name]
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        ranks = next(group.size() for group in map(_group, args) if group is not None)
        whole = max(tensors, key=lambda t: t.numel())
        if whole.numel() == 1:
            return
        size = whole.numel() * whole.element_size()
        if name in IN_PARTS:
            size *= ranks
        self.bytes[kind, ranks] += size
        self.calls[kind, ranks] += 1

    def totals(self) -> Totals:
        return {key: (self.bytes[key], self.calls[key]) for key in self.bytes}

    def clear(self) -> None:
        self.bytes.clear()
        self.calls.clear()


def _group(arg: Any) -> Any:
    """Return the process group that an argument is or names, else None."""
    if isinstance(arg, str):
        by_name: Any = distributed_c10d.__dict__["_resolve_process_group"]
        return by_name(arg) if arg not in ("sum", "avg", "max") else None
    if isinstance(arg, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(arg)
        except (RuntimeError, AttributeError):
            return None
    return None
