"""What ZeRO-3 gathers in one micro-batch: its prefetcher and its reuse distance, played through once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ranktop.budget.inventory import Kind
from ranktop.budget.plan import Zero


@dataclass(frozen=True, slots=True)
class Parameter:
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

    def add(self, size: int, backward: bool) -> None:
        """Count one call."""
        if backward:
            self.backward += size
            self.backward_calls += 1
        else:
            self.forward += size
            self.forward_calls += 1


def modules_of(kinds: Sequence[Kind]) -> list[list[int]]:
    """Return which parameters lie in one module as far as shapes tell: weight and bias, scale and shift."""
    found: list[list[int]] = []
    for index, kind in enumerate(kinds):
        last = kinds[found[-1][0]].shape if found and len(found[-1]) == 1 else ()
        if last and len(kind.shape) == 1 and kind.shape[0] == last[0]:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def fetches(parameters: Sequence[Parameter], modules: list[list[int]], options: Zero, *, tied: bool = False) -> Fetches:
    """Follow the second and later micro-batches, for which DeepSpeed knows the order of the modules.

    ``modules``: indexes of their parameters in the order of forward; ``tied``: the first module's parameters are used
    again by the output head. A parameter is gathered again for backward unless its next use is within
    ``max_reuse_distance`` elements, or the prefetcher has already passed that use. Source:
    deepspeed/runtime/zero/partitioned_param_coordinator.py ``fetch_sub_module``, ``__params_to_release``.
    """
    once = modules + (modules[:1] if tied else [])
    # The root comes first in both passes: it holds nothing itself, but the prefetcher runs at every module.
    return _Play(parameters, [[], *once, [], *once[::-1]], len(once) + 1, options).run()


@dataclass(slots=True)
class _Play:
    parameters: Sequence[Parameter]
    uses: list[list[int]]
    backward_from: int
    options: Zero
    found: Fetches = field(default_factory=Fetches)
    live: int = 0

    def run(self) -> Fetches:
        parameters, options = self.parameters, self.options
        queue = [(one, at) for at, module in enumerate(self.uses) for one in module]
        ends, again, before = self._tables()
        here = [one.persistent for one in parameters]
        fetched_for = [-1] * len(parameters)
        head = 0
        for at, module in enumerate(self.uses):
            backward = at >= self.backward_from
            self._gather([one for one in module if not here[one]], here, backward)
            for one in module:
                fetched_for[one] = max(fetched_for[one], at)
            head = max(head, ends[at])
            room = min(options.max_live_parameters - self.live, options.prefetch_bucket_size)
            ahead: dict[int, None] = {}
            taken = 0
            while head < len(queue) and taken < room:
                one, use = queue[head]
                head += 1
                fetched_for[one] = max(fetched_for[one], use)
                if not here[one] and one not in ahead:
                    ahead[one] = None
                    taken += parameters[one].numel
            self._gather(list(ahead), here, backward)
            near = again[at] >= 0 and before[again[at]] - before[at + 1] < options.max_reuse_distance
            for one in module:
                if not parameters[one].persistent and not near and fetched_for[one] <= at + 1:
                    here[one] = False
                    self.live -= parameters[one].numel
        return self.found

    def _tables(self) -> tuple[list[int], list[int], list[int]]:
        """Return by use: where its entries end in the queue, the module's next use (-1: none), elements before it."""
        ends: list[int] = []
        before = [0]
        for module in self.uses:
            ends.append((ends[-1] if ends else 0) + len(module))
            before.append(before[-1] + sum(self.parameters[one].numel for one in module))
        again = [-1] * len(self.uses)
        later: dict[int, int] = {}
        for at in range(len(self.uses) - 1, -1, -1):
            for one in self.uses[at][:1]:
                again[at] = later.get(one, -1)
                later[one] = at
        return ends, again, before

    def _gather(self, wanted: list[int], here: list[bool], backward: bool) -> None:
        if not wanted:
            return
        self.found.add(sum(self.parameters[one].bytes for one in wanted), backward)
        for one in wanted:
            here[one] = True
            self.live += self.parameters[one].numel
