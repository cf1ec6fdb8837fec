"""Runs a script or module as ``__main__``, so that it cannot tell: arguments, exit code and traceback are its own."""

from __future__ import annotations

import importlib.machinery
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType

_OWN = str(Path(__file__).parent)


def run_script(path: str, arguments: list[str]) -> None:
    """Run the file ``path`` as ``python path arguments...`` would. Raises OSError when it cannot be read."""
    file = Path(path)
    if file.is_dir() or file.suffix in {".zip", ".pyz"}:
        sys.argv = [path, *arguments]
        runpy.run_path(path, run_name="__main__")
        return
    source = file.read_bytes()
    sys.argv = [path, *arguments]
    sys.path[0] = str(file.resolve().parent)
    main = ModuleType("__main__")
    absolute = str(file.absolute())
    main.__dict__.update(
        __file__=absolute,
        __builtins__=__builtins__,
        __loader__=importlib.machinery.SourceFileLoader("__main__", absolute),
        __spec__=None,
        __cached__=None,
        __annotations__={},
    )
    code = compile(source, absolute, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def run_module(name: str, arguments: list[str]) -> None:
    """Run the module ``name`` as ``python -m name arguments...`` would."""
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def call(run: Callable[[], None], ended: Callable[[str, int | None, str], None]) -> None:
    """Call ``run`` and report how it ended; an exception goes on its way, its traceback without our frames.

    ``ended`` gets (how, exit code, one line of detail).
    """
    try:
        run()
    except SystemExit as error:
        ended("exit", _exit_code(error), "")
        raise
    except BaseException as error:
        ended("exception", 1, _one_line(error))
        _hide_own_frames(error)
        raise
    ended("exit", 0, "")


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _one_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".strip().splitlines()
    return text[0][:300] if text else type(error).__name__


def _hide_own_frames(error: BaseException) -> None:
    """Have the interpreter's own report of ``error`` start at the script.

    The frames below the script are still unwinding when this is called, so the report itself is what must be cut.
    """
    shown = _without_own(error.__traceback__)
    report = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is error:
            trace = shown
            value = value.with_traceback(shown)
        report(kind, value, trace)

    sys.excepthook = excepthook


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """Copy a traceback without this package's frames and the standard library's that ran the script for it."""
    entries: list[TracebackType] = []
    script_seen = False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        ours = file.startswith(_OWN)
        machinery = not script_seen and ("runpy" in file or file.startswith("<frozen importlib"))
        if not (ours or machinery):
            script_seen = True
            entries.append(trace)
        trace = trace.tb_next
    copied: TracebackType | None = None
    for entry in reversed(entries):
        copied = TracebackType(copied, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return copied
