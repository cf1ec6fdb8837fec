"""What a script or its trainer tells of how the training goes, as it crosses the wire."""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_NAMES = 64
"""Names that one message may tell values of: more than any agent tells, so that a made-up one cannot stall a screen."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Few = msgspec.Meta(max_length=MOST_NAMES)


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the script or its trainer has told of how the training goes; what it never told is None.

    A message carries no NaN and no infinity: where the last value told is one, the field is None and
    ``not_finite`` says which it was. What is None or empty is left out of a message: most scripts tell a few of these.
    """

    step: int | None = None
    """The trainer's own count of optimizer steps; a resumed run does not begin at 0, other than ``Sample.step``."""
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    """Of this rank, from the tokens that it told and the time between them."""
    values: Annotated[dict[_Name, float], _Few] = {}
    """Whatever else was told by name, e.g. ``eval_loss``; at most 8."""
    age: float = 0.0
    """Seconds from the last word of any kind to the sample."""
    source: str = ""
    """Who told it: ``script``, ``transformers Trainer``, ``lightning``."""
    steps: Annotated[dict[_Name, int], _Few] = {}
    """Field or name in ``values`` -> the trainer's step that it was told at, where that is another than ``step``."""
    ages: Annotated[dict[_Name, float], _Few] = {}
    """Field or name in ``values`` -> seconds from when it was told to the sample, where older than ``age``."""
    counted: int | None = None
    """Steps that this rank had finished by its own count (``Sample.step``) when the loss was told."""
    every: float | None = None
    """Seconds that usually pass from one loss told to the next; None before the third."""
    not_finite: Annotated[dict[_Name, _Name], _Few] = {}
    """Field or name -> ``nan``, ``inf`` or ``-inf``: what it is instead of a number."""
    bad_losses: int = 0
    """Losses told since the start that were no finite number."""
    bad_since: int | None = None
    """Step (the trainer's, else the own count) of the first loss of those that came without a finite one between, the
    last such series; None where there was none, or no step was known."""


def loss_step(progress: Progress) -> int | None:
    """Return the step that the loss belongs to: the trainer's count, else the rank's own; None without a loss."""
    if progress.loss is None and "loss" not in progress.not_finite:
        return None
    step = progress.steps.get("loss", progress.step)
    return step if step is not None else progress.counted
