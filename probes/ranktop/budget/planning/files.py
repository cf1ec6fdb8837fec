"""Files that users name, read once: each complaint names the flag, the file and the place in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ranktop.budget.configs.setup import DoubleKeyError, without_doubles
from ranktop.budget.model import BadInput

LARGEST: Final = 16 << 20
"""Bytes of a config file; what is larger is another kind of file."""


def text_of(flag: str, path: Path) -> str:
    """Return the text of a file. Raises BadInput."""
    name = shown(path)
    try:
        if path.is_dir():
            raise BadInput(f"{flag} {name} is a directory; name the file in it")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise BadInput(f"{flag} {name}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"{flag} {name} cannot be read: {reason.lower()}") from None
    if len(data) > LARGEST:
        raise BadInput(f"{flag} {name} is larger than {LARGEST >> 20} MiB; that is not a config file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{flag} {name} is not text: byte {error.start} is not UTF-8") from None


def json_of(flag: str, path: Path) -> Mapping[str, Any]:
    """Return the object of a JSON file. Raises BadInput with line and column."""
    text = text_of(flag, path)
    try:
        found = json.loads(text, object_pairs_hook=without_doubles)
    except json.JSONDecodeError as error:
        what = "the file is empty" if not text.strip() else error.msg
        raise BadInput(
            f"{flag} {shown(path)}: invalid JSON at line {error.lineno} column {error.colno}: {what}"
        ) from None
    except DoubleKeyError as error:
        raise BadInput(f"{flag} {shown(path)}: {str(error)!r} stands there twice") from None
    except (RecursionError, ValueError):
        raise BadInput(f"{flag} {shown(path)}: invalid JSON: nested too deeply, or a number too long") from None
    return _mapping(flag, path, found, "a JSON object, as in {...}")


def yaml_of(flag: str, path: Path) -> Mapping[str, Any]:
    """Return the mapping of a YAML file. Raises BadInput with line and column."""
    import yaml

    text = text_of(flag, path)
    try:
        found = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise BadInput(f"{flag} {shown(path)}: invalid YAML{place}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInput(f"{flag} {shown(path)}: invalid YAML: {' '.join(str(error).split())}") from None
    return _mapping(flag, path, found, "keys with values")


def toml_of(flag: str, path: Path) -> Mapping[str, Any]:
    """Return the table of a TOML file. Raises BadInput with line and column."""
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return _mapping(flag, path, toml.loads(text_of(flag, path)), "keys with values")
    except toml.TOMLDecodeError as error:
        raise BadInput(f"{flag} {shown(path)}: invalid TOML: {error}") from None
    except RecursionError:
        raise BadInput(f"{flag} {shown(path)}: invalid TOML: nested too deeply") from None


def _mapping(flag: str, path: Path, found: object, wanted: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise BadInput(f"{flag} {shown(path)} holds {kind}; it must hold {wanted}")
    strange = next((key for key in found if not isinstance(key, str)), None)
    if strange is not None:
        raise BadInput(f"{flag} {shown(path)}: the key {strange!r} is not a text")
    return found


def shown(path: Path) -> str:
    """Return a path as one printable line."""
    return "".join(c if c.isprintable() else "?" for c in str(path))
