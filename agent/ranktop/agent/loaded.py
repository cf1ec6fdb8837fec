"""What is loaded in this process: versions, and the backend of its process group."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ranktop.wire.schema import Versions


def _own_version() -> str:
    try:
        return version("ranktop")
    except PackageNotFoundError:
        return ""


_OWN_VERSION: Final = _own_version()
"""Looked up before the script runs: it loads modules, which a script's own files might hide."""


def backend() -> str:
    """Return the backend of the default process group; empty where there is none."""
    distributed = sys.modules.get("torch.distributed")
    # While another thread imports it, the module is there without its functions.
    initialized = getattr(distributed, "is_initialized", None)
    if distributed is None or initialized is None or not initialized():
        return ""
    return str(distributed.get_backend())


def versions() -> Versions:
    """Return the versions of what is loaded in this process."""
    torch = sys.modules.get("torch")
    deepspeed = sys.modules.get("deepspeed")
    return Versions(
        ranktop=_OWN_VERSION,
        python=platform.python_version(),
        torch=str(getattr(torch, "__version__", "")),
        cuda=str(getattr(getattr(torch, "version", None), "cuda", None) or ""),
        deepspeed=str(getattr(deepspeed, "__version__", "")),
    )
