"""The limits of the rules that a person may change, and those in force: ``[findings]`` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ranktop.tui.session.findings.finding import SEVERITIES

MIB: Final = 1024**2

RULE_NAMES: Final = (
    "death", "restart", "silent", "missing", "node", "versions", "device", "throttle", "strays", "hang", "pause",
    "straggler", "tokens", "loss", "memory", "growth", "fragmentation", "unsharded", "no_sync", "checkpointing",
    "offload", "forecast", "oom",
)  # fmt: skip
"""The names of the rules (``rules.RULES``), for those who do not need the rules themselves."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One number of a rule."""

    rule: str
    key: str
    default: float
    unit: str
    """``s``, ``B``, ``steps``, ``times``; ``share``: a part of one."""
    low: float
    high: float
    words: str

    @property
    def name(self) -> str:
        """How it is told: ``straggler.min_share``."""
        return f"{self.rule}.{self.key}"

    @property
    def whole(self) -> bool:
        """Whether it counts something."""
        return self.unit in ("B", "steps", "times")

    def shown(self, value: float) -> str:
        """Write a value of it with its unit."""
        if self.unit == "B":
            return f"{value / MIB:.6g} MiB"
        return f"{100 * value:.4g} %" if self.unit == "share" else f"{value:.6g} {self.unit}"


LIMITS: Final = (
    Limit("restart", "warning_from", 2, "times", 1, 1000, "restarts from which on one of unknown cause is a warning"),
    Limit("silent", "min_seconds", 3.0, "s", 1, 3600, "silence that is told at all"),
    Limit("silent", "warning_seconds", 10.0, "s", 1, 86400, "silence that is a warning"),
    Limit("missing", "patience", 60.0, "s", 1, 86400, "time that ranks may start later than the first"),
    Limit("node", "patience", 30.0, "s", 1, 86400, "time that a node has to answer for the first time"),
    Limit("throttle", "below_max", 0.95, "share", 0.1, 1, "share of the highest SM clock below which it is held down"),
    Limit("throttle", "below_peers", 0.97, "share", 0.1, 1, "... and of its peers' median SM clock"),
    Limit("hang", "alone_warning", 30.0, "s", 1, 86400, "stand of ranks for which nobody waits, that is a warning"),
    Limit("hang", "alone_critical", 60.0, "s", 1, 86400, "... that is critical"),
    Limit("pause", "warning_seconds", 1800.0, "s", 1, 604800, "known pause that is a warning"),
    Limit("straggler", "min_share", 0.04, "share", 0.01, 1, "more own work, as a share of the step, that is told"),
    Limit("straggler", "min_share_of_few", 0.08, "share", 0.01, 1,
          "... among two or three ranks; twice that where they wait for CPUs"),
    Limit("straggler", "min_slowdown", 0.2, "share", 0.05, 10, "how much slower than before a whole job is told"),
    Limit("tokens", "min_share", 0.2, "share", 0.02, 0.9, "more or fewer tokens than its peers that are told"),
    Limit("memory", "min_bytes", 8 * MIB, "B", 0, 2**40, "difference to its peers that is told"),
    Limit("memory", "min_bytes_host", 16 * MIB, "B", 0, 2**40, "... of a rank on a host"),
    Limit("memory", "min_share", 0.015, "share", 0, 1, "... as a share of what the process holds"),
    Limit("memory", "min_share_of_category", 0.05, "share", 0, 10, "... as a share of the category"),
    Limit("memory", "min_share_of_few", 0.25, "share", 0, 10, "... of the category among two or three ranks"),
    Limit("growth", "min_bytes", 8 * MIB, "B", 0, 2**40, "growth that is told"),
    Limit("growth", "min_bytes_host", 16 * MIB, "B", 0, 2**40, "... of a rank on a host"),
    Limit("growth", "critical_steps", 100, "steps", 1, 10**9, "steps before the memory is full that are critical"),
    Limit("growth", "critical_seconds", 600.0, "s", 1, 604800, "time before the memory is full that is critical"),
    Limit("fragmentation", "min_share", 0.05, "share", 0.001, 1,
          "reserved and unused, as a share of the device, while allocations are retried"),
    Limit("no_sync", "warning_share", 0.05, "share", 0, 1, "whole gradients, as a share of the device, that warn"),
    Limit("checkpointing", "near", 0.15, "share", 0.01, 0.9,
          "how near activations are to those without checkpointing"),
    Limit("offload", "min_share", 0.5, "share", 0.01, 1, "share of what should be away that is still there"),
)  # fmt: skip
"""What a person may change: the numbers that decide whether something is told, not those of the statistics."""

BY_NAME: Final = {limit.name: limit for limit in LIMITS}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in force: the defaults but for what was changed."""

    changed: Mapping[str, float] = field(default_factory=dict)
    """``rule.key`` -> value, of those that differ from the default."""
    off: frozenset[str] = frozenset()
    """Rules whose findings are not told."""
    floors: Mapping[str, str] = field(default_factory=dict)
    """Rule -> severity below which its findings are not told."""

    def __getitem__(self, name: str) -> float:
        """Return a limit by ``rule.key``; KeyError for a name that there is not."""
        limit = BY_NAME[name]
        return self.changed.get(name, limit.default)

    def tells(self, rule: str, severity: str) -> bool:
        """Whether a person wants to know of such findings."""
        floor = self.floors.get(rule, SEVERITIES[0])
        return rule not in self.off and SEVERITIES.index(severity) >= SEVERITIES.index(floor)

    def of(self, rule: str) -> tuple[tuple[Limit, float], ...]:
        """Return the changed limits of a rule with their values."""
        return tuple((BY_NAME[name], value) for name, value in self.changed.items() if BY_NAME[name].rule == rule)

    def left_out(self) -> list[str]:
        """Say in one line what is not told by a person's own wish; no line where that is nothing."""
        parts = [", ".join(rule for rule in RULE_NAMES if rule in self.off)] if self.off else []
        parts += [f"{rule} below {severity}" for rule, severity in self.floors.items()]
        return [f"not told, by the configuration here: {'; '.join(parts)}"] if parts else []


DEFAULTS: Final = Limits()

_in_force: Limits = DEFAULTS


def use(limits: Limits) -> None:
    """Let every session that begins from now on in this process judge by these limits."""
    global _in_force
    _in_force = limits


def in_force() -> Limits:
    """Return the limits of this process: the defaults until the command line has read the configuration."""
    return _in_force
