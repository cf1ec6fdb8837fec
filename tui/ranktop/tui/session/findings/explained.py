"""One fault, one finding: leaves out what another finding explains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.terms import STATES
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene

Holds = Callable[[Finding, Finding, Scene], bool]
"""(what explains, what is explained, where) -> whether it does."""

MOST_TAKEN: Final = 8
"""Facts that a finding takes over from those that it explains."""


def unexplained(found: Sequence[Finding], scene: Scene) -> list[Finding]:
    """Return the findings that no other one of them explains, with what they have of those as evidence."""
    by_rule: dict[str, list[int]] = {}
    for number, one in enumerate(found):
        by_rule.setdefault(one.rule, []).append(number)
    reasons = {number: reason for number, one in enumerate(found) if (reason := _reason(one, found, by_rule, scene))}
    taken: dict[int, list[Evidence]] = {}
    for number, (by, link) in reasons.items():
        if link.told and (root := _root(by, reasons)) is not None:
            taken.setdefault(root, []).extend(_taken(found[number], link))
    return [_with(one, taken.get(number, ())) for number, one in enumerate(found) if number not in reasons]


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


def _anywhere(by: Finding, of: Finding, scene: Scene) -> bool:
    return True


def _grave(by: Finding, of: Finding, scene: Scene) -> bool:
    """What did not stop the job explains nothing of the others."""
    return by.severity == "critical"


def _told_to_end(by: Finding, of: Finding, scene: Scene) -> bool:
    return by.severity in ("critical", "info")


def _same_ranks(by: Finding, of: Finding, scene: Scene) -> bool:
    return bool(of.ranks) and set(of.ranks) <= set(by.ranks)


def _its_death(by: Finding, of: Finding, scene: Scene) -> bool:
    return by.severity == "critical" and _same_ranks(by, of, scene)


def _same_subject(by: Finding, of: Finding, scene: Scene) -> bool:
    return by.subject == of.subject and _same_ranks(by, of, scene)


def _of(*categories: str) -> Holds:
    def holds(by: Finding, of: Finding, scene: Scene) -> bool:
        return of.subject in categories and _same_ranks(by, of, scene)

    return holds


def _states_of_group(by: Finding, of: Finding, scene: Scene) -> bool:
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
    Link("oom", ("forecast",), _its_death, "foreseen"),
    Link("oom", ("hang", "pause", "straggler", "silent", "missing"), _grave),
    Link("death", ("hang", "pause", "straggler", "silent", "missing"), _told_to_end),
    Link("death", ("forecast",), _same_ranks),
    Link("device", ("hang", "pause"), _names_it, "since then"),
    Link("device", ("throttle", "straggler", "silent"), _its_own),
    Link("pause", ("hang", "straggler"), _anywhere),
    Link("hang", ("silent",), _same_ranks, "its process", evidence=True),
    Link("hang", ("straggler",), _anywhere),
    Link("silent", ("straggler",), _same_ranks),
    Link("straggler", ("tokens", "throttle"), _cause, "because", evidence=True),
    Link("tokens", ("memory",), _of("activations"), "therefore"),
    Link("growth", ("memory",), _same_subject, "by now"),
    Link("unsharded", ("memory",), _states_of_group, "therefore"),
    Link("no_sync", ("memory",), _of("gradients"), "therefore"),
    Link("checkpointing", ("memory",), _of("activations"), "therefore"),
    Link("offload", ("memory",), _of(*STATES), "therefore"),
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


def _taken(one: Finding, link: Link) -> Iterable[Evidence]:
    yield Evidence(link.told, one.sentence)
    if link.evidence:
        yield from one.evidence


def _with(one: Finding, more: Sequence[Evidence]) -> Finding:
    added = [fact for fact in dict.fromkeys(more) if fact not in one.evidence]
    return replace(one, evidence=(*one.evidence, *added[:MOST_TAKEN])) if added else one
