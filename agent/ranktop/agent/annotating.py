"""Names what the training thread does, for as long as it does it: a context manager, and a decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from threading import get_ident
from typing import Any, TypeVar

from ranktop.agent import progress

F = TypeVar("F", bound=Callable[..., Any])


class _Entry:
    """One time that a named part was entered."""

    __slots__ = ("reports", "thread", "what")

    def __init__(self, what: str, reports: progress.Reports, thread: int) -> None:
        self.what = what
        self.reports = reports
        self.thread = thread


class Annotation:
    """What :func:`ranktop.agent.annotate` returns. May be entered again and again, also within itself."""

    __slots__ = ("_entered", "_what")

    def __init__(self, what: str) -> None:
        self._what = what if type(what) is str else _words(what)
        self._entered: list[_Entry | None] = []

    def __enter__(self) -> Annotation:
        """Begin; nothing happens while no agent runs."""
        reports = progress.current
        if reports is None or progress.compiling():
            self._entered.append(None)
            return self
        entry = _Entry(self._what, reports, get_ident())
        reports.activities.setdefault(entry.thread, []).append(entry)
        self._entered.append(entry)
        return self

    def __exit__(self, *exc: object) -> None:
        """End what began last; an exception goes on its way."""
        entry = self._entered.pop() if self._entered else None
        if entry is None:
            return
        known = entry.reports.activities.get(entry.thread, [])
        # Tasks that take turns in one thread need not end in the order in which they began.
        if entry in known:
            known.remove(entry)
        if not known:
            entry.reports.activities.pop(entry.thread, None)
        entry.reports.left(entry.what, entry.thread)

    def __call__(self, function: F) -> F:
        """Name what a function does: also one that is asynchronous or a generator."""
        what, wrapped = self._what, function

        @functools.wraps(wrapped)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with Annotation(what):
                return wrapped(*args, **kwargs)

        @functools.wraps(wrapped)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            with Annotation(what):
                return await wrapped(*args, **kwargs)

        @functools.wraps(wrapped)
        def giving(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with Annotation(what):
                result: Any = yield from wrapped(*args, **kwargs)
            return result

        @functools.wraps(wrapped)
        async def streaming(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with Annotation(what):
                async for item in wrapped(*args, **kwargs):
                    yield item

        chosen: Any = plain
        if inspect.iscoroutinefunction(wrapped):
            chosen = waiting
        elif inspect.isgeneratorfunction(wrapped):
            chosen = giving
        elif inspect.isasyncgenfunction(wrapped):
            chosen = streaming
        return chosen  # type: ignore[no-any-return]


def _words(what: object) -> str:
    """Return what a script gives instead of a text as one: the agent's thread must not stumble over it."""
    try:
        return str(what)
    except Exception:
        return type(what).__name__
