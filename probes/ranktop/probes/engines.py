"""Models that an engine holds in its own way (DeepSpeed): asked through one small set of functions."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Final

import torch
from torch import nn

from ranktop.budget.inventory import Inventory
from ranktop.budget.plan import Plan
from ranktop.probes.reading import Resident
from ranktop.probes.storages import Ledger

_KINDS: Final = ("parameters", "gradients", "optimizer", "buffers")
_REMEMBERED: Final = 32
"""Layouts whose bytes are remembered: an engine goes through several in every step."""


_probe: Any = None


def _deepspeed() -> Any | None:
    """Return the probe for DeepSpeed; None unless the job itself has imported DeepSpeed."""
    global _probe
    if _probe is None and "deepspeed" in sys.modules:
        with contextlib.suppress(ImportError):
            from ranktop.probes import deepspeed

            _probe = deepspeed
    return _probe


def find(root: nn.Module) -> Any | None:
    """Return the engine that ``root`` is, None for an ordinary module."""
    probe = _deepspeed()
    return None if probe is None else probe.find(root)


def inventory(engine: Any) -> Inventory:
    """Return the parameters of an engine's model."""
    probe = _deepspeed()
    found: Inventory = Inventory() if probe is None else probe.inventory(engine)
    return found


def gradients_exist(engine: Any) -> bool:
    """Return whether the engine holds any gradient now."""
    probe = _deepspeed()
    return probe is not None and bool(probe.gradients_exist(engine))


def plan(engine: Any, seen: Any) -> Plan | None:
    """Return an engine's plan; ``seen`` is a ``ranktop.probes.strategy.Seen``."""
    probe = _deepspeed()
    found: Plan | None = None if probe is None else probe.plan(engine, seen)
    return found


class EngineProbe:
    """Bytes of an engine's tensors, remembered for each of its layouts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[object, Resident] = {}

    def refresh(self, engine: Any, force: bool) -> bool:
        """Count the bytes of the engine's layout if it is a new one or ``force``; True if it was."""
        if force:
            self._known.clear()
        before = len(self._known)
        self.resident(engine)
        return len(self._known) != before

    def resident(self, engine: Any) -> Resident:
        """Return the bytes by category, counted when this state of the engine is new."""
        probe = _deepspeed()
        if probe is None:
            return Resident()
        key = probe.layout_key(engine)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            tensors, ledger = probe.resident_tensors(engine), Ledger(self._device)
            sizes = {kind: ledger.total(tensors.get(kind, ())) for kind in _KINDS}
            found = Resident(
                parameters=sizes["parameters"],
                gradients=sizes["gradients"],
                optimizer=sizes["optimizer"],
                buffers=sizes["buffers"],
            )
            self._known[key] = found
        return found
