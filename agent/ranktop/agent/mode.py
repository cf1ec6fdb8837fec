"""Whether the model is out of training between two steps: validation of the inner model is a forward no hook sees."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranktop.agent.watch import Watch

_INNER: Final = ("module", "_orig_mod")
"""Under which name wrappers (DDP, FSDP1, DeepSpeed, torch.compile) keep the model that scripts switch."""

_DEPTH: Final = 4


class Mode:
    """Tells ``eval`` from ``data``. For the agent's thread: it reads dictionaries, and runs nothing of a script."""

    def __init__(self) -> None:
        self._trained: weakref.ref[Any] | None = None
        """The model that was seen in training mode. Some are trained in evaluation mode: of those it says nothing."""

    def phase(self, watch: Watch | None) -> str:
        """Return what the training thread is in; empty before a model has run."""
        recorder = watch.recorder if watch is not None else None
        if watch is None or recorder is None:
            return ""
        phase: str = recorder.phase
        root = watch.model.root if watch.model is not None else None
        training = _training(root)
        if root is None or training is None:
            return phase
        known = self._trained() if self._trained is not None else None
        if training:
            if known is not root:
                self._trained = weakref.ref(root)
        elif phase in ("forward", "backward", "optimizer"):
            self._trained = None
        elif phase == "data" and known is root:
            return "eval"
        return phase


def _training(module: object) -> bool | None:
    """Return whether a module and the one that it wraps are in training mode; None where that is not to be seen."""
    found: bool | None = None
    for _ in range(_DEPTH):
        try:
            parts = object.__getattribute__(module, "__dict__")
        except AttributeError:
            return found
        mode, children = parts.get("training"), parts.get("_modules")
        if not isinstance(mode, bool) or type(children) is not dict:
            return found
        found = mode
        module = next((children[name] for name in _INNER if children.get(name) is not None), None)
        if not mode or module is None:
            return found
    return found
