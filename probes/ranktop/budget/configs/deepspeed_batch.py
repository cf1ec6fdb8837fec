"""DeepSpeed's three batch numbers: ``train_micro_batch_size_per_gpu`` x ``gradient_accumulation_steps`` x GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ranktop.budget.model import BadInput

TRAIN: Final = "train_batch_size"
MICRO: Final = "train_micro_batch_size_per_gpu"
STEPS: Final = "gradient_accumulation_steps"


@dataclass(frozen=True, slots=True)
class Batches:
    """The three numbers; None = nobody says."""

    train: int | None = None
    micro: int | None = None
    steps: int | None = None

    def settled(self, gpus: int, where: str) -> Batches:
        """Return all three, the missing ones inferred as DeepSpeed does (``_set_batch_related_parameters``).

        ``gpus`` are the data-parallel ones. Two are missing at most where micro or train is given; with neither both
        stay None. Raises BadInput for a contradiction: which number is wrong, and what it should be.
        """
        for name, value in ((TRAIN, self.train), (MICRO, self.micro), (STEPS, self.steps)):
            if value is not None and value < 1:
                raise BadInput(f"{where}: {name} must be at least 1, not {value}")
        train, micro, steps = self.train, self.micro, self.steps
        if train is None and micro is None:
            return self
        if train is None:
            steps = steps or 1
            return Batches((micro or 0) * steps * gpus, micro, steps)
        if micro is not None and steps is not None:
            _check(train, micro, steps, gpus, where)
            return self
        if micro is not None:
            return Batches(train, micro, _whole(train, micro, MICRO, gpus, where))
        steps = steps or 1
        return Batches(train, _whole(train, steps, STEPS, gpus, where), steps)


def _gpus(count: int) -> str:
    return f"{count} data-parallel GPU{'s' if count != 1 else ''}"


def _check(train: int, micro: int, steps: int, gpus: int, where: str) -> None:
    if train == micro * steps * gpus:
        return
    product = micro * steps * gpus
    others = []
    if train % (micro * gpus) == 0:
        others.append(f"{STEPS} to {train // (micro * gpus)}")
    if train % (steps * gpus) == 0:
        others.append(f"{MICRO} to {train // (steps * gpus)}")
    instead = f", or {' or '.join(others)}" if others else ""
    raise BadInput(
        f"{where}: {TRAIN} {train} is wrong: {MICRO} {micro} x {STEPS} {steps} x {_gpus(gpus)} = {product}; "
        f"set {TRAIN} to {product}{instead}"
    )


def _whole(train: int, given: int, name: str, gpus: int, where: str) -> int:
    """Return train / (given x gpus), which must be whole."""
    unit = given * gpus
    if train % unit == 0:
        return train // unit
    near = sorted({max(1, train // unit) * unit, -(-train // unit) * unit})
    raise BadInput(
        f"{where}: {TRAIN} {train} is wrong: it must be a multiple of {name} {given} x {_gpus(gpus)} = {unit}; "
        f"set it to {' or '.join(map(str, near))}"
    )
