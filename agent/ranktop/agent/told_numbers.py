"""Numbers as scripts have them: Python's, NumPy's, and tensors, of which none on a GPU is ever waited for."""

from __future__ import annotations

import numbers
import sys
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

SPACING: Final = 0.1
"""Seconds between two copies of one name from a GPU, at least: a copy costs the training thread about 20 microseconds,
and no more than one value a second is shown."""

SLOTS: Final = 32
"""Values on their way at the same time, at most; further ones are left out until some have arrived."""


MOST_NAMES: Final = 64
"""Names of values on a GPU that are remembered."""


def plain(value: Any) -> tuple[float | None, str]:
    """Return a number that is no tensor, or why it can't be taken: the rest of a sentence."""
    if isinstance(value, (numbers.Real, Decimal)) or type(value).__module__ == "numpy":
        try:
            if getattr(value, "size", 1) != 1:
                return None, "is an array of several numbers"
            return float(value.item() if hasattr(value, "item") else value), ""
        except OverflowError:
            return None, "is too large"
        except (TypeError, ValueError):
            pass
    return None, f"is a {type(value).__name__[:40]}, not a number"


class _Flight(NamedTuple):
    """A value on its way: where it will be, the event after its copy, and who takes it."""

    slot: int
    place: Any
    """Of the locked memory: threads that send their first values at the same time may have one each."""
    event: Any
    take: Callable[[float], None]


class Reader:
    """Reads numbers in the threads of a script."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds."""
        self._clock = clock
        self._pinned: Any = None
        self._flights: deque[_Flight] = deque()
        self._free = list(range(SLOTS))
        self._sent: dict[str, float] = {}

    @property
    def waiting(self) -> bool:
        """Whether a value is on its way."""
        return bool(self._flights)

    def read(self, name: str, value: Any, take: Callable[[float], None] | None) -> tuple[float | None, str]:
        """Return a number, or why there is none; neither for a value on a GPU, which ``take`` gets when it arrives.

        Without ``take`` a value on a GPU is not read. May raise what a script's own objects raise.
        """
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return plain(value)
        # Neither a script's TorchFunctionMode nor a tensor's own class is to see what is asked here.
        with torch._C.DisableTorchFunction():
            tensor, why = _single(value, torch)
            if tensor is None:
                return None, why
            if tensor.device.type == "cpu":
                return float(tensor.detach().item()), ""
            if tensor.device.type != "cuda" or take is None:
                return None, f"is on the device {tensor.device.type}: give a Python number"
            self._send(name, tensor, take, torch)
        return None, ""

    def _send(self, name: str, tensor: Any, take: Callable[[float], None], torch: Any) -> None:
        """Have the device copy the value behind what it is doing, and go on at once."""
        now = self._clock()
        last = self._sent.get(name)
        too_many = last is None and len(self._sent) >= MOST_NAMES
        if too_many or (last is not None and now - last < SPACING) or torch.cuda.is_current_stream_capturing():
            return
        if not self._free:
            self.collect()
        if not self._free:
            return
        pinned = self._pinned
        if pinned is None:
            # Once: to lock host memory makes the device end what it is doing before it begins anything new.
            pinned = self._pinned = torch.empty(SLOTS, dtype=torch.float64, pin_memory=True)
        self._sent[name] = now
        slot = self._free.pop()
        place = pinned[slot]
        place.copy_(tensor.detach().reshape(()).to(torch.float64), non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(tensor.device))
        self._flights.append(_Flight(slot, place, event, take))

    def collect(self) -> None:
        """Hand over what has arrived; in a thread of the script, for none may ask while another captures a graph."""
        torch = sys.modules.get("torch")
        if not self._flights or torch is None or torch.cuda.is_current_stream_capturing():
            return
        while self._flights:
            # Taken out before it is asked about: another thread may do the same, and each value is one's own.
            try:
                flight = self._flights.popleft()
            except IndexError:
                return
            if not flight.event.query():
                self._flights.appendleft(flight)
                return
            with torch._C.DisableTorchFunction():
                value = float(flight.place.item())
            self._free.append(flight.slot)
            flight.take(value)


def _single(value: Any, torch: Any) -> tuple[Any, str]:
    """Return the plain tensor of one number that a tensor is, or why it is none."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        local, placements = getattr(value, "_local_tensor", None), getattr(value, "placements", None)
        if local is None or placements is None:
            return None, f"is a tensor of the class {type(value).__name__[:40]}: give a Python number"
        if not all(place.is_replicate() for place in placements):
            # Its whole value would take a collective, which is never begun from here.
            return None, "is a DTensor that is not replicated: give what full_tensor() returns"
        value = local
        if type(value) is not torch.Tensor:
            return None, "is a DTensor that is not ready: give a Python number"
    if value.is_meta or value.numel() != 1 or value.is_complex():
        return None, "is a tensor that holds no single number"
    return value, ""
