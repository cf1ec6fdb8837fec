"""Hugging Face Accelerate, read from its public shared states; a script that uses it is not touched."""

from __future__ import annotations

import sys
from typing import Any, Final

from ranktop.agent.trainers import Told, titled

_DTYPES: Final = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""``Accelerator.mixed_precision`` -> dtype name; of fp8 only the words are known."""


def read() -> Told | None:
    """Return what the job's Accelerator says; None while there is none, or of another version."""
    module: Any = sys.modules.get("accelerate.state")
    state = getattr(getattr(module, "AcceleratorState", None), "_shared_state", None)
    if not state:
        return None
    return Told(
        trainer=titled("accelerate"),
        accumulation=_accumulation(module),
        precision=_DTYPES.get(str(state.get("_mixed_precision"))),
        rank=0,
    )


def _accumulation(module: Any) -> int | None:
    """Return how many backwards it lets pass per step; None where it is not asked to count them."""
    kind: Any = getattr(module, "GradientState", None)
    if not getattr(kind, "_shared_state", None):
        return None
    steps = kind().num_steps
    return steps if isinstance(steps, int) and steps > 1 else None
