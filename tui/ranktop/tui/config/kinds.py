"""What a setting may be: how its value is read from a variable's text and from TOML, and how it is written."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")


def nearest(word: str, known: Sequence[str]) -> str:
    """Return ``; did you mean X?`` for the known name that is most like a word, nothing where none is."""
    import difflib  # only where something is wrong: it takes longer to load than a file to read

    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def form(self) -> str:
        """What it takes, for people."""
        return ", ".join(self.words)

    def from_text(self, text: str) -> Any:
        """Read a variable; ValueError says what is wrong."""
        if text not in self.words:
            raise ValueError(f"{text!r} is none of {self.form}{nearest(text, self.words)}")
        return text

    def from_toml(self, value: object) -> Any:
        """Read a value of the file; ValueError."""
        if not isinstance(value, str):
            raise ValueError(f"must be one of {self.form}, in quotes")
        return self.from_text(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false; or left to the program where ``auto`` is."""

    auto: bool = False

    @property
    def form(self) -> str:
        """What it takes, for people."""
        return 'true, false or "auto"' if self.auto else "true or false"

    def from_text(self, text: str) -> Any:
        """Read a variable; ValueError says what is wrong."""
        word = text.strip().lower()
        if self.auto and word == "auto":
            return word
        if word not in (*_ON, *_OFF):
            raise ValueError(f"{text!r} is none of {', '.join((*_ON, *_OFF, *(('auto',) if self.auto else ())))}")
        return word in _ON

    def from_toml(self, value: object) -> Any:
        """Read a value of the file; ValueError."""
        if isinstance(value, bool) or (self.auto and value == "auto"):
            return value
        raise ValueError(f"must be {self.form}")


@dataclass(frozen=True, slots=True)
class Number:
    """A number between two others."""

    low: float
    high: float
    whole: bool = False

    @property
    def form(self) -> str:
        """What it takes, for people."""
        return f"a {'whole ' if self.whole else ''}number from {self.low:g} to {self.high:.15g}"

    def from_text(self, text: str) -> Any:
        """Read a variable; ValueError says what is wrong."""
        try:
            number: float = int(text) if self.whole else float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {self.form}") from None
        return self.from_toml(number)

    def from_toml(self, value: object) -> Any:
        """Read a value of the file; ValueError."""
        kinds = (int,) if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.low <= value <= self.high:
            raise ValueError(f"{value!r} is not {self.form}")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """Words; nothing stands for none."""

    form: str = ""

    def from_text(self, text: str) -> Any:
        """Read a variable; ValueError says what is wrong."""
        if any(not letter.isprintable() for letter in text):
            raise ValueError("must be printable text in one line")
        return text

    def from_toml(self, value: object) -> Any:
        """Read a value of the file; ValueError."""
        if not isinstance(value, str):
            raise ValueError("must be text in quotes")
        return self.from_text(value)


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of words; a variable holds them as a shell would read them."""

    form: str = ""

    def from_text(self, text: str) -> Any:
        """Read a variable; ValueError says what is wrong."""
        return [Text().from_text(word) for word in shlex.split(text)]

    def from_toml(self, value: object) -> Any:
        """Read a value of the file; ValueError."""
        if not isinstance(value, list):
            raise ValueError("must be a list of texts in quotes")
        return [Text().from_toml(word) for word in value]


Kind = Choice | Switch | Number | Text | Texts


def written(value: object) -> str:
    """Write a value as TOML has it."""
    import json  # strings and lists of them are written alike

    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.15g}"
    return json.dumps(value, ensure_ascii=False)
