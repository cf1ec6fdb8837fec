"""Dtypes of a live model by role."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ranktop.budget.plan import Precision
from ranktop.probes.holders import Holders, find_holders
from ranktop.probes.optimizer import dtype_name, parameters_of, state_of
from ranktop.probes.structure import Structure


def mixed_precision(structure: Structure) -> dict[str, str | None]:
    """Return the compute, reduce and gradient dtypes that FSDP's mixed precision sets."""
    for state, group in structure.states:
        policy = getattr(group, "mp_policy", None) or state._mp_policy
        return {"compute": _name(policy.param_dtype), "reduce": _name(policy.reduce_dtype)}
    for _, handle in structure.handles:
        stored = handle.flat_param.dtype
        compute = getattr(handle, "_fwd_bwd_param_dtype", None)
        reduce = getattr(handle, "_reduce_dtype", None)
        low = getattr(handle, "_keep_low_precision_grads", False) and compute != stored
        return {
            "compute": _name(compute) if compute != stored else None,
            "reduce": _name(reduce) if reduce != stored else None,
            "gradients": _name(compute) if low else None,
        }
    return {}


def master_dtype(holders: Holders, optimizers: list[Any]) -> str | None:
    """Return the dtype of master weights: in the optimizer's state, or its parameters beside the model's."""
    for optimizer in optimizers:
        for kept in state_of(optimizer).values():
            for name, value in kept.items() if isinstance(kept, dict) else ():
                if "master" in str(name) and hasattr(value, "dtype"):
                    return dtype_name(value.dtype)
            break
    own = {id(p): p for p in holders.leaves()}
    updated = {id(p): p for optimizer in optimizers for p in parameters_of(optimizer)}
    half = any(p.requires_grad and p.element_size() <= 2 for key, p in own.items() if key not in updated)
    extra = [p for key, p in updated.items() if key not in own]
    return dtype_name(extra[0].dtype) if half and extra else None


def precision_of(structure: Structure, optimizers: list[Any], autocast: str | None, compute: str | None) -> Precision:
    """Return the dtypes by role; ``autocast`` and ``compute`` are what hooks have seen."""
    holders = find_holders(structure)
    sizes: Counter[torch.dtype] = Counter()
    for parameter in holders.parameters():
        sizes[parameter.dtype] += parameter.numel() or 1
    stored = dtype_name(sizes.most_common(1)[0][0]) if sizes else "float32"
    policy = mixed_precision(structure)
    return Precision(
        parameters=stored,
        gradients=policy.get("gradients"),
        # FSDP aligns flat parameters by its own policy, so only the policy may speak there.
        compute=policy["compute"] if policy else compute,
        reduce=policy.get("reduce"),
        autocast=autocast,
        master=master_dtype(holders, optimizers),
    )


def _name(dtype: Any) -> str | None:
    return None if dtype is None else dtype_name(dtype)
