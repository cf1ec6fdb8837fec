"""A job on another machine, by way of the user's own ``ssh``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from ranktop.tui.remote.target import Target


def fetch_recording(target: str | Target, job: str, **how: Any) -> Path:
    """Return a temporary copy of the recording of a job on another machine (``fetch.fetch_recording``)."""
    from ranktop.tui.remote.fetch import fetch_recording as fetch

    return fetch(target, job, **how)
