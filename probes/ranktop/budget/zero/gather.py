"""ZeRO-3: which parameters are whole at each module of forward and backward, as DeepSpeed fetches and releases them.

Source: DeepSpeed 0.19.8, ``fetch_sub_module``, ``release_sub_module`` and ``__params_to_release`` in
runtime/zero/partitioned_param_coordinator.py; ``_all_gather_dtype``, ``_all_gather_sequential`` and
``AllGatherCoalescedHandle.wait`` in partition_parameters.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from ranktop.budget.zero.layout import share

NEVER = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds the gathered elements; the knobs of ``zero_optimization``, in elements."""

    ranks: int
    prefetch: int
    live: int
    reuse: int
    traced: bool = True
    """False in the first pass, while DeepSpeed records the order: nothing is prefetched, everything is released."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Elements that are whole while one module after another runs forward and then backward."""

    live: tuple[int, ...]
    """Gathered parameters that are not persistent, at the highest moment of each position: forward, then backward."""
    flat: tuple[int, ...]
    """Buffers of coalesced gathers beside them: a prefetched parameter is copied out of its buffer, which lives on
    until the last parameter of the same gather has been used."""
    running: tuple[int, ...]
    """Both while the module runs, when what it had to wait for has been copied out."""
    between: int = 0
    """What of ``live`` stays between forward and backward."""
    between_flat: int = 0


@lru_cache(maxsize=64)
def gathered(modules: tuple[tuple[int, ...], ...], numels: tuple[int, ...], limits: Limits) -> Gathered:
    """Follow the coordinator over one forward and one backward.

    ``modules`` are indices of the parameters that are not persistent, by module in the order of use; ``numels`` the
    elements of all parameters.
    """
    return _Coordinator(modules, numels, limits).run()


class _Coordinator:
    """The state of ``PartitionedParameterCoordinator`` in elements."""

    def __init__(self, modules: tuple[tuple[int, ...], ...], numels: tuple[int, ...], limits: Limits) -> None:
        # The root has no parameters of its own, but its hook is the first to look ahead.
        self.trace = ((), *modules, *reversed(modules))
        self.numels, self.limits = numels, limits
        self.queue: deque[tuple[int, int]] = deque()
        if limits.traced:
            self.queue.extend((p, step) for step, module in enumerate(self.trace) for p in module)
        self.fetched_for = dict.fromkeys((p for module in modules for p in module), NEVER)
        self.available: set[int] = set()
        """Fetched or in flight."""
        self.buffers: dict[int, list[int]] = {}
        """Coalesced gathers: number -> bytes and parameters that have yet to be used."""
        self.buffer_of: dict[int, int] = {}
        self.count = 0
        self.live = self.flat = self.made = 0
        """``live`` counts copies that exist; parameters in a coalesced gather exist once one of them was used."""
        self.next_use = self._next_uses()

    def _next_uses(self) -> list[dict[int, int]]:
        """For each step and parameter of its module: elements between it and the next use; none without one."""
        found: list[dict[int, int]] = [{} for _ in self.trace]
        upcoming: dict[int, int] = {}
        before = 0
        sizes = [sum(self.numels[p] for p in module) for module in self.trace]
        starts = []
        for size in sizes:
            starts.append(before)
            before += size
        for step in reversed(range(len(self.trace))):
            for p in self.trace[step]:
                if p in upcoming:
                    found[step][p] = starts[upcoming[p]] - starts[step] - sizes[step]
                upcoming[p] = step
        return found

    def run(self) -> Gathered:
        """Return what is live and what is in flat buffers at each step."""
        live, flat, running = [], [], []
        between = (0, 0)
        for step, module in enumerate(self.trace):
            self._gather([p for p in module if p not in self.available])
            top = self._use(module)
            if self.limits.traced:
                self._prefetch(step, module)
            top = max(top, (self.live + self.flat, self.live, self.flat))
            live.append(top[1])
            flat.append(top[2])
            running.append(self.live + self.flat)
            self._release(step, module)
            if 2 * step + 1 == len(self.trace):
                between = self.live, self.flat
        return Gathered(tuple(live[1:]), tuple(flat[1:]), tuple(running[1:]), *between)

    def _gather(self, needed: list[int]) -> None:
        if not needed:
            return
        self.available.update(needed)
        self.made += sum(self.numels[p] for p in needed)
        if len(needed) == 1:
            self.live += self.numels[needed[0]]
            return
        padded = sum(share(self.numels[p], self.limits.ranks) * self.limits.ranks for p in needed)
        self.flat += padded
        self.count += 1
        self.buffers[self.count] = [padded, len(needed), *needed]
        self.buffer_of.update(dict.fromkeys(needed, self.count))

    def _use(self, module: tuple[int, ...]) -> tuple[int, int, int]:
        """Wait for a module's parameters; return the highest total, with what was live and flat then."""
        top = (self.live + self.flat, self.live, self.flat)
        for p in module:
            number = self.buffer_of.pop(p, 0)
            if not number:
                continue
            buffer = self.buffers[number]
            if len(buffer) > 2:
                self.live += sum(self.numels[q] for q in buffer[2:])
                del buffer[2:]
                top = max(top, (self.live + self.flat, self.live, self.flat))
            buffer[1] -= 1
            if not buffer[1]:
                self.flat -= buffer[0]
                del self.buffers[number]
        return top

    def _prefetch(self, step: int, module: tuple[int, ...]) -> None:
        for _ in range(sum(self.fetched_for[p] < step for p in module)):
            if self.queue:
                p, at = self.queue.popleft()
                self.fetched_for[p] = at
        room = min(self.limits.live - self.made, self.limits.prefetch)
        ahead: list[int] = []
        elements = 0
        while self.queue and elements < room:
            p, at = self.queue.popleft()
            self.fetched_for[p] = max(self.fetched_for[p], at)
            if p not in self.available and p not in ahead:
                ahead.append(p)
                elements += self.numels[p]
        self._gather(ahead)

    def _release(self, step: int, module: tuple[int, ...]) -> None:
        for p in module:
            kept = self.limits.traced and (
                self.fetched_for[p] > step + 1 or self.next_use[step].get(p, self.limits.reuse) < self.limits.reuse
            )
            if not kept:
                self.available.discard(p)
                self.live -= self.numels[p]
                self.made -= self.numels[p]
