"""What the callbacks of all trainers have in common: they harm no training, and of several only one speaks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ranktop.agent import progress
from ranktop.agent.roots import ByIdentity
from ranktop.agent.runner import one_line
from ranktop.agent.say import say

F = TypeVar("F", bound=Callable[..., None])

_speakers: Final[ByIdentity[Any]] = ByIdentity()
"""Trainer, or its state -> the callback that speaks for it: of several in one Trainer only the first does."""


class Speaking:
    """Mixed into a trainer's own class of callbacks."""

    NAMED = "trainer's callback"
    """How a line about it calls it."""

    _push: Any
    _sound: bool

    def _begin(self) -> None:
        """Make what belongs to this process."""
        self._sound = True

    def _leave_all(self) -> None:
        """Be out of every activity."""

    def _heeds(self, *given: Any) -> bool:
        """Whether an event with these arguments is this callback's at all."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Leave what belongs to this process behind: scripts copy and pickle callbacks, also from within an event."""
        return {"_push": self._push}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin anew in another process, or in a copy of the Trainer."""
        self._push = state["_push"]
        self._begin()

    def _speaks(self, whose: Any) -> bool:
        first = _speakers.get(whose)
        if first is None:
            _speakers.set(whose, self)
        return first is None or first is self


def guarded(event: F) -> F:
    """Have an event do nothing without an agent, and keep what goes wrong in it from the training; told once."""

    @functools.wraps(event)
    def guard(self: Speaking, *given: Any, **named: Any) -> None:
        if progress.current is None or not self._sound:
            return
        try:
            if self._heeds(*given):
                event(self, *given, **named)
        except Exception as error:
            self._sound = False
            self._leave_all()
            say(f"the {self.NAMED} met an error and training goes on without it: {one_line(error)}")

    return guard  # type: ignore[return-value]
