"""How a simulated training goes: the loss of each step, the learning rate's schedule, the size of the gradients."""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import Final

from ranktop.wire.progress import Progress

TOTAL_STEPS: Final = 20_000
WARM_UP: Final = 200
PEAK_RATE: Final = 3e-4
FINAL_SHARE: Final = 0.1
"""Of the peak, at the end of the cosine."""

SOURCE: Final = "script"


@lru_cache(maxsize=256)
def loss_at(step: int, vocabulary: int, seed: int) -> float:
    """Return the loss of a step, averaged over the ranks: from that of a guess down along a power law, with noise."""
    first, last = math.log(vocabulary), 2.05
    smooth: float = last + (first - last) * (1 + step / 60) ** -0.55
    return smooth + 0.035 * random.Random(f"loss {seed} {step}").gauss(0.0, 1.0)


def rate_at(step: int) -> float:
    """Return the learning rate of a step: a linear warm-up, then a cosine."""
    if step < WARM_UP:
        return PEAK_RATE * step / WARM_UP
    done = min(1.0, (step - WARM_UP) / (TOTAL_STEPS - WARM_UP))
    return PEAK_RATE * (FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * done)))


def progress_at(
    step: int, age: float, seconds: float | None, tokens: int, vocabulary: int, seed: int, nan_since: int | None = None
) -> Progress | None:
    """Return what the script of a rank has told after ``step`` steps; ``seconds``: of a step."""
    if step < 1:
        return None
    bad = nan_since is not None and step >= nan_since
    norm = 0.6 + 2.5 * math.exp(-step / 80)
    return Progress(
        step=step,
        total_steps=TOTAL_STEPS,
        loss=None if bad else loss_at(step, vocabulary, seed),
        learning_rate=rate_at(step),
        gradient_norm=None if bad else norm,
        tokens_per_second=tokens / seconds if seconds else None,
        age=age,
        source=SOURCE,
        counted=step,
        every=seconds,
        not_finite={"loss": "nan", "gradient_norm": "nan"} if bad else {},
        bad_losses=step - nan_since + 1 if bad and nan_since is not None else 0,
        bad_since=nan_since if bad else None,
    )
