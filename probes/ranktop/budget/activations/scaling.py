"""From the setting in which bytes were read to another one: by the ratio of closed forms, or by rules of thumb."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ranktop.budget.activations.closed import activations as closed_activations
from ranktop.budget.activations.coefficients import Setting
from ranktop.budget.activations.saved import Activations
from ranktop.budget.model import BadInput, Model, NoRule
from ranktop.budget.plan import Plan
from ranktop.budget.terms import DTYPE_BYTES

BY_CLOSED_FORM: Final = 0.05
"""What a ratio of two closed forms is trusted to."""

FIELDS: Final = ("layer", "outside", "logits", "inputs", "casts", "boundary", "loss_forward", "loss_backward",
                 "block_forward", "block_backward")  # fmt: skip


def factors(model: Model | None, plan: Plan, setting: Setting) -> tuple[dict[str, float], float | None, str]:
    """Return what to multiply each of FIELDS by, the error of doing so (None = a guess), and the rule in words."""
    asked = Setting.of(plan)
    if setting.same(asked):
        return dict.fromkeys(FIELDS, 1.0), 0.0, ""
    if model is not None:
        whole = replace(plan, checkpointing="none", pipeline=None, layout=replace(plan.layout, pipeline=1))
        there, here = closed(model, whole), closed(model, setting.applied(whole))
        if there is not None and here is not None:
            return (
                {name: _ratio(getattr(there, name), getattr(here, name)) for name in FIELDS},
                BY_CLOSED_FORM,
                "scaled by the ratio of closed forms",
            )
    return _rules_of_thumb(asked, setting), None, "scaled by rules of thumb"


def closed(model: Model, plan: Plan) -> Activations | None:
    """Return the closed form, None when there is none."""
    try:
        return closed_activations(model, replace(plan, layout=replace(plan.layout, pipeline_rank=0)))
    except (NoRule, BadInput):
        return None


def _ratio(there: int, here: int) -> float:
    return there / here if here else 1.0


def _rules_of_thumb(asked: Setting, setting: Setting) -> dict[str, float]:
    """Scale by bytes per element and by the share of a block that tensor parallel splits.

    Of 16 tensors of a GPT block 4 stay whole under tensor parallel, 2 under DTensor's sequence parallel, none under
    Megatron's (Korthikanti et al., arXiv:2205.05198, without dropout).
    """
    width = _width(asked) / _width(setting)
    block = _block_share(asked) / _block_share(setting)
    split = setting.tensor / asked.tensor
    stream = 1.0 if not asked.sequence_parallel else split
    return {
        "layer": width * block,
        "outside": width * stream,
        "logits": width * split,
        "inputs": 1.0,
        "casts": split if asked.autocast else 0.0,
        "boundary": width * stream,
        "loss_forward": width * split,
        "loss_backward": width * split,
        "block_forward": width * split,
        "block_backward": width * split,
    }


def _width(setting: Setting) -> int:
    return DTYPE_BYTES.get(setting.autocast or setting.parameters, 4)


def _block_share(setting: Setting) -> float:
    whole = {"": 4, "dtensor": 2, "megatron": 0}.get(setting.sequence_parallel, 4) if setting.tensor > 1 else 0
    return (whole + (16 - whole) / setting.tensor) / 16
