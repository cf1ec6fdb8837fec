"""The words and the identity every other part uses: categories, moments, bytes of one device."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

STATES: Final = ("parameters", "gradients", "optimizer")
"""Categories that a model and its optimizer hold by themselves, whatever the batch."""

CATEGORIES: Final = (*STATES, "activations", "buffers", "cache", "runtime", "other", "free")
"""Parts of a device's memory, in the order in which a bar stacks them. They add up to its total."""

MOMENTS: Final = ("step_start", "forward_end", "backward_start", "backward_end", "step_end")
"""Points of a step at which the host reads the allocator's counters, in their order."""

ALL_MOMENTS: Final = (
    "load", "step_start", "forward", "forward_end", "backward_start", "backward", "backward_end", "optimizer_step",
    "step_end", "checkpoint_save",
)  # fmt: skip
"""Moments, and the stretches between them in which memory peaks (while the model is built, inside forward, inside
backward, inside the optimizer's step, while a checkpoint is written), in the order of time."""

STEP: Final = tuple(moment for moment in ALL_MOMENTS if moment not in ("load", "checkpoint_save"))
"""Moments and stretches of a step: loading and saving stand beside it."""

STATES_AT: Final = {
    "load": "step_start", "forward": "forward_end", "backward": "backward_start", "optimizer_step": "backward_end",
    "checkpoint_save": "step_start",
}  # fmt: skip
"""Stretch -> the moment whose states it has, before what it changes itself."""

BUDGETED: Final = (*STATES, "activations", "buffers", "runtime")
"""Categories that a plan can know before the job runs; their sum is a rank's expected total."""

NOT_BUDGETED: Final = "not budgeted yet"
"""Reason given for a category that the budget does not cover."""

DTYPE_BYTES: Final = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes per element by dtype name (``str(torch.float32)`` without its ``torch.``)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device by category; ``None`` means unknown, never zero.

    When every category is known, they add up to ``total``.
    """

    parameters: int | None = None
    gradients: int | None = None
    optimizer: int | None = None
    activations: int | None = None
    buffers: int | None = None
    cache: int | None = None
    runtime: int | None = None
    other: int | None = None
    free: int | None = None
    total: int | None = None

    def by_category(self) -> dict[str, int | None]:
        """Return the categories in their order, without the total."""
        return {name: getattr(self, name) for name in CATEGORIES}

    def as_dict(self) -> dict[str, int | None]:
        """Return every field by name, the total last."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def used(self) -> int | None:
        """Bytes of the device that are in use by anyone (total - free), or None when either is unknown."""
        if self.total is None or self.free is None:
            return None
        return self.total - self.free


@dataclass(frozen=True, slots=True)
class Part:
    """One named piece of an amount, for the screen that explains it."""

    name: str
    """In words, e.g. ``logits in fp32`` or ``all-gather buffer of the next unit``."""
    bytes: int
    seen: bool = True
    """False when the measured side cannot tell it from temporaries: live, it counts as activations."""


@dataclass(frozen=True, slots=True)
class Amount:
    """One expected number with the rule that gave it."""

    bytes: int | None
    """Expected bytes, or None when no rule covers this case; ``rule`` then says why."""
    rule: str = ""
    """The rule by name and source, e.g. ``FSDP2: dim-0 chunks, padded``; or the reason for None."""
    slack: int = 0
    """How many bytes a right measurement may differ by (padding whose place is not known); 0 = exact."""
    within: float | None = 0.0
    """Relative error of the rule as the tests measured it (0.05 = within 5 %); 0 = exact, None = a guess."""
    parts: tuple[Part, ...] = ()
    """What the bytes are made of, where that is worth telling; they add up to ``bytes``."""

    @property
    def tolerance(self) -> int | None:
        """Bytes that a right measurement may differ by; None for a guess and for what is not known."""
        if self.bytes is None or self.within is None:
            return None
        return self.slack + int(self.within * self.bytes)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one rank should hold, moment by moment."""

    moments: dict[str, dict[str, Amount]] = field(default_factory=dict)
    """moment -> category -> amount, for every moment of MOMENTS and every category that is budgeted."""
    host: Amount = field(default_factory=lambda: Amount(0, "nothing is offloaded"))
    """What this rank keeps in the host's memory because of offloading."""
    nvme: Amount = field(default_factory=lambda: Amount(0, "nothing is offloaded"))
    """What this rank keeps on disk because of offloading."""

    def at(self, moment: str) -> dict[str, Amount]:
        """Return the amounts of one moment (empty when the moment is unknown)."""
        return self.moments.get(moment, {})

    def total(self, moment: str) -> int | None:
        """Return the bytes of all budgeted categories at a moment, None when one of them is not known."""
        size, known = 0, False
        for category, amount in self.moments.get(moment, {}).items():
            if category in BUDGETED:
                if amount.bytes is None:
                    return None
                size, known = size + amount.bytes, True
        return size if known else None

    def peak(self) -> str | None:
        """Return the moment of a step at which the total is largest, the earliest of equals.

        None when the total of any moment is unknown: it might be the largest. Loading and saving are not part of a
        step; they are asked for by name.
        """
        best: str | None = None
        most = -1
        for moment in STEP:
            if not self.at(moment):
                continue
            size = self.total(moment)
            if size is None:
                return None
            if size > most:
                best, most = moment, size
        return best
