"""Low-rank adapters (PEFT's LoRA) of a live model, told by their modules: nothing of PEFT is imported."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from ranktop.budget.plan import Lora

_ROLES: Final = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "qkv_proj": "qkv", "c_attn": "qkv",
    "query_key_value": "qkv", "gate_proj": "gate", "up_proj": "up", "gate_up_proj": "gate_up", "down_proj": "down",
    "c_fc": "up", "dense_h_to_4h": "up", "dense_4h_to_h": "down",
}  # fmt: skip
"""transformers' name of a linear layer -> its role in the rules (``Tensor.role``)."""

_BY_PARENT: Final = {"attn": "o", "attention": "o", "self_attn": "o", "mlp": "down"}
"""Module that holds a ``c_proj`` or ``dense`` -> its role."""


def lora_of(root: nn.Module) -> tuple[Lora | None, str]:
    """Return the adapters that all wrapped layers have alike, and why there is no rule for them; (None, "") for none.

    A rule knows plain LoRA of one rank, one active adapter and known layers.
    """
    found = [(name, module) for name, module in root.named_modules() if _is_layer(module)]
    if not found:
        return None, ""
    ranks, roles, dtypes, dropouts = set(), set(), set(), set()
    for name, layer in found:
        active = [key for key in layer.active_adapters if key in layer.lora_A]
        if len(active) != 1 or len(layer.lora_A) != 1 or getattr(layer, "lora_variant", None):
            return None, "adapters that are no plain LoRA, or several on one layer"
        role = _role(name)
        if role is None:
            return None, f"an adapter on {name.rsplit('.', 1)[-1]}, whose place in the model is not known"
        weight = layer.lora_A[active[0]].weight
        ranks.add(int(layer.r[active[0]]))
        roles.add(role)
        dtypes.add(str(weight.dtype).removeprefix("torch."))
        dropouts.add(float(getattr(layer.lora_dropout[active[0]], "p", 0.0)))
    if len(ranks) > 1 or len(dtypes) > 1 or len(dropouts) > 1:
        return None, "adapters of several ranks, dtypes or dropouts"
    return Lora(rank=ranks.pop(), targets=tuple(sorted(roles)), dtype=dtypes.pop(), dropout=dropouts.pop()), ""


def is_adapter_dropout(name: str) -> bool:
    """Return whether a module's name is that of an adapter's own dropout, which is none of the model's."""
    return ".lora_dropout." in name


def _is_layer(module: Any) -> bool:
    held = module._modules
    return "lora_A" in held and "base_layer" in held and len(held["lora_A"]) > 0


def _role(name: str) -> str | None:
    *parents, last = name.split(".")
    if last in ("c_proj", "dense"):
        return _BY_PARENT.get(parents[-1]) if parents else None
    return _ROLES.get(last)
