"""One fault, one finding: leaves out what another finding explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.terms import STATES
from ranktop.tui.session.findings.death import lost_peer, told_to_go
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene

Holds = Callable[[Finding, Finding, Scene], bool]
"""(what explains, what is explained, where) -> whether it does."""

MOST_TAKEN: Final = 8
"""Facts that a finding takes over from those that it explains."""

AT_ONCE: Final = 10.0
"""Seconds that may lie between the last step of a job and the rank that ran out of memory in the next."""

DYING: Final = 60.0
"""Seconds that a rank may take to end after it ran out of memory."""


def unexplained(found: Sequence[Finding], scene: Scene) -> list[Finding]:
    """Return the findings that no other one of them explains, with what they have of those as evidence."""
    by_rule: dict[str, list[int]] = {}
    for number, one in enumerate(found):
        by_rule.setdefault(one.rule, []).append(number)
    reasons = {number: reason for number, one in enumerate(found) if (reason := _reason(one, found, by_rule, scene))}
    told = list(found)
    for number, (by, link) in reasons.items():
        root = _root(by, reasons) if link.told else None
        if root is not None:
            told[root] = _with(told[root], found[number], link)
    return [one for number, one in enumerate(told) if number not in reasons]


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of finding that explains others."""

    by: str
    """Rule of what explains."""
    of: tuple[str, ...]
    """Rules of what it explains."""
    when: Holds
    told: str = ""
    """Under which name the explained one's sentence becomes evidence; empty: it does not."""
    evidence: bool = False
    """Its evidence goes along."""
    raises: bool = False
    """What explains it is as grave as it."""


def _anywhere(by: Finding, of: Finding, scene: Scene) -> bool:
    return True


def _gone(by: Finding, of: Finding, scene: Scene) -> bool:
    """A rank that ran out of memory and lives explains only what began with it: it may have coped."""
    if by.severity != "critical":
        return False
    views = [scene.snapshot.rank(rank) for rank in by.ranks]
    if any(view is not None and view.end is not None for view in views):
        return True
    return by.since is not None and of.since is not None and by.since >= of.since - AT_ONCE


def _told_to_end(by: Finding, of: Finding, scene: Scene) -> bool:
    return by.severity in ("critical", "info")


def _lost_with_it(by: Finding, of: Finding, scene: Scene) -> bool:
    """The death of ranks that only lost a peer: the one on the node that is out of reach."""
    ends = [view.end for rank in of.ranks if (view := scene.snapshot.rank(rank)) is not None and view.end is not None]
    return bool(by.ranks) and bool(ends) and all(lost_peer(end) or told_to_go(end) for end in ends)


def _waits_for_it(by: Finding, of: Finding, scene: Scene) -> bool:
    """A job that stands since a node went out of reach waits for that node, as far as can be seen."""
    if of.subject == "stopped":
        return False
    return by.since is None or of.since is None or of.since >= by.since - DYING


def _same_ranks(by: Finding, of: Finding, scene: Scene) -> bool:
    return bool(of.ranks) and set(of.ranks) <= set(by.ranks)


def _its_death(by: Finding, of: Finding, scene: Scene) -> bool:
    """The death that followed: of the same rank, or of one that only lost its peer."""
    if by.severity != "critical" or of.severity != "critical":
        return False
    if by.since is not None and of.since is not None and of.since - by.since > DYING:
        return False
    ends = [view.end for rank in of.ranks if (view := scene.snapshot.rank(rank)) is not None and view.end is not None]
    return _same_ranks(by, of, scene) or (bool(ends) and all(lost_peer(end) or told_to_go(end) for end in ends))


def _beside(by: Finding, of: Finding, scene: Scene) -> bool:
    """Some ranks pause while others wait: those are no stragglers. Where all pause, who was slow before still is."""
    if not of.ranks:
        return True
    everyone = sum(view.sample is not None for view in scene.snapshot.ranks)
    return len(by.ranks) < everyone and _same_ranks(by, of, scene)


def _not_begun(by: Finding, of: Finding, scene: Scene) -> bool:
    """A job that stands before its first step waits for the ranks that never came."""
    return by.severity == "warning" and not of.step


def _kept(by: Finding, of: Finding, scene: Scene) -> bool:
    return of.subject in (by.subject, "kept") and _same_ranks(by, of, scene)


def _same_subject(by: Finding, of: Finding, scene: Scene) -> bool:
    return by.subject == of.subject and _same_ranks(by, of, scene)


def _of(*categories: str) -> Holds:
    def holds(by: Finding, of: Finding, scene: Scene) -> bool:
        return of.subject in categories and _same_ranks(by, of, scene)

    return holds


def _states_of_group(by: Finding, of: Finding, scene: Scene) -> bool:
    if by.severity == "info":
        return False
    group = {*by.ranks, *by.peers}
    return of.subject in (*STATES, "buffers", "kept") and bool(of.ranks) and set(of.ranks) <= group


def _cause(by: Finding, of: Finding, scene: Scene) -> bool:
    """A straggler explains what it names as its cause, and nothing that merely is there as well."""
    return _same_ranks(by, of, scene) and (
        by.subject == of.rule or any(fact.name == "cause" and of.rule in str(fact.value) for fact in by.evidence)
    )


def _names_it(by: Finding, of: Finding, scene: Scene) -> bool:
    """A hang of which the rank with the lost device is named, or nobody."""
    return by.subject in ("lost", "reset required") and (not of.ranks or bool(set(of.ranks) & set(by.ranks)))


def _its_own(by: Finding, of: Finding, scene: Scene) -> bool:
    return by.subject in ("lost", "reset required") and _same_ranks(by, of, scene)


LINKS: Final = (
    Link("oom", ("death",), _its_death, "how it ended", evidence=True),
    Link("oom", ("forecast", "fragmentation"), _same_ranks, "foreseen"),
    Link("oom", ("hang", "pause", "straggler", "silent", "missing"), _gone),
    Link("death", ("hang", "pause", "straggler", "silent", "missing"), _told_to_end),
    Link("death", ("forecast",), _same_ranks),
    Link("device", ("hang", "pause"), _names_it, "since then"),
    Link("device", ("throttle", "straggler", "silent"), _its_own),
    Link("node", ("death",), _lost_with_it, "then", evidence=True, raises=True),
    Link("node", ("hang", "pause"), _waits_for_it, "since then", raises=True),
    Link("missing", ("hang",), _not_begun, "since then", raises=True),
    Link("pause", ("hang",), _anywhere),
    Link("pause", ("straggler",), _beside),
    Link("hang", ("silent",), _same_ranks, "its process", evidence=True),
    Link("hang", ("straggler",), _anywhere),
    Link("silent", ("straggler",), _same_ranks),
    Link("straggler", ("tokens", "throttle"), _cause, "because", evidence=True),
    Link("tokens", ("memory",), _of("activations"), "therefore"),
    Link("growth", ("memory",), _kept, "by now"),
    Link("unsharded", ("memory",), _states_of_group, "therefore"),
    Link("no_sync", ("memory",), _of("gradients"), "therefore"),
    Link("checkpointing", ("memory",), _of("activations"), "therefore"),
    Link("offload", ("memory",), _same_subject, "therefore"),
    Link("fragmentation", ("memory",), _of("cache"), "therefore"),
    Link("strays", ("memory",), _of("other", "runtime"), "therefore"),
)
"""Asked in this order; the first that holds is the reason."""


def _reason(
    one: Finding, found: Sequence[Finding], by_rule: dict[str, list[int]], scene: Scene
) -> tuple[int, Link] | None:
    for link in LINKS:
        if one.rule not in link.of:
            continue
        for number in by_rule.get(link.by, ()):
            if link.when(found[number], one, scene):
                return number, link
    return None


def _root(number: int, reasons: dict[int, tuple[int, Link]]) -> int | None:
    """Return the finding at the end of a chain of reasons; None should they ever go round."""
    for _ in range(len(LINKS)):
        if number not in reasons:
            return number
        number = reasons[number][0]
    return None


def _with(one: Finding, explained: Finding, link: Link) -> Finding:
    """Return a finding with what it takes over from another one that it explains."""
    facts = [Evidence(link.told, explained.sentence), *(explained.evidence if link.evidence else ())]
    added = [fact for fact in facts[: MOST_TAKEN + 1] if fact not in one.evidence]
    graver = link.raises and explained.gravity > one.gravity
    severity = explained.severity if graver else one.severity
    return replace(one, evidence=(*one.evidence, *added), severity=severity)
