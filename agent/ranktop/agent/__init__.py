"""The agent that lives in every rank of a training job.

``from ranktop.agent import attach; attach(model, optimizer)`` starts one in this process;
``torchrun ... -m ranktop.agent train.py`` starts one without a change to the script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["attach", "detach"]


def attach(model: nn.Module | None = None, *optimizers: Optimizer) -> None:
    """Start an agent in this process and have it follow ``model`` and its ``optimizers``.

    Call it after the model is wrapped (DDP, FSDP, DeepSpeed's engine) and before the first step. Never raises: when
    the agent cannot start, one line says why on standard error and training goes on without it.
    """
    from ranktop.agent.attaching import attach_to

    attach_to(model, optimizers)


def detach() -> None:
    """Stop the agent of this process and take every hook away; nothing happens when there is none."""
    from ranktop.agent.attaching import stop

    stop()
