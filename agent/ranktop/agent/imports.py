"""Calls back once a module has been imported, without importing it: a script may set variables that it reads first."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from ranktop.agent.runner import one_line
from ranktop.agent.say import say

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
    """Lets the other finders find the modules that are waited for, and has their loaders call back at the end.

    A name stays waited for until its module has been imported: libraries look a spec up without importing it, and an
    import may fail and be tried again.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._asking = threading.local()

    def wait(self, name: str, loaded: Callable[[], None]) -> None:
        """Call ``loaded`` at the end of the import of ``name``."""
        self._waiting.setdefault(name, []).append(loaded)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._waiting or getattr(self._asking, "now", None) == fullname:
            return None
        before, self._asking.now = getattr(self._asking, "now", None), fullname
        try:
            spec = importlib.util.find_spec(fullname) if fullname not in sys.modules else None
        finally:
            self._asking.now = before
        if spec is not None and spec.loader is not None:
            self._wrap(fullname, spec.loader)
        return spec

    def _wrap(self, name: str, loader: importlib.abc.Loader) -> None:
        def done() -> None:
            waiting = self._waiting.pop(name, [])
            if not self._waiting and self in sys.meta_path:
                sys.meta_path.remove(self)
            for loaded in waiting:
                _call(name, loaded)

        try:
            loader.exec_module = _executor(loader.exec_module, done)  # type: ignore[method-assign, assignment]
        except (AttributeError, TypeError) as error:  # a loader of a script's own kind: its import goes on as it is
            say(f"the agent is not told when {name} has been imported: {one_line(error)}")


def _call(name: str, loaded: Callable[[], None]) -> None:
    """Call back; what goes wrong in it must not become an error of the script's import."""
    try:
        loaded()
    except Exception as error:
        say(f"{name} was imported, but the agent can't follow it: {one_line(error)}")


_finder: Final = _Finder()


def when_imported(name: str, loaded: Callable[[], None], *, having: str = "") -> None:
    """Call ``loaded`` at the end of the import of ``name``, in the importing thread; at once when that has happened.

    ``having`` names an attribute that a module has only once it is whole. ``loaded`` may raise: a line says so.
    """
    module = sys.modules.get(name)
    if module is not None and not _unfinished(module) and (not having or hasattr(module, having)):
        _call(name, loaded)
    else:
        _finder.wait(name, loaded)


def _unfinished(module: ModuleType) -> bool:
    """Whether a module is being imported just now."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
