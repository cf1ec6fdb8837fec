"""Where a thread is, as its Python calls tell: files by their place in a package, lines and functions, nothing else.

No source text, no local variable and no folder of the machine is taken along. Nothing is held after a call returns: a
frame that is kept would keep the tensors in it alive.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

DEPTH: Final = 32
"""Calls kept, the innermost ones."""

_LOOKED_AT: Final = 4 * DEPTH
"""Frames of a traceback from which they are chosen."""

_TEXT: Final = 120
"""Characters of a file's or function's name."""

_OWN: Final = ("ranktop.agent", "ranktop.probes", "ranktop.wire", "runpy", "importlib", "_frozen_importlib")
"""Packages that carry the script rather than being a part of it."""


class Place(NamedTuple):
    """One call, in the order of the fields of the wire's ``Call``."""

    file: str
    """The script's own name, or a module's path from its package on (``torch/nn/modules/module.py``)."""
    line: int
    """0 where the interpreter does not know it."""
    function: str


def calls_of(frame: FrameType | None) -> tuple[Place, ...]:
    """Return the calls that led to ``frame``, outermost first, the innermost ``DEPTH`` of them.

    Frames of the agent and of what runs or imports the script are left out. Safe for a frame that another thread
    executes; never raises.
    """
    found: deque[Place] = deque()
    try:
        while frame is not None and len(found) < DEPTH:
            place = _place(frame, frame.f_lineno)
            if place is not None:
                found.appendleft(place)
            frame = frame.f_back
    except Exception:  # a frame that is being torn down
        return tuple(found)
    return tuple(found)


def calls_of_traceback(trace: TracebackType | None) -> tuple[Place, ...]:
    """Return the calls of a traceback, outermost first, the innermost ``DEPTH`` of them; never raises."""
    # A recursion leaves a hundred thousand frames: only the last ones are looked at.
    last: deque[TracebackType] = deque(maxlen=_LOOKED_AT)
    while trace is not None:
        last.append(trace)
        trace = trace.tb_next
    found: deque[Place] = deque(maxlen=DEPTH)
    try:
        for each in last:
            place = _place(each.tb_frame, each.tb_lineno)
            if place is not None:
                found.append(place)
    except Exception:
        return tuple(found)
    return tuple(found)


def calls_of_thread(thread: int | None) -> tuple[tuple[Place, ...], str]:
    """Return the calls of a thread by its ``threading.get_ident()`` (None: the main thread), or why there are none."""
    ident = threading.main_thread().ident if thread is None else thread
    calls = calls_of(sys._current_frames().get(ident or 0))
    if calls:
        return calls, ""
    if ident in sys._current_frames():
        return (), "the thread runs no Python code of the script"
    return (), "the main thread has ended" if thread is None else "the thread that trained has ended"


def _place(frame: FrameType, line: int | None) -> Place | None:
    module = _module(frame.f_globals)
    if module.startswith(_OWN) and any(module == own or module.startswith(f"{own}.") for own in _OWN):
        return None
    code = frame.f_code
    file = _file(code.co_filename, module)[-_TEXT:]
    return Place(_plain(file), line or 0, _plain(code.co_name[:_TEXT]))


def _module(names: dict[str, Any]) -> str:
    """Return the full name of the module that a frame's globals belong to; empty for a script run by its path."""
    name = dict.get(names, "__name__")
    if name == "__main__":
        # ``python -m package.module`` leaves its name only there.
        name = getattr(dict.get(names, "__spec__"), "name", "")
    return name if type(name) is str else ""


def _file(path: str, module: str) -> str:
    """Shorten a code object's file name.

    >>> _file("/usr/lib/python3/site-packages/torch/nn/modules/module.py", "torch.nn.modules.module")
    'torch/nn/modules/module.py'
    >>> _file("/home/ada/secret/train.py", "")
    'train.py'
    """
    if path.startswith("<"):  # ``<string>``, ``<frozen os>``: no file
        return path.rpartition("/")[2]
    pure = PurePath(path)
    wanted = [*module.split("."), "__init__"] if pure.stem == "__init__" else module.split(".")
    there = [*pure.parts[-len(wanted) : -1], pure.stem]
    # A module's name is what its globals say; only where the folders agree are they the package's own. One that begins
    # at the root is named like the machine's folders (``home.ada.train``, run from there).
    if there == wanted and not (pure.is_absolute() and len(wanted) >= len(pure.parts) - 1):
        return "/".join((*there[:-1], pure.name))
    return pure.name.rpartition("\\")[2]  # compiled on another system


def _plain(text: str) -> str:
    """Return text that can be sent whatever bytes a file's name is made of."""
    return text.encode("utf-8", "replace").decode()
