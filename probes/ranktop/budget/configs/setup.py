"""What a config file says of how a job is distributed, and how its values are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ranktop.budget.model import BadInput
from ranktop.budget.plan import Fsdp


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A training run as a launcher's config describes it; None = it leaves that open."""

    strategy: str = ""
    """One of ``run.STRATEGIES``; empty when the config does not decide it."""
    fsdp: Fsdp | None = None
    deepspeed: dict[str, Any] | None = None
    """DeepSpeed's own config, as the launcher would hand it over."""
    deepspeed_file: str = ""
    """Path of a DeepSpeed JSON that the config points to."""
    precision: str | None = None
    """One of ``run.PRECISIONS``."""
    world_size: int | None = None
    nodes: int | None = None
    data: int | None = None
    replicate: int | None = None
    """Replicas of a sharded model (hybrid sharding)."""
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    micro_batch: int | None = None
    sequence_length: int | None = None
    accumulation: int | None = None
    """Forwards per optimizer step; the micro-batches of a pipeline."""
    checkpointing: str | None = None
    sequence_parallel: str = ""
    stack: str = ""
    unknown: tuple[str, ...] = ()
    """Keys that are not known, with their section."""
    notes: tuple[str, ...] = ()
    """What makes no difference, or is not what it looks like; one line each."""

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs of one node, when both numbers are known."""
        return None if self.world_size is None or not self.nodes else self.world_size // self.nodes


class Section:
    """One mapping of a config: typed access, and a record of what nobody has asked for."""

    def __init__(self, data: object, where: str, name: str = "", prefix: str = "") -> None:
        self.where = f"{where}: {name}" if name else where
        if data is None:
            data = {}
        if not isinstance(data, Mapping):
            raise BadInput(f"{self.where} must be a mapping, not {shown(data)}")
        self.name = name
        self.prefix = prefix
        self.values: dict[str, Any] = {str(key).removeprefix(prefix): value for key, value in data.items()}
        self._spelled = {str(key).removeprefix(prefix): str(key) for key in data}
        self._asked: set[str] = set()

    def has(self, key: str) -> bool:
        """Say whether a key is given and not null."""
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """Return a value as it stands, None when it is not given."""
        self._asked.add(key)
        return self.values.get(key)

    def passed_over(self, *keys: str) -> None:
        """Mark keys as known although they change no bytes."""
        self._asked.update(keys)

    def unknown(self) -> tuple[str, ...]:
        """Return the keys that nothing has asked for."""
        place = f"{self.name}." if self.name else ""
        return tuple(f"{place}{spelled}" for key, spelled in self._spelled.items() if key not in self._asked)

    def whole(self, key: str, least: int = 1) -> int | None:
        """Return a whole number of at least ``least``; None when not given or ``auto``. Raises BadInput."""
        value = self.get(key)
        if value is None or value == "auto":
            return None
        if isinstance(value, str) and value.strip().lstrip("-").isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadInput(f"{self.where}: {self.prefix}{key} must be a whole number from {least} on, not {value!r}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return yes or no, as YAML or a string says it. Raises BadInput."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "": False}
        found = words.get(str(value).strip().lower())
        if found is None:
            raise BadInput(f"{self.where}: {self.prefix}{key} must be true or false, not {value!r}")
        return found

    def word(self, key: str, among: Sequence[str], default: str = "") -> str:
        """Return one of some words, whatever its case. Raises BadInput with the nearest ones."""
        value = self.get(key)
        if value is None:
            return default
        by_lower = {word.lower(): word for word in among}
        found = by_lower.get(str(value).strip().lower())
        if found is None:
            raise BadInput(f"{self.where}: {self.prefix}{key} {value!r} is not known{nearest(str(value), among)}")
        return found


def nearest(word: str, among: Sequence[str]) -> str:
    """Return ``; did you mean ...?``, or all words when none is near."""
    by_lower = {each.lower(): each for each in among}
    close = get_close_matches(word.lower(), by_lower, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(by_lower[each] for each in close)}?"
    return f"; there are {', '.join(among)}"


def shown(value: object) -> str:
    """Return a value for a complaint, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


class DoubleKeyError(Exception):
    """A key stands twice in one object; its only argument."""


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice (``object_pairs_hook``), as DeepSpeed does: one would be ignored silently."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DoubleKeyError(key)
        found[key] = value
    return found
