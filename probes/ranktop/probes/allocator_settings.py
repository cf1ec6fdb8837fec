"""How torch's CUDA allocator is set up: what can be read while the job runs, else what the environment says."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first that is set counts (c10/cuda/CUDAAllocatorConfig.h)."""
_UNCACHED: Final = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")


def expandable_segments() -> bool:
    """Whether expandable segments are on, by torch's last settings where it tells them, else by the environment.

    Settings made later that don't mention them leave them as they were, so the last settings may not tell;
    ``AllocatorSettings`` remembers.
    """
    return AllocatorSettings().expandable


class AllocatorSettings:
    """Follows the settings of one process."""

    def __init__(self) -> None:
        """Begin with what holds now."""
        self.expandable = _expandable_in(_environment()) or False
        self.ever_expandable = False
        """Segments that were made expandable stay so when the setting is turned off."""
        self.uncached = next((name for name in _UNCACHED if name in os.environ), "")
        """The variable, if any, that may make torch take every tensor's memory from the driver and count nothing."""
        self.refresh()

    def refresh(self) -> None:
        """Look whether the settings have changed; takes less than a microsecond and never touches CUDA."""
        said = _expandable_in(_last_settings())
        if said is not None:
            self.expandable = said
        self.ever_expandable = self.ever_expandable or self.expandable


def _environment() -> str:
    return next((os.environ[name] for name in _VARIABLES if name in os.environ), "")


def _last_settings() -> str:
    """Return the settings last made (``torch._C._accelerator_getAllocatorSettings``), empty where torch can't tell."""
    torch: Any = sys.modules.get("torch")
    read = getattr(getattr(torch, "_C", None), "_accelerator_getAllocatorSettings", None)
    if read is None:
        return ""
    try:
        return str(read())
    except (RuntimeError, ValueError):
        return ""


def _expandable_in(settings: str) -> bool | None:
    """Return what ``settings`` say of expandable segments, None if nothing.

    >>> _expandable_in("max_split_size_mb:64, expandable_segments : True")
    True
    """
    said = None
    for option in "".join(settings.split()).split(","):
        name, _, value = option.partition(":")
        if name == "expandable_segments":
            said = value.lower() == "true"
    return said
