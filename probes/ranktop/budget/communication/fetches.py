"""What ZeRO-3 gathers in one micro-batch: its prefetcher and its reuse distance, played through once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ranktop.budget.inventory import Kind


class Parameter(NamedTuple):
    """One parameter as it is gathered."""

    numel: int
    bytes: int
    """Gathered, padding included."""
    persistent: bool


@dataclass(slots=True)
class Fetches:
    """Gathered bytes and calls of one micro-batch by pass; a call gathers what is fetched at once."""

    forward: int = 0
    backward: int = 0
    forward_calls: int = 0
    backward_calls: int = 0


def modules_of(kinds: Sequence[Kind]) -> tuple[tuple[int, ...], ...]:
    """Return which parameters lie in one module as far as shapes tell: weight and bias, scale and shift."""
    found: list[list[int]] = []
    for index, kind in enumerate(kinds):
        last = kinds[found[-1][0]].shape if found and len(found[-1]) == 1 else ()
        if last and len(kind.shape) == 1 and kind.shape[0] == last[0]:
            found[-1].append(index)
        else:
            found.append([index])
    return tuple(map(tuple, found))


@lru_cache(maxsize=64)
def fetches(
    parameters: tuple[Parameter, ...],
    modules: tuple[tuple[int, ...], ...],
    *,
    prefetch: int,
    max_live: int,
    reuse: int,
    tied: bool = False,
) -> Fetches:
    """Follow the second and later micro-batches, for which DeepSpeed knows the order of the modules.

    ``modules``: indexes of their parameters in the order of forward; ``tied``: the first module's parameters are used
    again by the output head. A parameter is gathered again for backward unless its next use is within ``reuse``
    elements, or the prefetcher has already passed that use. Modules around other modules, which give the prefetcher
    more turns, are left out but for the root: that shows where little is prefetched and nothing kept for reuse, not at
    DeepSpeed's defaults (no difference from 125M to 70B parameters). Source:
    deepspeed/runtime/zero/partitioned_param_coordinator.py ``fetch_sub_module``, ``__params_to_release``.
    """
    once = modules + (modules[:1] if tied else ())
    # The root comes first in both passes: it holds nothing itself, but the prefetcher runs at every module.
    uses = ((), *once, (), *once[::-1])
    ends, again, before = _tables(parameters, uses)
    queue = [(one, at) for at, module in enumerate(uses) for one in module]
    found = Fetches()
    numels = [one.numel for one in parameters]
    here = [one.persistent for one in parameters]
    kept = tuple(here)
    fetched_for = [-1] * len(parameters)
    live = head = 0
    for at, module in enumerate(uses):
        backward = at > len(once)
        wanted = [one for one in module if not here[one]]
        live += _gather(found, parameters, wanted, here, backward) if wanted else 0
        for one in module:
            if fetched_for[one] < at:
                fetched_for[one] = at
        head = max(head, ends[at])
        room = min(max_live - live, prefetch)
        ahead: dict[int, None] = {}
        while head < len(queue) and room > 0:
            one, use = queue[head]
            head += 1
            if fetched_for[one] < use:
                fetched_for[one] = use
            if not here[one] and one not in ahead:
                ahead[one] = None
                room -= numels[one]
        live += _gather(found, parameters, ahead, here, backward) if ahead else 0
        near = again[at] >= 0 and before[again[at]] - before[at + 1] < reuse
        for one in module:
            if not near and not kept[one] and fetched_for[one] <= at + 1:
                here[one] = False
                live -= numels[one]
    return found


def _tables(
    parameters: tuple[Parameter, ...], uses: tuple[tuple[int, ...], ...]
) -> tuple[list[int], list[int], list[int]]:
    """Return by use: where its entries end in the queue, the module's next use (-1: none), elements before it."""
    ends: list[int] = []
    before = [0]
    for module in uses:
        ends.append((ends[-1] if ends else 0) + len(module))
        before.append(before[-1] + sum(parameters[one].numel for one in module))
    again = [-1] * len(uses)
    later: dict[int, int] = {}
    for at in range(len(uses) - 1, -1, -1):
        for one in uses[at][:1]:
            again[at] = later.get(one, -1)
            later[one] = at
    return ends, again, before


def _gather(
    found: Fetches, parameters: tuple[Parameter, ...], wanted: Collection[int], here: list[bool], backward: bool
) -> int:
    """Count one call and return its elements."""
    size = numel = 0
    for one in wanted:
        here[one] = True
        size += parameters[one].bytes
        numel += parameters[one].numel
    if backward:
        found.backward += size
        found.backward_calls += 1
    else:
        found.forward += size
        found.forward_calls += 1
    return numel
