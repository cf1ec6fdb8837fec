"""What trainers (transformers' Trainer, Accelerate, Lightning) say of a job, beside what is seen of its model.

A trainer is met when the script imports it; no import is forced, and a script that has none of them pays nothing. What
one says publicly goes to ``tell`` and from there into the plan (``weigh``): it stands where nothing was seen, and what
was measured (shapes, dtypes, forwards a step) stands against it, with a note on the card.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from ranktop.agent.imports import when_imported
from ranktop.agent.runner import one_line
from ranktop.agent.say import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a trainer says publicly of the job; None = it does not tell."""

    trainer: str
    """Its name and version, e.g. ``transformers 5.24.0 Trainer``; goes on the card."""
    micro_batch: int | None = None
    """Samples per forward and rank."""
    accumulation: int | None = None
    """Forwards per optimizer step."""
    sequence_length: int | None = None
    """The longest that it feeds, in tokens; what a forward gets may be shorter."""
    precision: str | None = None
    """Dtype name that it computes in: ``float32``, ``bfloat16``, ``float16``."""
    checkpointing: str | None = None
    """Activation checkpointing: ``none`` or ``full``."""
    max_steps: int | None = None
    """Optimizer steps of the whole run."""
    rank: int = 0
    """Of two that speak of the same job the higher one gives the name: a Trainer over Accelerate over an engine."""


MEETS: Final = {
    "transformers.trainer": "ranktop.agent.trainers.huggingface",
}
"""Module of a trainer -> module of ours that has a function ``met()``, called at the end of the import of the former.

It runs in the importing thread, within the script's own import; what it raises costs one line, never the import.
"""

READS: Final = {
    "accelerate.state": "ranktop.agent.trainers.accelerate",
    "deepspeed.runtime.engine": "ranktop.agent.trainers.deepspeed",
}
"""Module of a trainer that keeps its state where it can be read -> module of ours with ``read() -> Told | None``, asked
at every survey, in the training thread, once the former has been imported."""

MOST_FAILURES: Final = 3
"""Times that a reader may fail; then it is asked no more."""

_awaited: set[str] = set()
_readers: list[Callable[[], Told | None]] = []
_failures: dict[Callable[[], Told | None], int] = {}
_told: dict[str, Told] = {}


def look_out() -> None:
    """Meet each trainer when the script imports it; at once where that was before. Twice is once."""
    for name, ours in (*MEETS.items(), *READS.items()):
        if name not in _awaited:
            _awaited.add(name)
            when_imported(name, lambda name=name, ours=ours: _meet(name, ours))  # type: ignore[misc]


def _meet(name: str, ours: str) -> None:
    module: Any = importlib.import_module(ours)
    if name in READS:
        _readers.append(module.read)
    else:
        module.met()


def titled(package: str, kind: str = "") -> str:
    """Return how a trainer is named on a card: its package, that one's version, and which of its classes it is."""
    version = str(getattr(sys.modules.get(package), "__version__", "")).split("+", 1)[0]
    return " ".join(filter(None, (package, version, kind)))


def positive(value: object) -> int | None:
    """Return a setting that counts something; None for what counts nothing, or is no number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def tell(told: Told) -> None:
    """Take what a trainer says into account at the next survey; what it said before is forgotten."""
    _told[told.trainer] = told


def forget(trainer: str) -> None:
    """Take back what a trainer has told: it has ended, and the script may go on without it."""
    _told.pop(trainer, None)


def told() -> Told | None:
    """Return what all trainers of the job say together: the higher one's word first, the name its own."""
    said = list(_told.values())
    for read in list(_readers):
        try:
            found = read()
        except Exception as error:  # of a version that keeps it elsewhere: what is seen of the model goes on
            _failures[read] = _failures.get(read, 0) + 1
            if _failures[read] < MOST_FAILURES:  # it may be half built yet
                continue
            _readers.remove(read)
            say(f"what {read.__module__.rsplit('.', 1)[-1]} says is not read: {one_line(error)}")
            continue
        if found is not None:
            said.append(found)
    if not said:
        return None
    said.sort(key=lambda each: each.rank)
    whole = said[0]
    for each in said[1:]:
        known = {f.name: value for f in fields(each) if (value := getattr(each, f.name)) is not None}
        whole = replace(whole, **known)
    return whole
