"""Optimizers as they are: the ones that hold state, what they keep for each parameter, their options."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.optim import Optimizer

from ranktop.budget.plan import OptimizerPlan, State
from ranktop.probes.storages import nested_tensors, plain_tensors

_OPTIONS: Final = ("momentum", "amsgrad", "centered", "fused", "foreach", "capturable", "maximize", "beta1")
"""Options of a parameter group that change what is kept."""


_NO_STATE: Final[dict[Any, Any]] = {}


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that holds the state; wrappers (ZeroRedundancyOptimizer, Accelerate's) don't."""
    for _ in range(4):
        inner = getattr(optimizer, "optim", None) or getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer) or inner is optimizer:
            break
        optimizer = inner
    return optimizer


def distinct(optimizers: Iterable[Any]) -> list[Any]:
    """Return the optimizers without those that another of them wraps, each once."""
    found: dict[int, Any] = {}
    outer: dict[int, Any] = {}
    for optimizer in optimizers:
        inner = innermost(optimizer)
        if inner is not optimizer:
            outer[id(inner)] = optimizer
        found[id(inner)] = inner
    return [outer.get(key, inner) for key, inner in found.items()]


def state_of(optimizer: Any) -> dict[Any, Any]:
    """Return the state of an optimizer by parameter; empty when it keeps none there."""
    state = getattr(innermost(optimizer), "state", None)
    return state if isinstance(state, dict) else {}


def state_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an optimizer keeps, for all its parameters."""
    for kept in list(state_of(optimizer).values()):
        for value in kept.values() if isinstance(kept, dict) else (kept,):
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, (dict, list, tuple)):
                yield from nested_tensors(value)


def parameters_of(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters that an optimizer updates, over all ranks where they are dealt out."""
    for group in getattr(optimizer, "param_groups", None) or ():
        yield from group["params"]


def state_key(optimizer: Any) -> tuple[int, int, int]:
    """Return a cheap value that changes when states appear, vanish or are loaded, or a group is added."""
    inner = innermost(optimizer)
    state = getattr(inner, "state", None)
    if not isinstance(state, dict):
        state = _NO_STATE
    size = 0
    for group in getattr(inner, "param_groups", None) or ():
        size += len(group["params"])
    return id(state), len(state), size


def class_name(optimizer: Any) -> tuple[str, str]:
    """Return (class, package) whose rule holds: a subclass that inherits ``step`` keeps the same."""
    cls: Any = type(innermost(optimizer))
    bases: list[Any] = [b for b in cls.__mro__ if b.__module__.startswith("torch.optim") and b is not Optimizer]
    if bases and (bases[0] is cls or inspect.unwrap(cls.step) is inspect.unwrap(bases[0].step)):
        return bases[0].__name__, "torch"
    return cls.__name__, cls.__module__.partition(".")[0]


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name as the budget has it, e.g. ``float32``."""
    return str(dtype).removeprefix("torch.")


def seen_states(optimizer: Any) -> tuple[State, ...]:
    """Return the states of a live optimizer as a list that holds for each of its parameters."""
    found: dict[str, State] = {}
    others: dict[str, int] = {}
    for parameter, kept in list(state_of(optimizer).items()):
        if not isinstance(parameter, torch.Tensor) or not isinstance(kept, dict):
            continue
        for name, value in kept.items():
            if isinstance(value, torch.Tensor):
                _note_state(found, others, str(name), value, parameter)
    for name, size in others.items():
        found[name] = State(name=name, like="other", bytes=size)
    return tuple(found.values())


def _note_state(
    found: dict[str, State], others: dict[str, int], name: str, value: torch.Tensor, parameter: torch.Tensor
) -> None:
    if name not in others and name in found and found[name].like == _like(value, parameter):
        return
    like = _like(value, parameter)
    if name in found or name in others or like == "other":
        others[name] = others.get(name, 0) + sum(t.numel() * t.element_size() for t in plain_tensors(value))
        return
    same = value.dtype == parameter.dtype
    found[name] = State(
        name=name,
        like=like,
        dtype=None if same else dtype_name(value.dtype),
        on_device=value.device.type == parameter.device.type,
    )


def _like(value: torch.Tensor, parameter: torch.Tensor) -> str:
    if value.numel() == parameter.numel() and value.dim() == parameter.dim():
        return "parameter"
    return "scalar" if value.dim() == 0 else "other"


def _options(optimizer: Any, group: dict[str, Any], package: str) -> dict[str, bool | float | str]:
    options: dict[str, bool | float | str] = {}
    for name in _OPTIONS:
        value = group.get(name)
        if isinstance(value, (bool, int, float, str)) and value:
            options[name] = value
    if package != "torch":
        options["package"] = package
    if torch.get_default_dtype() == torch.float64:
        options["default_dtype"] = "float64"
    return options


def describe(optimizers: Sequence[Any]) -> tuple[OptimizerPlan, tuple[OptimizerPlan, ...]]:
    """Return the first optimizer's plan, and one plan for each parameter group when they are not alike."""
    plans: list[OptimizerPlan] = []
    for optimizer in optimizers:
        name, package = class_name(optimizer)
        states = seen_states(optimizer)
        for group in getattr(optimizer, "param_groups", None) or ():
            options = _options(optimizer, group, package)
            plans.append(OptimizerPlan(name=name, count=len(optimizers), options=options, states=states))
    if not plans:
        return OptimizerPlan(), ()
    alike = all((p.name, p.options, p.states) == (plans[0].name, plans[0].options, plans[0].states) for p in plans)
    return plans[0], () if alike else tuple(plans)
