"""Bytes of a model on its device by category, from unique storages; the parameters as an inventory.

Imports torch: only for training processes.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from ranktop.budget.inventory import Inventory
from ranktop.probes import buckets, engines, optimizer
from ranktop.probes.holders import Gone, Holders, find_holders
from ranktop.probes.parameters import inventory_of
from ranktop.probes.reading import Resident
from ranktop.probes.storages import Ledger
from ranktop.probes.structure import structure_of

WINDOW: Final = 48
"""Modules that one look compares with the last walk; the look goes round all of them."""

WALK_AGAIN_S: Final = 30.0
"""Seconds after which a walk is made anyhow, for changes that no look can see."""

MAX_PATTERNS: Final = 16
"""Sets of existing gradients whose bytes are remembered (frozen parts, experts that were not used)."""


class ModelProbe:
    """Measures one model and its optimizers; holds only weak references to them.

    Every method is for the training thread.
    """

    def __init__(
        self,
        root: nn.Module,
        optimizers: Sequence[Any],
        device: torch.device,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = weakref.ref(root)
        self._optimizers: list[weakref.ref[Any]] = [weakref.ref(o) for o in optimizers]
        self._device = device
        self._clock = clock
        self._dirty = True
        self._walked = False
        self.changed = True
        """Whether the last walk had a reason, or has found something else than the one before; not so where it was made
        because its time had come."""
        self._next_walk = 0.0
        self._at = 0
        self._holders = Holders()
        self._extras: list[tuple[weakref.ref[Any], int, int, bool]] = []
        self._inventory: Inventory | None = None
        self._parameters = self._buffers = self._masters = 0
        self._buckets = buckets.Buckets()
        self._keys: frozenset[int] = frozenset()
        self._patterns: dict[tuple[int, ...], tuple[int, int]] = {}
        self._last: tuple[list[int], tuple[int, int]] = [], (0, 0)
        self._states: tuple[tuple[Any, ...], int] = ((), 0)
        self._engine = engines.EngineProbe(device)
        self._engine_found: tuple[tuple[int, ...], weakref.ref[Any]] | None = None
        """The engine, and the hooks that its model had then."""
        self._resident: Resident | None = None
        """What was told last."""

    @property
    def alive(self) -> bool:
        """False when the model has been garbage collected."""
        return self._root() is not None

    @property
    def root(self) -> nn.Module | None:
        """The model; None once it is gone."""
        return self._root()

    def add_optimizer(self, optimizer: Any) -> None:
        """Take one more optimizer into account (once, however often it is given)."""
        if all(ref() is not optimizer for ref in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
            self._dirty = True

    def optimizers(self) -> list[Any]:
        """Return the optimizers that are alive, each once, without those that another one wraps."""
        return optimizer.distinct(o for ref in self._optimizers if (o := ref()) is not None)

    def refresh(self, force: bool = False) -> bool:
        """Walk all tensors if the layout changed since the last walk or ``force``; True if it walked."""
        root = self._root()
        if root is None:
            return False
        engine = self._engine_of(root)
        if engine is not None:
            self.changed = True
            return self._engine.refresh(engine, force)
        if force or self._dirty or self._layout_changed():
            self._walk(root)
        elif self._clock() >= self._next_walk:
            before, untold = self._found(), self._walked and self.changed
            self._walk(root)
            self.changed = untold or self._found() != before
        walked, self._walked = self._walked, False
        return walked

    def resident(self) -> Resident:
        """Return what is on the device now: cached sizes, and a look at which gradients and states exist."""
        root = self._root()
        if root is None:
            gone = dict.fromkeys(("parameters", "gradients", "optimizer", "buffers"), "the model is gone")
            return Resident(reasons=gone)
        engine = self._engine_of(root)
        if engine is not None:
            return self._engine.resident(engine)
        if self._dirty:
            self._walk(root)
        reasons = self._buckets.reasons
        gradients: int | None = None
        viewed = 0
        for _ in range(2):
            try:
                gradients, viewed = self._gradient_bytes(root)
                break
            except Gone:
                self._walk(root)
        else:
            reasons = {**reasons, "gradients": "the model is being changed"}
        states = self._state_bytes()
        buffers = None if "buffers" in reasons else self._buffers + max(0, self._buckets.bytes - viewed)
        last = self._resident
        if (
            last is None
            or last.gradients != gradients
            or last.optimizer != states
            or last.parameters != self._parameters
            or last.buffers != buffers
            or last.reasons != reasons
        ):
            last = self._resident = Resident(self._parameters, gradients, states, buffers, dict(reasons))
        return last

    def inventory(self) -> Inventory:
        """Return the parameters as of the last walk (listed when first asked for)."""
        root = self._root()
        engine = None if root is None else self._engine_of(root)
        if engine is not None:
            return engines.inventory(engine)
        if self._inventory is None:
            if root is None:
                return Inventory()
            try:
                found = list(zip(self._extra_parameters(), self._extras, strict=True))
            except Gone:
                found, self._dirty = [], True
            extras = [p for p, (*_, master) in found if p is not None and not master]
            self._inventory = inventory_of(structure_of(root), self.optimizers(), self._device, extras)
        return self._inventory

    def gradients_exist(self) -> bool:
        """Return whether any gradient exists now."""
        root = self._root()
        if root is None:
            return False
        engine = self._engine_of(root)
        if engine is not None:
            return engines.gradients_exist(engine)
        if self._dirty:
            self._walk(root)
        try:
            return any(self._present())
        except Gone:
            self._dirty = True
            return False

    def _engine_of(self, root: nn.Module) -> Any | None:
        """Return the engine that is or runs ``root``; searched anew when the root's hooks are others."""
        if "deepspeed" not in sys.modules:
            return None
        known, hooks = self._engine_found, tuple(root._forward_pre_hooks)
        engine = known[1]() if known is not None and known[0] == hooks else None
        if engine is None:
            engine = engines.find(root)
            self._engine_found = None if engine is None else (hooks, weakref.ref(engine))
            if engine is not None:
                self._engine = engines.EngineProbe(self._device)  # another one's layouts say nothing of its bytes
        return engine

    def _found(self) -> tuple[object, ...]:
        return self._parameters, self._buffers, self._states, self._buckets, self._keys, self._holders.layout()

    def _layout_changed(self) -> bool:
        window, self._at = self._holders.window(self._at, WINDOW)
        for holder in window:
            if holder.changed():
                return True
        return self._state_key() != self._states[0]

    def _walk(self, root: nn.Module) -> None:
        optimizers = self.optimizers()
        structure = structure_of(root)
        self._holders = find_holders(structure)
        ledger = Ledger(self._device)
        self._parameters = ledger.total(self._holders.parameters())
        self._inventory = None
        self._walk_extras(optimizers, ledger)
        self._keys = frozenset(ledger.seen)
        self._patterns = {}
        self._last = [], (0, 0)
        ledger.total(self._gradients())
        self._states = (self._state_key(), self._masters + self._count_states(optimizers, ledger))
        self._buffers = ledger.total(structure.buffers())
        self._buckets = buckets.ddp_buckets(structure.modules)
        self._dirty = False
        self._walked = self.changed = True
        self._next_walk = self._clock() + WALK_AGAIN_S

    def _walk_extras(self, optimizers: list[Any], ledger: Ledger) -> None:
        """Find what the optimizers update beside the model: master copies, or another model's parameters."""
        own = list(self._holders.leaves())
        known = {id(parameter) for parameter in own}
        updated = {id(parameter) for each in optimizers for parameter in optimizer.parameters_of(each)}
        half = any(p.requires_grad and p.element_size() <= 2 and id(p) not in updated for p in own)
        self._extras, self._masters = [], 0
        for each in optimizers:
            for g, group in enumerate(getattr(each, "param_groups", None) or ()):
                for i, parameter in enumerate(group["params"]):
                    if id(parameter) in known:
                        continue
                    master = half and parameter.dtype == torch.float32
                    self._extras.append((weakref.ref(each), g, i, master))
                    size = ledger.add(parameter)
                    if master:
                        self._masters += size
                    else:
                        self._parameters += size

    def _extra_parameters(self) -> Iterator[Any]:
        for ref, group, index, _ in self._extras:
            each = ref()
            try:
                yield None if each is None else each.param_groups[group]["params"][index]
            except IndexError as error:
                raise Gone from error

    def _gradients(self) -> Iterator[Any]:
        yield from self._holders.gradients()
        for parameter in self._extra_parameters():
            yield None if parameter is None else parameter.grad

    def _present(self) -> list[int]:
        found = self._holders.present()
        if self._extras:
            found += [p is not None and p.grad is not None for p in self._extra_parameters()]
        return found

    def _gradient_bytes(self, root: nn.Module) -> tuple[int, int]:
        """Return the bytes of the gradients of now, and how many of them are communication buckets."""
        present = self._present()
        if not any(present):
            return 0, 0
        if self._buckets.views:
            first = next((g for g in self._gradients() if g is not None), None)
            present.append(first is not None and first._is_view())
        if present == self._last[0]:
            return self._last[1]
        pattern = tuple(present)
        sizes = self._patterns.get(pattern)
        if sizes is None:
            if len(self._patterns) >= MAX_PATTERNS:
                self._patterns.clear()
            viewed = 0
            if self._buckets.views:
                told = buckets.ddp_buckets(structure_of(root).modules)
                viewed = buckets.viewed_bytes(self._gradients(), told.sizes)
            sizes = Ledger(self._device, self._keys).total(self._gradients()), viewed
            self._patterns[pattern] = sizes
        self._last = present, sizes
        return sizes

    def _state_key(self) -> tuple[Any, ...]:
        return tuple([optimizer.state_key(o) for ref in self._optimizers if (o := ref()) is not None])

    def _state_bytes(self) -> int:
        key = self._state_key()
        if key != self._states[0]:
            # States appeared, vanished or were loaded: count them now, and let the next refresh walk.
            self._dirty = True
            ledger = Ledger(self._device, self._keys)
            ledger.total(self._gradients())
            self._states = (key, self._masters + self._count_states(self.optimizers(), ledger))
        return self._states[1]

    @staticmethod
    def _count_states(optimizers: list[Any], ledger: Ledger) -> int:
        return sum(ledger.total(optimizer.state_tensors(each)) for each in optimizers)
