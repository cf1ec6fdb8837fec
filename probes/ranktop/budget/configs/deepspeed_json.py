"""DeepSpeed's JSON as text: parsed with the place of a mistake, and read key by key with a record of unknown ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranktop.budget.configs.setup import DoubleKeyError, nearest, shown, without_doubles
from ranktop.budget.model import BadInput

AUTO: Final = "auto"
"""What Hugging Face's integration replaces by the trainer's own value."""

_STRING: Final = r'"(?:\\.|[^"\\\n])*"'
_LENIENT: Final = re.compile(rf"({_STRING})|//[^\n]*|#[^\n]*|/\*.*?\*/|,(?=\s*[}}\]])", re.DOTALL)
"""What hjson, which DeepSpeed reads its config with, allows beyond JSON: comments, a comma before a bracket."""


def parse(text: str, where: str = "DeepSpeed config") -> dict[str, Any]:
    """Return the object that a JSON text holds; comments and trailing commas are let pass as DeepSpeed does.

    Raises BadInput with line and column.
    """
    try:
        found = _load(text, where)
    except json.JSONDecodeError as error:
        try:
            found = _load(_LENIENT.sub(_blank, text), where)
        except json.JSONDecodeError:
            what = "the file is empty" if not text.strip() else error.msg
            raise BadInput(f"{where}: invalid JSON at line {error.lineno} column {error.colno}: {what}") from None
    except (RecursionError, ValueError):
        raise BadInput(f"{where}: invalid JSON: nested too deeply, or a number too long") from None
    if not isinstance(found, dict):
        raise BadInput(f"{where} holds {_kind(found)}; a DeepSpeed config is a JSON object, as in {{...}}")
    return found


def _load(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=without_doubles)
    except DoubleKeyError as double:
        raise BadInput(
            f"DeepSpeed config: the key {str(double)!r} stands there twice, which DeepSpeed refuses"
        ) from None


def _blank(match: re.Match[str]) -> str:
    """Keep strings; replace what is left out by blanks, so that places stay as they are."""
    return match.group(1) or re.sub(r"[^\n]", " ", match.group(0))


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


class Section:
    """One object of the config: typed access with DeepSpeed's tolerance, and a record of what nobody asked for."""

    def __init__(self, data: Mapping[str, Any], where: str, path: str = "") -> None:
        self.data, self.where, self.path = data, where, path
        self._asked: set[str] = set()
        self.children: dict[str, Section] = {}

    def name(self, key: str) -> str:
        """Return the dotted path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, *keys: str) -> Any:
        """Return the first value that is given, None without; several keys are spellings of one."""
        self._asked.update(keys)
        return next((self.data[key] for key in keys if self.data.get(key) is not None), None)

    def known(self, *keys: str) -> None:
        """Mark keys as known although nothing here needs them."""
        self._asked.update(keys)

    def section(self, key: str) -> Section:
        """Return an object of this one, empty when it is missing or null. Raises BadInput."""
        if key in self.children:
            return self.children[key]
        value = self.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise BadInput(f"{self.where}: {self.name(key)} must be an object, as in {{...}}, not {shown(value)}")
        child = Section(value, self.where, self.name(key))
        self.children[key] = child
        return child

    def is_auto(self, *keys: str) -> bool:
        """Say whether a value is left to the trainer."""
        return isinstance(value := self.get(*keys), str) and value.strip().lower() == AUTO

    def whole(self, *keys: str, least: int = 0) -> int | None:
        """Return a whole number, also from ``5e8`` or ``"5e8"``; None when missing or ``auto``. Raises BadInput."""
        value = self.get(*keys)
        if value is None or self.is_auto(*keys):
            return None
        number = _number(value)
        if number is None or number != int(number) or number < least:
            raise BadInput(
                f"{self.where}: {self._spelled(keys)} must be a whole number from {least} on, not {shown(value)}"
            )
        return int(number)

    def number(self, *keys: str) -> float | None:
        """Return a number; None when missing or ``auto``. Raises BadInput."""
        value = self.get(*keys)
        if value is None or self.is_auto(*keys):
            return None
        number = _number(value)
        if number is None:
            raise BadInput(f"{self.where}: {self._spelled(keys)} must be a number, not {shown(value)}")
        return number

    def flag(self, *keys: str) -> bool | None:
        """Return true or false; None when missing or ``auto``. Raises BadInput."""
        value = self.get(*keys)
        if value is None or self.is_auto(*keys):
            return None
        words = {
            "true": True,
            "1": True,
            "yes": True,
            "on": True,
            "false": False,
            "0": False,
            "no": False,
            "off": False,
        }
        found = words.get(str(value).strip().lower())
        if found is None:
            raise BadInput(f"{self.where}: {self._spelled(keys)} must be true or false, not {shown(value)}")
        return found

    def word(self, *keys: str, among: Sequence[str]) -> str | None:
        """Return one of some words; None when missing or ``auto``. Raises BadInput with the nearest."""
        value = self.get(*keys)
        if value is None or self.is_auto(*keys):
            return None
        found = str(value).strip().lower()
        if found not in among:
            raise BadInput(f"{self.where}: {self._spelled(keys)} {shown(value)} is not known{nearest(found, among)}")
        return found

    def unknown(self) -> tuple[str, ...]:
        """Return the dotted paths that nothing has asked for, in this object and those below it."""
        here = tuple(self.name(key) for key in self.data if key not in self._asked)
        return here + tuple(path for child in self.children.values() for path in child.unknown())

    def _spelled(self, keys: Sequence[str]) -> str:
        return self.name(next((key for key in keys if self.data.get(key) is not None), keys[0]))


def _number(value: object) -> float | int | None:
    """Return a finite number, whole ones exactly; None for what is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(value) if isinstance(value, float | str) else None
    except ValueError:
        return None
    if number is None or number != number or number in (float("inf"), float("-inf")):
        return None
    return int(number) if number == int(number) else number
