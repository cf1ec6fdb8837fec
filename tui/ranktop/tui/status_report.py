"""What ``ranktop status`` says below its table: the findings, the gravest first, and what ranks left behind."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from ranktop.budget.terms import CATEGORIES, Memory
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.status_findings import beginning
from ranktop.tui.view.text import count, duration, human, plain, seconds
from ranktop.wire.schema import Box

MARKS: Final = {"critical": "✖", "warning": "!", "info": "·"}

LOOKED_AT: Final = 10
"""Steps from which on it is worth saying that nothing was found."""

MOST_ALIKE: Final = 8
"""Findings of one rule and severity that are told one by one."""

MOST_BOXES: Final = 4
"""Ranks whose last words are told."""

MOST_FACTS: Final = 6
LONGEST_FACT: Final = 120
MOST_CATEGORIES: Final = 4
INNERMOST: Final = 5
"""Calls of a traceback that are told."""

MORE: Final = "    "
"""Before what belongs to the line above."""


AGAIN: Final = "recording again"
"""How the hub's word begins that its trouble with the recording is over."""


def recording_line(snapshot: Snapshot) -> str:
    """Return what the hub last told of its trouble with the recording; empty when there is none."""
    told = [mark for mark in snapshot.marks if mark.what == "recording"]
    if not told or told[-1].detail.startswith(AGAIN):
        return ""
    return f"{MARKS['warning']} {plain(told[-1].detail)} ({duration(snapshot.now - told[-1].at)} ago)"


def report(snapshot: Snapshot) -> list[str]:
    """Return the findings with what to do, or what was looked at when there is none."""
    found = snapshot.findings
    boxes = {view.rank: view for view in snapshot.ranks if _box(view) is not None}
    if not found and not boxes:
        return _nothing(snapshot)
    lines: list[str] = []
    told: set[int] = set()
    for _, group in groupby(found, key=lambda finding: (finding.severity, finding.rule)):
        lines += _kind(list(group), snapshot, boxes, told)
    alone = [view for rank, view in boxes.items() if rank not in told]
    for view in alone[: max(0, MOST_BOXES - len(told))]:
        lines += [f"{MARKS['info']} rank {view.rank} ran out of memory", *box_lines(view, snapshot.now)]
        told.add(view.rank)
    if len(boxes) > len(told):
        left = [rank for rank in boxes if rank not in told]
        lines.append(f"{MARKS['info']} what {ranks_words(left)} left behind is in --json")
    return lines


def _nothing(snapshot: Snapshot) -> list[str]:
    steps = {step.index for view in snapshot.ranks for step in view.steps}
    ranks = sum(view.sample is not None for view in snapshot.ranks)
    if snapshot.step < LOOKED_AT or not steps:
        return []
    ones = f"{ranks} rank{'' if ranks == 1 else 's'}"
    told = f"nothing found out of line: {len(steps)} step{'' if len(steps) == 1 else 's'}, {ones}"
    return [told, *snapshot.limits.left_out()]


def _kind(group: Sequence[Finding], snapshot: Snapshot, boxes: dict[int, RankView], told: set[int]) -> list[str]:
    """Return the lines of the findings of one rule and severity; the same advice is given once."""
    lines: list[str] = []
    advised = ""
    for finding in group[:MOST_ALIKE]:
        lines.append(f"{MARKS.get(finding.severity, '·')} {plain(finding.sentence)}{_since(finding, snapshot)}")
        if finding.severity != "info" and finding.advice and finding.advice != advised:
            advised = finding.advice
            lines.append(f"{MORE}{plain(finding.advice)}")
        here = [rank for rank in finding.ranks if finding.rule == "oom" and rank in boxes and rank not in told]
        here = here[: MOST_BOXES - len(told)]
        facts = _facts(finding) if finding.severity == "critical" and not here else ""
        if facts:
            lines.append(f"{MORE}{facts}")
        for rank in here:
            lines += box_lines(boxes[rank], snapshot.now)
            told.add(rank)
    rest = group[MOST_ALIKE:]
    if rest:
        ranks = sorted({rank for finding in rest for rank in finding.ranks})
        who = f": {ranks_words(ranks)}" if ranks else ""
        lines.append(f"{MORE}and {len(rest)} more of {rest[0].rule}{who}")
    return lines


def _facts(finding: Finding) -> str:
    """Return the first known facts of what stopped the job, long ones cut; ``--json`` has them all."""
    known = [fact for fact in finding.evidence if fact.value is not None]
    told = [textwrap.shorten(fact_words(fact), LONGEST_FACT, placeholder=" ...") for fact in known[:MOST_FACTS]]
    return "; ".join(told)


def _since(finding: Finding, snapshot: Snapshot) -> str:
    if "since step " in finding.sentence:  # it says so itself
        return ""
    seconds, step = beginning(finding, snapshot)
    parts = ["" if step is None else f"since step {count(step)}", "" if seconds is None else f"for {duration(seconds)}"]
    told = ", ".join(part for part in parts if part)
    return f"  ({told})" if told else ""


def fact_words(fact: Evidence) -> str:
    """Write one fact: ``own work 2.35 s``, ``PCIe not known``."""
    value, name = fact.value, plain(fact.name)
    if value is None:
        return f"{name} not known"
    if isinstance(value, str):
        return f"{name}: {plain(value)}"
    if fact.unit == "B":
        return f"{name} {human(int(value))}"
    if fact.unit == "s":
        return f"{name} {seconds(value)} s"
    if fact.is_name:
        return f"{name} {value}"
    number = count(value) if isinstance(value, int) else f"{value:,.4g}"
    return f"{name} {number}{' ' + fact.unit if fact.unit else ''}"


def box_lines(view: RankView, now: float) -> list[str]:
    """Return what a rank left behind when it ran out of memory, one line a kind of fact."""
    box = _box(view)
    if box is None:
        return []
    at = view.boxed if view.box is not None else view.former_boxed
    when = "" if at is None else f", {duration(now - at)} ago"
    life = "" if view.box is not None else ", in a former life"
    sizes = [
        ("asked for", box.asked), ("free", box.free), ("of", box.limit),
        ("largest free block of the cache", box.allocator.largest_free),
    ]  # fmt: skip
    told = [f"{name} {human(size)}" for name, size in sizes if size is not None]
    facts = [
        ("error", f"{plain(box.error)}{when}{life}"),
        ("when", f"step {count(box.step + 1)}{', ' + plain(box.phase) if box.phase else ''}"),
        ("memory", ", ".join(told)),
        ("held", _top(box.memory)),
        ("inputs", ", ".join(plain(text) for text in box.inputs)),
    ]
    lines = [f"{MORE}{name:<8}{text}" for name, text in facts if text]
    calls = [f"{plain(call.file)}:{call.line} {plain(call.function)}" for call in box.calls[-INNERMOST:]]
    return lines + [f"{MORE}{'calls' if at == 0 else '':<8}{call}" for at, call in enumerate(calls)]


def _top(memory: Memory) -> str:
    held = [(size, name) for name in CATEGORIES if name != "free" and (size := getattr(memory, name))]
    return ", ".join(f"{name} {human(size)}" for size, name in sorted(held, reverse=True)[:MOST_CATEGORIES])


def _box(view: RankView) -> Box | None:
    return view.box if view.box is not None else view.former_box
