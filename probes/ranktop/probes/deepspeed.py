"""What a DeepSpeed engine holds, by category, at ZeRO stages 0 to 3, without importing DeepSpeed.

Read from DeepSpeed 0.19.8: ``engine.py``, ``bf16_optimizer.py`` and ``fp16/*_optimizer.py`` in ``runtime/``, and
``stage_1_and_2.py``, ``stage3.py`` and ``partition_parameters.py`` in ``runtime/zero/``. None of it is public, so
every attribute is looked up by name and may be missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ranktop.probes import deepspeed_plan
from ranktop.probes.deepspeed_plan import MASTERS, base_optimizer, own

if TYPE_CHECKING:
    import torch

    from ranktop.budget.inventory import Inventory
    from ranktop.budget.plan import Plan

FLAT_PARAMETERS: Final = (
    "bit16_groups_flat",
    "bf16_groups_flat",
    "fp16_groups_flat",
    "lp_param_buffer",
    "param_groups_fp16_flat_cpu_memory",
)
"""Buffers that the model's parameters, or their partitions, are views of."""

GRADIENT_STORES: Final = (
    "grads_in_partition",
    "averaged_gradients",
    "all_grad_tensors",
    "accumulated_grads_in_cpu",
    "grad_partitions_flat_buffer",
    "fp32_groups_gradients_flat",
)
"""Where a wrapper keeps gradients that have left the parameters' ``.grad``."""

STAGING: Final = (
    "param_buffer_of_bit16_for_cpu_offload_groups",
    "temp_grad_buffer_for_cpu_offload",
    "temp_grad_buffer_for_gpu_offload",
)
"""Communication and copy buffers beside the reduction buckets."""

LOOKS: Final = 8
"""Entries of a list or dict that a cheap look goes through."""


def find(root: object) -> Any | None:
    """Return the engine that is ``root`` or that runs ``root`` as its model; None when there is none.

    The engine puts its model among its children without registering it, so that the model, not the engine, is what
    looks like the root; the engine is then found in the forward hook that it leaves on the model. Of several that were
    made for one model, one after the other, it is the last: none takes its hooks away.
    """
    kind = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
    if not isinstance(kind, type):
        return None
    if isinstance(root, kind):
        return root
    hooks = getattr(root, "_forward_pre_hooks", None)
    for hook in reversed(list(hooks.values())) if hooks else ():
        for cell in getattr(hook, "__closure__", None) or ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue
            if isinstance(held, kind) and own(held, "module") is root:
                return held
    return None


def resident_tensors(engine: Any) -> dict[str, list[torch.Tensor]]:
    """Return the tensors that hold each category now: parameters, gradients, optimizer, buffers.

    Views and repetitions are not removed, and tensors on any device are there. Parameters that ZeRO-3 has gathered
    for a moment belong to no category; the persistent ones are parameters. A gradient that is a view of a
    reduction bucket is left to the bucket.
    """
    model: torch.nn.Module = own(engine, "module")
    outer = own(engine, "optimizer")
    buckets = list(_buckets(outer))
    bucket_storages = {_storage(tensor) for tensor in buckets}
    masters = list(_tensors([own(outer, name) for name in MASTERS]))
    gradients = [
        *(p.grad for p in masters),
        *(g for p in model.parameters() for g in (p.grad, getattr(p, "grad_accum", None))),
        *(own(outer, name) for name in GRADIENT_STORES),
    ]
    return {
        "parameters": [
            *(part for p in model.parameters() for part in _parts(p)),
            *_tensors([own(outer, name) for name in FLAT_PARAMETERS]),
        ],
        "gradients": [g for g in _tensors(gradients) if _storage(g) not in bucket_storages],
        "optimizer": [*masters, *_states(engine, outer)],
        "buffers": [*model.buffers(), *buckets, *_tensors([own(outer, name) for name in STAGING])],
    }


def gradients_exist(engine: Any) -> bool:
    """Say whether any gradient is held now, by a look at a few places."""
    return any(_gradient_marks(engine, _parts_of(own(engine, "optimizer"))))


def layout_key(engine: Any) -> object:
    """Return a hashable value that differs whenever ``resident_tensors`` would tell other bytes.

    The layouts of a step recur: at the same moment of every step the key is the same, but for the first steps.
    """
    outer = own(engine, "optimizer")
    parts = _parts_of(outer)
    state = getattr(base_optimizer(engine), "state", None)
    persistent = parts.get("persistent_parameters") or ()
    buckets = parts.get("ipg_buckets")
    return (
        len(state) if state is not None else 0,
        len(next(iter(state.values()))) if state else 0,
        _gradient_marks(engine, parts),
        tuple([p.data.untyped_storage().nbytes() for p in (*persistent[:1], *persistent[-1:])]),
        tuple([tensor.untyped_storage().nbytes() for tensor in _buckets(outer)]) if buckets else (),
        len(parts.get("offloaded_states") or ()),
    )


def inventory(engine: Any) -> Inventory:
    """Return the model's parameters by their whole shapes, in the order of ``parameters()``."""
    return deepspeed_plan.inventory(engine)


def plan(engine: Any, seen: Any = None) -> Plan:
    """Return the plan that the engine's configuration and its live optimizer tell.

    ``seen`` is what was observed of the root module's inputs (``ranktop.probes.strategy.Seen``), or None.
    """
    return deepspeed_plan.plan(engine, seen)


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Walk lists, tuples and dicts down to their tensors."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, dict):
        for part in list(value.values()):
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in (*value, own(value, "flat_partition")):
            yield from _tensors(part)


def _parts(parameter: Any) -> Iterator[torch.Tensor]:
    """Yield what a rank keeps of one parameter: all of it, or its ZeRO-3 partition and a persistent whole."""
    if not hasattr(parameter, "ds_tensor"):
        yield parameter.data
        return
    yield from _tensors([parameter.ds_tensor, getattr(parameter, "ds_secondary_tensor", None)])
    if getattr(parameter, "ds_persist", False):
        yield parameter.data


def _states(engine: Any, outer: object) -> Iterator[torch.Tensor]:
    """Yield the base optimizer's states, also of one that the wrapper has replaced (Adagrad) or keeps beside it."""
    inner = (own(outer, "optimizer"), own(outer, "backup_optimizer"))
    for holder in (outer, *inner, own(engine, "basic_optimizer")):
        yield from _tensors(own(holder, "state"))


def _buckets(outer: object) -> Iterator[torch.Tensor]:
    """Yield the flat buckets that gradients are reduced in: a list each at stages 1-2, one each at stage 3."""
    for bucket in list((own(outer, "ipg_buckets") or {}).values()):
        yield from _tensors(own(bucket, "buffer"))


def _parts_of(holder: object) -> dict[str, Any]:
    """Return what an object holds itself, by name."""
    return getattr(holder, "__dict__", {})


def _gradient_marks(engine: Any, parts: dict[str, Any]) -> tuple[bool, ...]:
    """Tell which gradients exist: of the model's ends, of the master weights, and in the wrapper's stores.

    ``parts``: of the engine's optimizer. This runs in the training thread at every moment.
    """
    marks = [
        p.grad is not None or getattr(p, "grad_accum", None) is not None for p in deepspeed_plan.end_parameters(engine)
    ]
    masters: Any = ()
    for name in MASTERS:
        if parts.get(name):
            masters = parts[name]
            break
    for entry in masters if len(masters) <= LOOKS else (masters[0], masters[-1]):
        master = entry[0] if isinstance(entry, list) and entry else entry
        marks.append(getattr(master, "grad", None) is not None)
    for name in ("averaged_gradients", "all_grad_tensors"):
        store = parts.get(name)
        if isinstance(store, dict):
            marks += [value is not None for value in islice(store.values(), LOOKS)]
    marks.append(bool(parts.get("accumulated_grads_in_cpu")))
    marks.append(parts.get("grad_partitions_flat_buffer") is not None or bool(parts.get("fp32_groups_gradients_flat")))
    return tuple(marks)
