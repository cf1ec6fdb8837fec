"""Calls back once torch has been imported, without importing it: a script may set variables that torch reads first."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

# The interpreter cuts frames of its import system from tracebacks, and only those: an error that a script's
# ``import torch`` raises must look as it does without this package.
_SOURCE: Final = """
def executor(run, done):
    def exec_module(module):
        run(module)
        done()
    return exec_module
"""
_CODE: Final = compile(_SOURCE, "<frozen importlib._bootstrap_external>", "exec")


def _executor(run: Callable[[ModuleType], Any], done: Callable[[], None]) -> Callable[[ModuleType], None]:
    """Return a loader's ``exec_module`` that calls ``done`` after ``run``."""
    names: dict[str, Any] = {}
    exec(_CODE, names)
    made: Callable[[ModuleType], None] = names["executor"](run, done)
    return made


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find torch, and has its loader call back at the end.

    It stays in place until torch has been imported: libraries look torch's spec up without importing it, and an
    import may fail and be tried again.
    """

    def __init__(self, loaded: Callable[[], None]) -> None:
        self._loaded = loaded
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch" or path is not None or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec("torch") if "torch" not in sys.modules else None
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: importlib.abc.Loader) -> None:
        def done() -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._loaded()

        loader.exec_module = _executor(loader.exec_module, done)  # type: ignore[method-assign, assignment]


def when_torch_is_imported(loaded: Callable[[], None]) -> None:
    """Call ``loaded`` at the end of ``import torch``, in the importing thread; at once when that has happened."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        loaded()
    else:
        sys.meta_path.insert(0, _Finder(loaded))
