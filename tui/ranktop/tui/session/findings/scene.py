"""What a rule looks at: the job as it is now, in peer groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ranktop.tui.session.findings.groups import Group, peer_groups
from ranktop.tui.session.findings.limits import DEFAULTS, Limits

if TYPE_CHECKING:
    from ranktop.tui.session.state import Snapshot

Key = tuple[str, str, tuple[int, ...]]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scene:
    """One job at one time. Rules read it and change nothing."""

    snapshot: Snapshot
    groups: tuple[Group, ...]
    standing: frozenset[Key] = field(default_factory=frozenset)
    """Keys of the findings of the last look: a rule may ask less of one that stands, so that it does not flicker."""
    memory: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What a rule has worked out at earlier looks and need not work out again; it says the same with an empty one."""
    worked_out: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What several rules need and one has worked out (``once``)."""
    limits: Limits = DEFAULTS
    """From where on things are told."""

    @property
    def now(self) -> float:
        """Seconds on the session's clock."""
        return self.snapshot.now

    def once(self, name: str, work_out: Callable[[Scene], T]) -> T:
        """Return what ``work_out`` makes of this scene; it is asked once, whichever rule comes first."""
        if name not in self.worked_out:
            self.worked_out[name] = work_out(self)
        return cast("T", self.worked_out[name])

    def stands(self, rule: str, subject: str, ranks: tuple[int, ...]) -> bool:
        """Tell whether this finding was there at the last look."""
        return (rule, subject, ranks) in self.standing


def scene(
    snapshot: Snapshot,
    standing: frozenset[Key] = frozenset(),
    memory: dict[str, Any] | None = None,
    limits: Limits = DEFAULTS,
) -> Scene:
    """Return the scene of a snapshot."""
    known = {} if memory is None else memory
    return Scene(snapshot, peer_groups(snapshot.ranks), standing, known, limits=limits)
