"""The agent that lives in every rank of a training job.

``from ranktop.agent import attach; attach(model, optimizer)`` starts one in this process;
``torchrun ... -m ranktop.agent train.py`` starts one without a change to the script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ranktop.agent import progress as _progress

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ranktop.agent.annotating import Annotation

__all__ = ["annotate", "attach", "detach", "report"]


def attach(model: nn.Module | None = None, *optimizers: Optimizer) -> None:
    """Start an agent in this process and have it follow ``model`` and its ``optimizers``.

    Call it after the model is wrapped (DDP, FSDP, DeepSpeed's engine) and before the first step. Never raises: when
    the agent cannot start, one line says why on standard error and training goes on without it.
    """
    from ranktop.agent.attaching import attach_to

    attach_to(model, optimizers)


def detach() -> None:
    """Stop the agent of this process and take every hook away; nothing happens when there is none."""
    from ranktop.agent import attaching

    attaching.detach()


def report(
    *,
    step: Any = None,
    total_steps: Any = None,
    epoch: Any = None,
    loss: Any = None,
    learning_rate: Any = None,
    gradient_norm: Any = None,
    tokens: Any = None,
    **values: Any,
) -> None:
    """Tell how the training goes, from anywhere in its loop, as often as you like.

    Numbers of Python or NumPy, or tensors of one number. A tensor on a GPU is never waited for: it is copied behind
    what the GPU is doing, and read once it has arrived. ``step`` counts optimizer steps, as the script does;
    ``tokens`` are those that this rank has trained on since it last told; ``values`` are up to 8 others by name
    (``eval_loss=...``). Never raises, and does nothing while no agent runs. What is no number costs one line.
    """
    reports = _progress.current
    if reports is None or _progress.compiling():
        return
    told = {"epoch": epoch, "loss": loss, "learning_rate": learning_rate, "gradient_norm": gradient_norm}
    if values:
        told.update(values)
    reports.tell("script", step, total_steps, told, tokens)


def annotate(what: str) -> Annotation:
    """Name what the training thread does: ``with annotate("validation"): ...``, or ``@annotate("save")``.

    ``validation`` (``evaluation``) and ``save`` (``checkpoint``) are known words: no rank that is in them is taken for
    one that hangs or is slow, and their time belongs to no step. Any other word, up to 32 characters, is shown. May be
    nested; does nothing while no agent runs.
    """
    from ranktop.agent.annotating import Annotation

    return Annotation(what)
