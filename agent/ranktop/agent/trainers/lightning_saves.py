"""Names the time in which a Lightning Trainer saves: callbacks are told of a save's beginning only, and not of all."""

from __future__ import annotations

import functools
import weakref
from types import MethodType
from typing import Any, Final

from ranktop.agent import annotate

METHOD: Final = "save_checkpoint"


class Saving:
    """Stands before one Trainer's ``save_checkpoint``. A copied or pickled Trainer has the plain method again."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self._before = vars(trainer).get(METHOD)
        """What a script has put there itself."""
        setattr(trainer, METHOD, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Save, and say so meanwhile."""
        trainer = self._trainer()
        save = self._before if self._before is not None else MethodType(getattr(type(trainer), METHOD), trainer)
        with annotate("save"):
            return save(*args, **kwargs)

    def remove(self) -> None:
        """Step aside."""
        trainer = self._trainer()
        if trainer is not None and vars(trainer).get(METHOD) is self:
            if self._before is None:
                delattr(trainer, METHOD)
            else:
                setattr(trainer, METHOD, self._before)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        trainer = self._trainer()
        copied = memo.get(id(trainer), trainer)
        return MethodType(getattr(type(copied), METHOD), copied)

    def __reduce__(self) -> tuple[Any, ...]:
        trainer = self._trainer()
        return functools.partial, (getattr(type(trainer), METHOD), trainer)
