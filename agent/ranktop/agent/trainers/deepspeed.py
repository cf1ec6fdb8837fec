"""A DeepSpeed engine: what it says publicly of the job and of its own steps. The loss is the script's, not its own.

Asked in the training thread at the beginning of a step that is followed, a few times a second at most.
"""

from __future__ import annotations

from typing import Any, Final

from ranktop.agent import progress
from ranktop.agent.trainers import Told, titled
from ranktop.probes import engines

SOURCE: Final = "deepspeed engine"

RANK: Final = -1
"""Under all that is made of it: Accelerate, a Trainer."""


def read() -> Told | None:
    """Return what the engine says that is watched, and tell its progress; None while there is none."""
    from ranktop.agent.attaching import followed

    root = followed()
    engine: Any = engines.find(root) if root is not None else None
    if engine is None:
        return None
    _tell(engine)
    return Told(
        trainer=titled("deepspeed", "engine"),
        micro_batch=int(engine.train_micro_batch_size_per_gpu()),
        accumulation=int(engine.gradient_accumulation_steps()),
        precision="bfloat16" if engine.bfloat16_enabled() else "float16" if engine.fp16_enabled() else None,
        rank=RANK,
    )


def _tell(engine: Any) -> None:
    """Tell step, learning rate and gradient norm, unless the script or a trainer over the engine counts the steps."""
    reports, step = progress.current, int(engine.global_steps)
    # A scheduler that has not begun logs a warning when it is asked.
    if reports is None or step <= 0 or reports.stepper not in ("", SOURCE):
        return
    rates = engine.get_lr()
    scale = getattr(engine.optimizer, "cur_scale", None) if engine.fp16_enabled() else None
    reports.tell(
        reports.source or SOURCE,
        step,
        None,
        {"learning_rate": rates[0] if rates else None, "gradient_norm": _norm(engine), "loss_scale": scale},
        None,
    )
    reports.stepper = SOURCE


def _norm(engine: Any) -> Any:
    """Return the norm of the last step's gradients as DeepSpeed keeps it; None where it was not asked to clip them."""
    norm = engine.get_global_grad_norm()
    return None if isinstance(norm, (int, float)) and norm < 0 else norm
