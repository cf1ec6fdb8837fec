"""Optimizers by the names that people and trainers use for them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from ranktop.budget.model import BadInput
from ranktop.budget.plan import OptimizerPlan

_NAMES: Final[dict[str, tuple[str, dict[str, bool | float | str]]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adamw_fused": ("AdamW", {"fused": True}),
    "amsgrad": ("AdamW", {"amsgrad": True}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "adamax": ("Adamax", {}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {}),
    "rmsprop": ("RMSprop", {}),
    "asgd": ("ASGD", {}),
    "rprop": ("Rprop", {}),
    "adafactor": ("Adafactor", {}),
    "adafactor_hf": ("Adafactor", {"package": "transformers"}),
    "adam8bit": ("Adam8bit", {"package": "bitsandbytes"}),
    "adamw8bit": ("AdamW8bit", {"package": "bitsandbytes"}),
    "paged_adamw8bit": ("PagedAdamW8bit", {"package": "bitsandbytes"}),
    "paged_adamw": ("PagedAdamW", {"package": "bitsandbytes"}),
    "adamw8bit_torchao": ("AdamW8bit", {"package": "torchao"}),
    "adamw4bit": ("AdamW4bit", {"package": "torchao"}),
    "adamw_fp8": ("AdamWFp8", {"package": "torchao"}),
    "lion": ("Lion", {"package": "lion_pytorch"}),
    "lion8bit": ("Lion8bit", {"package": "bitsandbytes"}),
    "paged_lion8bit": ("PagedLion8bit", {"package": "bitsandbytes"}),
    "muon": ("Muon", {"rest": "AdamW"}),
    "none": ("", {}),
}

_ALIASES: Final = {
    "sgdm": "momentum", "sgd_momentum": "momentum", "adamw_torch": "adamw", "adamw_hf": "adamw",
    "adamw_torch_fused": "adamw_fused", "adamw_fused_torch": "adamw_fused", "fused_adamw": "adamw_fused",
    "adam_amsgrad": "amsgrad", "adamw_amsgrad": "amsgrad", "adam_8bit": "adam8bit", "adamw_8bit": "adamw8bit",
    "adamw_bnb_8bit": "adamw8bit", "paged_adamw_8bit": "paged_adamw8bit", "paged_adamw_32bit": "paged_adamw",
    "ao_adamw_8bit": "adamw8bit_torchao", "adamw_torch_8bit": "adamw8bit_torchao", "adamw_4bit": "adamw4bit",
    "adamw_torch_4bit": "adamw4bit", "ao_adamw_4bit": "adamw4bit", "adamwfp8": "adamw_fp8", "lion_8bit": "lion8bit",
    "lion_32bit": "lion", "paged_lion_8bit": "paged_lion8bit",
}  # fmt: skip
"""Spellings of trainers (Hugging Face's ``optim``) -> ours."""


def names() -> tuple[str, ...]:
    """Return the names that ``by_name`` knows, without the aliases."""
    return tuple(_NAMES)


def by_name(name: str, **options: bool | float | str) -> OptimizerPlan:
    """Return the plan of an optimizer as users call it; ``options`` are those of its class.

    Case, ``-`` and ``_`` make no difference. Raises BadInput with the closest names.
    """
    wanted = name.strip().lower().replace("-", "_").replace(" ", "_")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in _NAMES:
        wanted = {known.replace("_", ""): known for known in (*_NAMES, *_ALIASES)}.get(wanted.replace("_", ""), wanted)
        wanted = _ALIASES.get(wanted, wanted)
    if wanted not in _NAMES:
        close = get_close_matches(wanted, [*_NAMES, *_ALIASES], 3, 0.5)
        there = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(_NAMES)}"
        raise BadInput(f"no optimizer {name!r}; {there}")
    cls, own = _NAMES[wanted]
    return OptimizerPlan(name=cls, count=int(bool(cls)), options={**own, **options})
