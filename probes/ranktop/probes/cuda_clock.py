"""Phase times of a GPU: events recorded on the current stream, and only ever asked, never waited for."""

from __future__ import annotations

import torch


class CudaClock:
    """Marks are CUDA events; ``between`` answers once the device has passed the second one.

    Only for the training thread, and not while a graph is being captured there: CUDA then forbids asking for an event
    in any thread (cudaStreamBeginCapture, global mode), and an attempt breaks the capture.
    """

    name = "device"

    def __init__(self, device: torch.device) -> None:
        """Record on the current stream of ``device``, also while another one is the current device."""
        self._device = device

    def mark(self) -> object:
        """Record an event (about 3 microseconds, no synchronisation)."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, start: object, end: object) -> float | None:
        """Return the seconds the device took from one mark to the other, or None while it is not there yet."""
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        if not (start.query() and end.query()):
            return None
        return float(start.elapsed_time(end)) / 1000.0
