"""Dtypes of a live model by role."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn

from ranktop.budget.plan import Precision
from ranktop.probes.holders import find_holders, fsdp1_handle, fsdp2_groups
from ranktop.probes.optimizer import dtype_name, parameters_of, state_of


def mixed_precision(root: nn.Module) -> dict[str, str | None]:
    """Return the compute, reduce and gradient dtypes that FSDP's mixed precision sets."""
    for module in root.modules():
        for group in fsdp2_groups(module):
            policy = group.mp_policy
            return {"compute": _name(policy.param_dtype), "reduce": _name(policy.reduce_dtype)}
        handle = fsdp1_handle(module)
        if handle is not None:
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


def master_dtype(root: nn.Module, optimizers: list[Any]) -> str | None:
    """Return the dtype of master weights: in the optimizer's state, or its parameters beside the model's."""
    for optimizer in optimizers:
        for kept in state_of(optimizer).values():
            for name, value in kept.items() if isinstance(kept, dict) else ():
                if "master" in str(name) and hasattr(value, "dtype"):
                    return dtype_name(value.dtype)
    own = {id(p): p for p in find_holders(root).leaves()}
    updated = {id(p): p for optimizer in optimizers for p in parameters_of(optimizer)}
    half = any(p.requires_grad and p.element_size() <= 2 for key, p in own.items() if key not in updated)
    extra = [p for key, p in updated.items() if key not in own]
    return dtype_name(extra[0].dtype) if half and extra else None


def precision_of(
    root: nn.Module, optimizers: list[Any], autocast: str | None, compute: str | None
) -> Precision:
    """Return the dtypes by role; ``autocast`` and ``compute`` are what hooks have seen."""
    sizes: Counter[str] = Counter()
    for parameter in find_holders(root).parameters():
        sizes[dtype_name(parameter.dtype)] += parameter.numel() or 1
    stored = sizes.most_common(1)[0][0] if sizes else "float32"
    policy = mixed_precision(root)
    return Precision(
        parameters=stored,
        gradients=policy.get("gradients"),
        compute=policy.get("compute") or compute,
        reduce=policy.get("reduce"),
        autocast=autocast,
        master=master_dtype(root, optimizers),
    )


def _name(dtype: Any) -> str | None:
    return None if dtype is None else dtype_name(dtype)
