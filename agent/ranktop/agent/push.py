"""What this rank's agent knows, as plain numbers for the script's own writer: a W&B run, a TensorBoard SummaryWriter.

    from ranktop.agent.push import Pusher
    pusher = Pusher(writer)          # or Pusher(True): the W&B run that is active
    ...
    pusher.push(step)                # wherever the script logs

Nothing here waits for a device, a hub or a network, and nothing raises: a writer that fails costs one line of log.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ranktop.agent.runner import one_line
from ranktop.agent.say import say

if TYPE_CHECKING:
    from ranktop.budget.inventory import Inventory
    from ranktop.budget.plan import Plan
    from ranktop.budget.terms import Budget
    from ranktop.wire.schema import Card, Sample, Table

OLD_INTERVALS: Final = 3
"""A value older than so many of the agent's intervals is not pushed."""

MOST_FAILURES: Final = 3
"""Failures of a writer after which it is left alone."""

PREFIX: Final = "ranktop/"

_DEVICE: Final = (("utilization", "utilization"), ("power", "power"), ("temperature", "temperature"))
"""Last part of the name -> field of the device's reading."""

_budgets: dict[tuple[bool, str | None], tuple[Inventory, Plan, str, Budget]] = {}
"""(first step, checkpointing) -> the newest budget and what it was computed from."""


def facts() -> dict[str, float]:
    """Return what this rank's agent last saw, by name (``docs/push.md``); empty without an agent.

    Bytes, seconds, percent, watts, degrees Celsius. What is not known, or older than three of the agent's intervals,
    is left out. A microsecond or so a value; a new model or plan costs about 10 ms once, for its budget. Never raises.
    """
    try:
        from ranktop.agent.attaching import said

        known = said()
        if known is None:
            return {}
        card, sample, made = known
        age = time.monotonic() - made
        if age > OLD_INTERVALS * max(sample.interval, 0.1):
            return {}
        return {PREFIX + name: float(value) for name, value in _facts(card, sample, age) if math.isfinite(value)}
    except Exception as error:
        _once(f"nothing is pushed of this rank: {one_line(error)}")
        return {}


def _facts(card: Card, sample: Sample, age: float) -> Iterator[tuple[str, float]]:
    yield from _memory(card, sample)
    yield "step/count", sample.step
    if sample.steps:
        last = sample.steps[-1]
        for name in ("seconds", "data", "forward", "backward", "optimizer"):
            value = getattr(last, name)
            if value is not None:
                yield f"step/{name}", value
    device = sample.device
    for name, field in _DEVICE:
        value = getattr(device, field)
        if value is not None and age + device.ages.get(field, device.age) <= OLD_INTERVALS * max(sample.interval, 0.1):
            yield f"device/{name}", value
    yield "agent/cpu_seconds", sample.cost.cpu_s


def _memory(card: Card, sample: Sample) -> Iterator[tuple[str, float]]:
    """Give the bytes at the peak moment of the last step that was read, the expected ones of the same moment beside.

    Before the first such step: as they are now, and nothing is expected.
    """
    from ranktop.budget.live_choice import peak_of
    from ranktop.budget.terms import BUDGETED

    table = sample.table
    peak = None if table is None else peak_of(table.moments)
    memory = sample.now if table is None or peak is None else table.moments[peak]
    for name, value in memory.as_dict().items():
        if value is not None:
            yield f"memory/{name}", value
    if sample.peak_allocated is not None:
        yield "memory/peak_allocated", sample.peak_allocated
    budget = None if table is None or peak is None else _expected(card, table)
    if budget is None or peak is None:
        return
    for name in BUDGETED:
        amount = budget.at(peak).get(name)
        if amount is not None and amount.bytes is not None:
            yield f"memory/expected/{name}", amount.bytes
            if amount.tolerance is not None:
                yield f"memory/tolerance/{name}", amount.tolerance


def _expected(card: Card, table: Table) -> Budget | None:
    """Return the budget that the dashboard shows of this rank; None while its model or plan is unknown."""
    from ranktop.budget.live_choice import by_the_bytes

    inventory, plan = card.inventory, card.plan
    if inventory is None or plan is None:
        return None
    end = table.moments.get("forward_end")
    measured = None if end is None else end.activations
    return by_the_bytes(plan, measured, lambda plan: _remembered(inventory, plan, card.model, table.first))


def _remembered(inventory: Inventory, plan: Plan, model: str, first: bool) -> Budget:
    from ranktop.budget.live_choice import failed, running_budget

    key = first, plan.checkpointing
    known = _budgets.get(key)
    if known is not None and known[:3] == (inventory, plan, model):
        return known[3]
    try:
        budget = running_budget(inventory, plan, model, first_step=first)
    except Exception as error:
        budget = failed(error)
    _budgets[key] = inventory, plan, model, budget
    return budget


class Pusher:
    """Puts :func:`facts` into the script's own writer, as long as it has one.

    To a W&B run they go with ``log(..., commit=False)``: into the row that the script's own next ``log`` completes, so
    that the run's steps count as without. To a SummaryWriter each goes with ``add_scalar``.
    """

    def __init__(self, to: object = True, writer: Callable[[], object | None] | None = None) -> None:
        """``to``: a W&B run or a SummaryWriter; ``"wandb"``: the run that is active in this process;
        ``"tensorboard"``: what ``writer`` gives, asked at each push until it gives one; True: either, or both;
        False: nothing.
        """
        self._to = to
        self._writer = writer
        self._found: object | None = None
        self._failures = 0
        if isinstance(to, str) and to not in ("wandb", "tensorboard"):
            say(f"cannot push to {repr(to)[:60]}: say True, 'wandb', 'tensorboard', or give the writer")
            self._to = False

    def push(self, step: int | None = None) -> None:
        """Push what the agent last saw. ``step``: the script's own count, for TensorBoard's axis. Never raises."""
        if self._to is False or self._failures >= MOST_FAILURES:
            return
        try:
            writers = self._writers()
            found = facts() if writers else {}
            for writer in writers if found else ():
                _write(writer, found, step)
        except Exception as error:
            self._failures += 1
            more = "; it is left alone from here on" if self._failures >= MOST_FAILURES else ""
            if self._failures in (1, MOST_FAILURES):
                say(f"the script's writer took nothing of ranktop's: {one_line(error)}{more}")

    def _writers(self) -> list[object]:
        if not isinstance(self._to, bool | str):
            return [self._to]
        found: list[object] = []
        if self._to in (True, "wandb"):
            # Never imported here: a script that has a run has the module.
            run = getattr(sys.modules.get("wandb"), "run", None)
            found += [run] if run is not None else []
        if self._to in (True, "tensorboard") and self._writer is not None:
            self._found = self._found if self._found is not None else self._writer()
            found += [self._found] if self._found is not None else []
        return found


def _write(writer: Any, found: dict[str, float], step: int | None) -> None:
    scalar = getattr(writer, "add_scalar", None)
    if scalar is None:
        writer.log(found, commit=False)
        return
    for name, value in found.items():
        scalar(name, value, global_step=step)


_told: set[str] = set()


def _once(text: str) -> None:
    if text not in _told and len(_told) < 8:
        _told.add(text)
        say(text)
