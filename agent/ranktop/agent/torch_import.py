"""Calls back once torch has been imported, without importing it: a script may set variables that torch reads first."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find torch, and has its loader call back at the end."""

    def __init__(self, loaded: Callable[[], None]) -> None:
        self._loaded = loaded

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: importlib.abc.Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._loaded()

        loader.exec_module = exec_module  # type: ignore[method-assign]


def when_torch_is_imported(loaded: Callable[[], None]) -> None:
    """Call ``loaded`` at the end of ``import torch``, in the importing thread; at once when that has happened."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        loaded()
    else:
        sys.meta_path.insert(0, _Finder(loaded))
