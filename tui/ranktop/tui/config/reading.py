"""The file: where it is, what it says, and on which line."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ranktop.tui.config.table import CONFIG

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME: Final = "ranktop.toml"
LARGEST: Final = 64 * 1024
"""Bytes of a file that is read."""

MOST_LINES: Final = 500
"""Lines at the beginning of a file whose numbers are told: to find them takes the square of their count."""

_AT: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class ConfigError(Exception):
    """The configuration cannot be used; its text is one line."""


def place(environ: Mapping[str, str]) -> tuple[Path | None, bool]:
    """Return (file, whether it was asked for): ``RANKTOP_CONFIG``, None for ``off``, else the user's own."""
    named = environ.get(CONFIG, "")
    if named.strip().lower() == "off":
        return None, True
    if named:
        return Path(os.path.abspath(os.path.expanduser(named))), True
    import platformdirs

    return Path(platformdirs.user_config_dir("ranktop", appauthor=False)) / NAME, False


class File:
    """What a file says; nothing for one that is not there."""

    def __init__(self, path: Path | None, *, asked: bool = False) -> None:
        """ConfigError for one that can't be read or is no TOML; one that was ``asked`` for must be there."""
        self.path = path
        self.there = False
        self._text = ""
        if path is None:
            self.content: dict[str, Any] = {}
            return
        self._text = self._read(path, asked)
        try:
            self.content = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(self._located(str(error))) from None
        except RecursionError:
            raise ConfigError(f"{path}: nested deeper than any configuration is") from None
        except ValueError as error:  # a number of more digits than Python reads
            raise ConfigError(f"{path}: not TOML: {str(error).partition(';')[0]}") from None

    def _read(self, path: Path, asked: bool) -> str:
        try:
            if path.exists() and not path.is_file():
                raise ConfigError(f"{path}: not a file")
            with path.open("rb") as opened:
                if os.fstat(opened.fileno()).st_mode & stat.S_IWOTH:
                    raise ConfigError(f"{path}: everybody can write it, and it may name commands: chmod o-w it")
                data = opened.read(LARGEST + 1)
        except FileNotFoundError:
            if asked:
                raise ConfigError(f"{path}: no such file, but {CONFIG} names it") from None
            return ""
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        self.there = True
        if len(data) > LARGEST:
            raise ConfigError(f"{path}: larger than {LARGEST} bytes, which no configuration is")
        try:
            return data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{path}:{line}: not UTF-8") from None

    def _located(self, text: str) -> str:
        """Put the line of TOML's complaint where editors look for it."""
        found = _AT.search(text)
        words = (text[: found.start()] if found else text).strip()
        line = (found and found[1]) or str(self._text.count("\n") + 1)
        return f"{self.path}:{line}: not TOML: {words}"

    def where(self, *path: str) -> str:
        """Return ``file:line`` of a key or a section, the file alone where the line is not known."""
        line = next((at for known, at in self._lines.items() if known[: len(path)] == path), None)
        return f"{self.path}:{line}" if line else str(self.path)

    @cached_property
    def _lines(self) -> dict[tuple[str, ...], int]:
        """Path of a key -> line on which its statement begins.

        TOML's reader tells no lines: beginnings of the text that are TOML are read until a key is there. It takes
        milliseconds, and is only asked for by errors and ``ranktop config``.
        """
        found: dict[tuple[str, ...], int] = {}
        lines = self._text.split("\n")
        begins: int | None = None
        for number, line in enumerate(lines[:MOST_LINES], 1):
            if begins is None and (not line.strip() or line.lstrip().startswith("#")):
                continue
            begins = number if begins is None else begins
            try:
                paths = _paths(tomllib.loads("\n".join(lines[:number])))
            except (ValueError, RecursionError):
                continue
            for path in paths:
                found.setdefault(path, begins)
            begins = None
        return found


def _paths(content: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for key, value in content.items():
        path = (*above, key)
        found.append(path)
        if isinstance(value, dict):
            found += _paths(value, path)
    return found
