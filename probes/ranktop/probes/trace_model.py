"""Finds the model that a user names, and builds it at a chosen depth."""

from __future__ import annotations

import ast
import copy
import dataclasses
import difflib
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ranktop.budget.model import BadInput

DEPTHS: Final = ("n_layer", "n_layers", "num_layers", "num_hidden_layers", "layers", "depth")
"""Names under which a number of layers is looked for, in this order."""

_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True)
class Recipe:
    """A model that can be built at any depth."""

    name: str
    build: Callable[[int], Any]
    """Depth -> ``torch.nn.Module``."""
    layers: int
    """Depth that the user means; 0 when it is not known."""
    config: Any = None
    """Hugging Face configuration, when that is where the model comes from."""


def load(spec: str) -> Any:
    """Return what ``package.module:attribute`` names; BadInput when there is no such thing."""
    module_name, colon, path = spec.partition(":")
    if not colon or not module_name or not path:
        raise BadInput(f"{spec!r}: write module:attribute, e.g. mypackage.model:build, or name a config.json")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise BadInput(f"cannot import {module_name}: {one_line(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=3)
            hint = f"; it has {', '.join(near)}" if near else ""
            raise BadInput(f"{module_name} has no {path!r}{hint}")
        found = getattr(found, part)
    return found


def one_line(error: BaseException) -> str:
    """Return an exception as ``Type: first line``."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def value_of(text: str) -> Any:
    """Return a command line's value as Python means it: a literal, true/false/none, ``torch.name``, or text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text.startswith("torch."):
        import torch

        return getattr(torch, text[len("torch.") :], text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def arguments(pairs: list[str]) -> dict[str, Any]:
    """Return ``name=value`` pairs as keyword arguments; BadInput for what is no such pair."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise BadInput(f"--arg {pair}: write name=value")
        found[name] = value_of(text)
    return found


def recipe(
    spec: str, given: Mapping[str, Any], depth: str | None = None, layers: int | None = None, config: str | None = None
) -> Recipe:
    """Return how to build the model that ``module:callable`` names.

    ``depth`` is the argument (or the configuration's field) that holds the number of layers, else it is looked for
    among DEPTHS. ``config`` names the class of a configuration object as ``module:Class``; without it the annotation
    of the callable's parameter is taken, or the only such class in its module. Raises BadInput.
    """
    target = load(spec)
    if not callable(target):
        raise BadInput(f"{spec} is a {type(target).__name__}, not a class or function that makes a model")
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError) as error:
        raise BadInput(f"{spec}: {one_line(error)}") from error
    names = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    direct = depth if depth and (depth in names or open_ended) else _first(names) if depth is None else None
    if direct is not None:
        unknown = [] if open_ended else [name for name in given if name not in names]
        if unknown:
            raise BadInput(f"{spec} takes no argument {unknown[0]!r}; it takes {', '.join(names)}")
        default = parameters[direct].default if direct in parameters else None
        return Recipe(
            name=spec,
            build=lambda n: target(**{**given, direct: n}),
            layers=_count(layers, given.get(direct), default),
        )
    return _by_config(spec, target, parameters, given, depth, layers, config)


def _first(names: list[str]) -> str | None:
    return next((name for name in DEPTHS if name in names), None)


def _count(*values: Any) -> int:
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), 0)


def _by_config(
    spec: str,
    target: Any,
    parameters: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    depth: str | None,
    layers: int | None,
    config: str | None,
) -> Recipe:
    """Return the recipe of a callable that takes a configuration object with the depth in it."""
    for name, kind in _config_kinds(target, parameters, given, config):
        fields = _fields(kind)
        field = depth if depth in fields else _first(fields) if depth is None else None
        if field is None:
            continue
        own = {key: value for key, value in given.items() if key in parameters and key != name}
        rest = {key: value for key, value in given.items() if key not in own and key != name}
        unknown = [key for key in rest if key not in fields]
        if unknown:
            raise BadInput(f"{spec}: neither the model nor its {name} takes {unknown[0]!r}; {name} has {_list(fields)}")

        count = _count(layers, rest.get(field), _default(kind, field))
        return Recipe(name=spec, build=_builder(target, own, name, kind, field, rest), layers=count)
    wanted = f"no argument {depth!r}" if depth else "no argument that says how many layers it has"
    has = _list(list(parameters)) or "no arguments"
    raise BadInput(
        f"{spec} has {wanted} ({_list(list(DEPTHS))} are looked for); it takes {has}: name it by --layers-arg"
    )


def _builder(
    target: Any, own: dict[str, Any], name: str, kind: Any, field: str, rest: dict[str, Any]
) -> Callable[[int], Any]:
    return lambda n: target(**own, **{name: _with(kind, {**rest, field: n})})


def _default(kind: Any, field: str) -> Any:
    """Return what a configuration holds in a field when nothing is said."""
    if isinstance(kind, dict):
        return kind.get(field)
    if isinstance(kind, type):
        taken = inspect.signature(kind).parameters.get(field)
        if taken is not None:
            return taken.default
    return getattr(kind, field, None)


def _list(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _config_kinds(
    target: Any, parameters: Mapping[str, inspect.Parameter], given: Mapping[str, Any], config: str | None
) -> list[tuple[str, Any]]:
    """Return (parameter, class or instance) of what may be a configuration object."""
    names = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    try:
        hints = typing.get_type_hints(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
    except Exception:  # annotations may name what exists only for a type checker
        hints = {}
    annotated = [(n, hints[n]) for n in names if isinstance(hints.get(n), type) and _first(_fields(hints[n]))]
    called = [n for n in names if "config" in n or n in ("args", "params", "cfg", "hparams")]
    name = next(iter([*(n for n, _ in annotated), *called, *names]), "config")
    if config is not None:
        return [(name, load(config))]
    if name in given and name in parameters:
        value = given[name]
        return [(name, load(value) if isinstance(value, str) else value)]
    if annotated or not called:
        return annotated
    module = inspect.getmodule(target)
    classes = [c for n, c in vars(module).items() if isinstance(c, type) and n.endswith(("Config", "Args"))]
    return [(name, kind) for kind in classes if _first(_fields(kind))]


def _fields(kind: Any) -> list[str]:
    """Return the names that a configuration class or object has."""
    if kind in (int, float, str, bool, bytes, list, tuple, dict, set):
        return []
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if isinstance(kind, type):
        own = [name for name in vars(kind) if not name.startswith("_")]
        try:
            return [*own, *(name for name in inspect.signature(kind).parameters if name not in own)]
        except (TypeError, ValueError):
            return own
    return list(kind) if isinstance(kind, dict) else [name for name in dir(kind) if not name.startswith("_")]


def _with(kind: Any, values: dict[str, Any]) -> Any:
    """Return a configuration with these values."""
    if isinstance(kind, type):
        accepted = inspect.signature(kind).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        made = kind(**{key: value for key, value in values.items() if anything or key in accepted})
        late = {key: value for key, value in values.items() if not anything and key not in accepted}
    elif dataclasses.is_dataclass(kind):
        return dataclasses.replace(kind, **values)  # type: ignore[type-var]
    elif isinstance(kind, dict):
        return {**kind, **values}
    else:
        made, late = copy.copy(kind), values
    for key, value in late.items():
        setattr(made, key, value)
    return made
