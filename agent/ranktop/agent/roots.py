"""Finds the root modules of a script as they are built, and hooks only these.

A module that registers a child or a parameter may be a root until it becomes a child itself. The hooks sit on the
instances, so that a forward costs two calls whatever the number of modules, and a wrapper (DDP, FSDP, an engine,
``torch.compile``) takes the place of what it wraps by registering it.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from ranktop.agent.skim import AfterForward, BeforeForward, Skim

_GRAPHED: Final = "make_graphed_callables"

_NOT_BY_ITSELF: Final = (nn.TransformerEncoderLayer, torch.jit.ScriptModule)
"""Modules that compute in another way when they have hooks, or cannot be compiled: hooked only when a script asks."""

_PREPARE: Final = "__prepare_scriptable__"
"""TorchScript calls this method before it compiles a module; it cannot compile hooks, so they must be gone by then."""


T = TypeVar("T")


class ByIdentity(Generic[T]):
    """A dictionary with weak keys that are told apart by identity: a module may define ``==`` and ``hash`` as it likes.

    Threads may use it at the same time.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, key: object) -> T | None:
        """Return the value of ``key``, None when it has none."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: object, value: T) -> None:
        """Give ``key`` a value, for as long as it lives."""
        number, entries = id(key), self._entries

        def gone(ref: weakref.ref[Any]) -> None:
            entry = entries.get(number)
            if entry is not None and entry[0] is ref:
                del entries[number]

        entries[number] = weakref.ref(key, gone), value

    def pop(self, key: object) -> T | None:
        """Take the value of ``key`` away and return it."""
        value = self.get(key)
        if value is not None:
            self._entries.pop(id(key), None)
        return value

    def keys(self) -> list[Any]:
        """Return the keys that are alive."""
        return [key for ref, _ in list(self._entries.values()) if (key := ref()) is not None]


class Listener(Protocol):
    """Is told about calls of root modules, in the thread that makes them."""

    def root_begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``module`` is about to run."""
        ...

    def root_end(self, module: nn.Module, output: object) -> None:
        """``module`` has returned ``output``."""
        ...


class _Hooked:
    """The handles of one hooked module."""

    __slots__ = ("called", "handles", "pre_id")

    def __init__(self, handles: list[Any]) -> None:
        self.handles = handles
        self.pre_id: int = handles[0].id
        self.called = False


class RootTracker:
    """Keeps hooks on every module that could be a root, and on no other."""

    def __init__(self, listener: Listener, skim: Skim | None = None) -> None:
        """Tell ``listener`` of every call that ``skim`` does not answer by itself."""
        self._listener = listener
        skim = skim or Skim()
        self._hooked: ByIdentity[_Hooked] = ByIdentity()
        self._children: ByIdentity[bool] = ByIdentity()
        self._global: list[Any] = []
        self._prepare: Callable[[nn.Module], nn.Module] | None = None
        self._graphing: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._before = BeforeForward(self._begin, skim)
        self._after = AfterForward(self._end, skim)

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
        self._step_aside_for_graphs()

    def remove(self) -> None:
        """Take every hook away again."""
        for handle in self._global:
            handle.remove()
        self._global = []
        if self._prepare is not None and vars(nn.Module).get(_PREPARE) is self._prepare:
            delattr(nn.Module, _PREPARE)
        if self._graphing is not None:
            original, ours = self._graphing
            for place in (torch.cuda, torch.cuda.graphs):
                if getattr(place, _GRAPHED, None) is ours:
                    setattr(place, _GRAPHED, original)
        for module in self.roots():
            self._unhook(module)

    def add(self, module: nn.Module) -> None:
        """Hook a module; twice is once."""
        if self._hooked.get(module) is not None:
            return
        handles: list[Any] = [
            module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True),
            module.register_forward_hook(self._after),
        ]
        self._hooked.set(module, _Hooked(handles))

    def _step_aside_for_graphs(self) -> None:
        """Have ``torch.cuda.make_graphed_callables``, which refuses modules with hooks, find them without ours."""
        original = getattr(torch.cuda, _GRAPHED, None)
        if original is None:
            return

        @functools.wraps(original)
        def graphed(callables: Any, *args: Any, **kwargs: Any) -> Any:
            each = callables if isinstance(callables, tuple) else (callables,)
            ours = [c for c in each if isinstance(c, nn.Module) and self._hooked.get(c) is not None]
            for module in ours:
                self._unhook(module)
            try:
                return original(callables, *args, **kwargs)
            finally:
                for module in ours:
                    self.add(module)

        self._graphing = original, graphed
        for place in (torch.cuda, torch.cuda.graphs):
            setattr(place, _GRAPHED, graphed)

    def roots(self) -> list[nn.Module]:
        """Return the modules hooked now."""
        return self._hooked.keys()

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
        hooked = self._hooked.pop(module)
        if hooked is not None:
            for handle in hooked.handles:
                handle.remove()

    # -- construction ----------------------------------------------------------------------------------------------

    def _module_registered(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is None or torch.compiler.is_compiling():
            return
        try:
            self._children.set(child, True)
            self._unhook(child)
            if self._children.get(parent) is None and not isinstance(parent, _NOT_BY_ITSELF):
                self.add(parent)
        except Exception:
            return  # an odd module (unhashable, half built) is simply not followed

    def _parameter_registered(self, module: nn.Module, name: str, parameter: object) -> None:
        if parameter is None or torch.compiler.is_compiling():
            return
        try:
            if self._children.get(module) is None and not isinstance(module, _NOT_BY_ITSELF):
                self.add(module)
        except Exception:
            return

    # -- calls -----------------------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hooked = self._hooked.get(module)
        if hooked is None or torch.compiler.is_compiling():
            return
        if not hooked.called:
            hooked.called = True
            self._to_front(module, hooked)
        self._listener.root_begin(module, args, kwargs)

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if self._hooked.get(module) is not None and not torch.compiler.is_compiling():
            self._listener.root_end(module, output)

    @staticmethod
    def _to_front(module: nn.Module, hooked: _Hooked) -> None:
        """Run before the hooks that wrappers put in front later: FSDP2 gathers parameters in one."""
        hooks = module._forward_pre_hooks
        if hooked.pre_id in hooks and isinstance(hooks, OrderedDict):
            hooks.move_to_end(hooked.pre_id, last=False)
