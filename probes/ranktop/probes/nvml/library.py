"""pynvml with every call to the driver counted, and the one in flight known."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable
from importlib.metadata import distribution
from typing import Any, Final

from ranktop.probes.nvml.codes import UNINITIALIZED, code_of

_OWN: Final = f"{__package__}._pynvml"

_TWICE: Final = "RunningProcesses"
"""pynvml asks a list of processes for its length first, and again unless it is empty."""


class Library:
    """Stands for the module ``pynvml``: has its functions and constants by their own names.

    A function that the installed pynvml lacks raises AttributeError; one that the driver lacks raises NVMLError with
    code 13. Used by one thread; ``calling`` may be looked at from others.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives the seconds in ``calling``."""
        self._clock = clock
        self._module: Any = None
        self._initialized = False
        self.count = 0
        """Calls made so far."""
        self.calling: tuple[str, float] | None = None
        """Name of the call in flight and when it began."""

    def start(self) -> None:
        """Initialise NVML; raises NVMLError or ImportError."""
        if self._module is None:
            self._module = own_pynvml()
        if not self._initialized:
            self.nvmlInit()
            self._initialized = True

    def stop(self) -> None:
        """Shut NVML down, as far as this object started it; what goes wrong then is of no use to anybody."""
        if self._initialized:
            self._initialized = False
            try:
                self.nvmlShutdown()
            except Exception:
                return

    def run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call something that may hang, under a name to be shown meanwhile."""
        self.count += 1
        self.calling = (name, self._clock())
        try:
            answer = function(*arguments)
        except Exception as error:
            if code_of(error) == UNINITIALIZED:
                # A script has shut NVML down once too often, and what it took was this object's part in it: a
                # shutdown of its own would now be the end of somebody else's.
                self._initialized = False
            raise
        finally:
            self.calling = None
        if _TWICE in name and answer:
            self.count += 1
        return answer

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that returns text, which need not be UTF-8 (some boards' names are not)."""
        function = getattr(self._module, name)
        # pynvml decodes strictly; its undecorated function returns the bytes.
        raw = self.run(name, getattr(function, "__wrapped__", function), *arguments)
        return raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else str(raw)

    def symbol(self, name: str) -> Callable[..., int]:
        """Return a C function that pynvml does not wrap; calling it returns NVML's code."""
        function = self._module._nvmlGetFunctionPointer(name)

        def counted(*arguments: Any) -> int:
            return int(self.run(name, function, *arguments))

        return counted

    def error(self, code: int) -> Exception:
        """Return the exception of a code."""
        error: Exception = self._module.NVMLError(code)
        return error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._module, name)
        if not name.startswith("nvml") or not inspect.isfunction(found):
            return found

        def counted(*arguments: Any) -> Any:
            return self.run(name, found, *arguments)

        # Found by ordinary means from now on.
        self.__dict__[name] = counted
        return counted


_loading = threading.Lock()


def own_pynvml() -> Any:
    """Return nvidia-ml-py as a module of its own, apart from the ``pynvml`` that a script has.

    A script's may be older, a file of its own or replaced by parts; and one that forks while this thread loads a module
    or looks a function up leaves its child with a lock that nobody gives back.
    """
    with _loading:
        if _OWN not in sys.modules:
            try:
                file = str(distribution("nvidia-ml-py").locate_file("pynvml.py"))
                spec = importlib.util.spec_from_file_location(_OWN, file)
                assert spec is not None
                assert spec.loader is not None
                module = sys.modules[_OWN] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            except Exception:
                sys.modules.pop(_OWN, None)
                import pynvml

                return pynvml
        return sys.modules[_OWN]


def _after_fork() -> None:
    """Leave the child no lock that its parent's thread held."""
    global _loading
    _loading = threading.Lock()
    sys.modules.pop(_OWN, None)


os.register_at_fork(after_in_child=_after_fork)
