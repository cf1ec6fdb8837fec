"""Finds the root modules of a script as they are built, and hooks only these.

A module that registers a child or a parameter may be a root until it becomes a child itself. The hooks sit on the
instances, so that a forward costs two calls whatever the number of modules, and a wrapper (DDP, FSDP, an engine,
``torch.compile``) takes the place of what it wraps by registering it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.nn.modules import module as nn_module

_NOTHING: Final = contextlib.nullcontext()

_PREPARE: Final = "__prepare_scriptable__"
"""TorchScript calls this method before it compiles a module; it cannot compile hooks, so they must be gone by then."""


class Listener(Protocol):
    """Is told about calls of root modules, in the thread that makes them."""

    def root_begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``module`` is about to run."""
        ...

    def root_end(self, module: nn.Module, output: object) -> None:
        """``module`` has returned ``output``."""
        ...


class _Hook:
    """A hook that a copied or pickled module does not carry along: there it becomes a call that does nothing.

    Without this, ``torch.save(model)`` would make a file that can only be loaded where this package is installed.
    """

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> None:
        if not torch.compiler.is_compiling():
            self.call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (_NOTHING, "__exit__")


class _Hooked:
    """The handles of one hooked module."""

    __slots__ = ("called", "handles", "pre_id")

    def __init__(self, handles: list[Any]) -> None:
        self.handles = handles
        self.pre_id: int = handles[0].id
        self.called = False


class RootTracker:
    """Keeps hooks on every module that could be a root, and on no other."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._hooked: weakref.WeakKeyDictionary[nn.Module, _Hooked] = weakref.WeakKeyDictionary()
        self._children: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._global: list[Any] = []
        self._prepare: Callable[[nn.Module], nn.Module] | None = None
        self._before = _Hook(self._begin)
        self._after = _Hook(self._end)

    def install(self) -> None:
        """Watch modules being built from now on."""
        self._global = [
            nn_module.register_module_module_registration_hook(self._module_registered),
            nn_module.register_module_parameter_registration_hook(self._parameter_registered),
        ]
        if not hasattr(nn.Module, _PREPARE):
            release = self._unhook

            def prepare(module: nn.Module) -> nn.Module:
                release(module)
                return module

            self._prepare = prepare
            setattr(nn.Module, _PREPARE, prepare)

    def remove(self) -> None:
        """Take every hook away again."""
        for handle in self._global:
            handle.remove()
        self._global = []
        if self._prepare is not None and vars(nn.Module).get(_PREPARE) is self._prepare:
            delattr(nn.Module, _PREPARE)
        for module in self.roots():
            self._unhook(module)

    def add(self, module: nn.Module) -> None:
        """Hook a module; twice is once."""
        if module in self._hooked:
            return
        self._hooked[module] = _Hooked(
            [
                module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
                module.register_forward_hook(self._after),
            ]
        )

    def roots(self) -> list[nn.Module]:
        """Return the modules hooked now."""
        return list(self._hooked)

    def called(self, module: nn.Module) -> bool:
        """Whether a hooked module has run since it was hooked."""
        hooked = self._hooked.get(module)
        return hooked is not None and hooked.called

    def descend(self, module: nn.Module) -> None:
        """Hook the children of a root that is never called itself (a container of several models)."""
        for child in module.children():
            if any(True for _ in child.parameters()):
                self.add(child)

    def _unhook(self, module: nn.Module) -> None:
        hooked = self._hooked.pop(module, None)
        if hooked is not None:
            for handle in hooked.handles:
                handle.remove()

    # -- construction ----------------------------------------------------------------------------------------------

    def _module_registered(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is None or torch.compiler.is_compiling():
            return
        try:
            self._children.add(child)
            self._unhook(child)
            if parent not in self._children:
                self.add(parent)
        except Exception:
            return  # an odd module (unhashable, half built) is simply not followed

    def _parameter_registered(self, module: nn.Module, name: str, parameter: object) -> None:
        if parameter is None or torch.compiler.is_compiling():
            return
        try:
            if module not in self._children:
                self.add(module)
        except Exception:
            return

    # -- calls -----------------------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hooked = self._hooked.get(module)
        if hooked is None:
            return
        if not hooked.called:
            hooked.called = True
            self._to_front(module, hooked)
        self._listener.root_begin(module, args, kwargs)

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if module in self._hooked:
            self._listener.root_end(module, output)

    @staticmethod
    def _to_front(module: nn.Module, hooked: _Hooked) -> None:
        """Run before the hooks that wrappers put in front later: FSDP2 gathers parameters in one."""
        hooks = module._forward_pre_hooks
        if hooked.pre_id in hooks and isinstance(hooks, OrderedDict):
            hooks.move_to_end(hooked.pre_id, last=False)
