"""Runs a script or module as ``__main__``, so that it cannot tell: arguments, exit code and traceback are its own."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final


def isolated() -> bool:
    """Whether the interpreter was told to put neither the script's folder nor the current one on the path."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def run_script(path: str, arguments: list[str]) -> None:
    """Run the file ``path`` as ``python path arguments...`` would. Raises OSError when it cannot be read."""
    sys.argv = [path, *arguments]
    if pkgutil.get_importer(path) is not None:  # a folder or an archive with a __main__.py
        sys.path.insert(0, os.path.abspath(path))
        _main_module()
        _run_as_main("__main__", False)
        return
    absolute = os.path.abspath(path)
    code = _code_of(path, absolute)
    if not isolated():
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main = _main_module()
    main.__dict__.update(
        __file__=absolute,
        __loader__=importlib.machinery.SourceFileLoader("__main__", absolute),
        __cached__=None,
    )
    exec(code, main.__dict__)


def run_module(name: str, arguments: list[str]) -> None:
    """Run the module ``name`` as ``python -m name arguments...`` would."""
    sys.argv = [name, *arguments]
    if not isolated():
        sys.path.insert(0, os.getcwd())
    _main_module()
    _run_as_main(name, True)


def call(run: Callable[[], None], ended: Callable[[str, int | None, str, BaseException | None], None]) -> None:
    """Call ``run`` and report how it ended; an exception goes on its way, its traceback without our frames.

    ``ended`` gets (how, exit code, one line of detail, what was raised), while the frames still hold what they held.
    """
    try:
        run()
    except SystemExit as error:
        ended("exit", _exit_code(error), one_line(error) if isinstance(error.code, str) else "", error)
        raise
    except KeyboardInterrupt as error:
        # The interpreter ends itself by the signal after it has told of the exception.
        ended("signal", 2, "SIGINT", error)
        _hide_own_frames(error)
        raise
    except BaseException as error:
        ended("exception", 1, one_line(error), error)
        _hide_own_frames(error)
        raise
    ended("exit", 0, "", None)


def one_line(error: BaseException) -> str:
    """Return the type of an exception and the first line of its text, which may be code of the user's."""
    try:
        text = str(error)
    except BaseException:  # nothing that it raises may take the place of the error itself
        text = ""
    return first_line(type(error).__name__, text)


def first_line(kind: str, text: str) -> str:
    """Return the name of an exception's type and the first line of its text, 300 characters at most.

    Of one that torch brings over from a data loader's worker, the last line as well: the first tells only where from.
    """
    line = f"{kind}: {text[:1000]}".strip().splitlines()[0].removesuffix(":")
    if text.startswith("Caught ") and "\nOriginal Traceback" in text[:1000]:
        line = f"{line.removesuffix('.')}: {text[-2000:].rstrip().splitlines()[-1]}"
    return line[:300]


_run_as_main: Final[Callable[[str, bool], Any]] = getattr(runpy, "_run_module_as_main")  # noqa: B009 (private)
"""What ``python -m`` itself calls."""


def _code_of(path: str, absolute: str) -> CodeType:
    with io.open_code(path) as file:
        text = file.read()
    compiled: CodeType | None = getattr(pkgutil, "read_code")(io.BytesIO(text))  # noqa: B009 (not in the stubs)
    # Without dont_inherit the script would get the __future__ features of this file.
    return compiled if compiled is not None else compile(text, absolute, "exec", dont_inherit=True)


def _main_module() -> ModuleType:
    """Put a fresh ``__main__`` in place."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _hide_own_frames(error: BaseException) -> None:
    """Have the interpreter's own report of ``error``, which is being handled, start at the script.

    The frames below the script are still unwinding when this is called, so the report itself is what must be cut.
    """
    # Not by the error's own attributes, which may be code of the script's.
    shown = _without_own(sys.exc_info()[2])
    report = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if value is error:
            trace = shown
            value = BaseException.with_traceback(value, shown)
        report(kind, value, trace)

    sys.excepthook = excepthook


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback above the frame that ran the script; None when nothing is above it."""
    runners = (run_script.__code__, run_module.__code__)
    helpers = (_code_of.__code__, _main_module.__code__)
    while trace is not None and trace.tb_frame.f_code not in runners:
        trace = trace.tb_next
    trace = None if trace is None else trace.tb_next
    if trace is not None and trace.tb_frame.f_code in helpers:
        # The script could not be read or compiled: Python shows no frame for that.
        return None
    return trace
