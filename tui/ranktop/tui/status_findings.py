"""Findings, black boxes and stacks as ``ranktop status --json`` has them (schema 1, ``docs/status.md``)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from ranktop.tui.session.findings.finding import SEVERITIES, Finding, Value
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.status_device import counters_json
from ranktop.tui.status_parts import calls_json, collectives_json, memory_json

FAIL_ON: Final = SEVERITIES[1:]
"""What ``--fail-on`` takes."""


def reaches(findings: Iterable[Finding], severity: str) -> bool:
    """Tell whether one of the findings is at least as grave as ``severity``."""
    return any(finding.gravity >= SEVERITIES.index(severity) for finding in findings)


def beginning(finding: Finding, snapshot: Snapshot) -> tuple[float | None, int | None]:
    """Return (seconds ago, step) since when a finding stands, as far as that is known.

    One that this very look has dated, for want of anything better, may be older: who asks once can't know.
    """
    known = finding.since is not None and finding.since < snapshot.now
    seconds = snapshot.now - finding.since if known and finding.since is not None else None
    views = [view for rank in finding.ranks or range(1) if (view := snapshot.rank(rank)) is not None]
    newest = max((view.sample.step for view in views if view.sample is not None), default=0)
    step = finding.step if known or (finding.step is not None and finding.step < newest) else None
    return seconds, step


def finding_json(finding: Finding, snapshot: Snapshot) -> dict[str, Any]:
    """Return one finding in the documented form."""
    seconds, step = beginning(finding, snapshot)
    facts = finding_facts(finding)
    since = {"seconds": seconds, "step": step} if (seconds, step) != (None, None) else None
    return {name: value if name != "since" else since for name, value in facts.items()}


def finding_facts(finding: Finding) -> dict[str, Any]:
    """Return a finding without the time at which it is looked at: ``since`` is null."""
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "ranks": list(finding.ranks),
        "subject": finding.subject,
        "sentence": finding.sentence,
        "evidence": [{"name": fact.name, "value": _finite(fact.value), "unit": fact.unit} for fact in finding.evidence],
        "advice": finding.advice,
        "since": None,
        "confidence": finding.confidence,
        "peers": list(finding.peers),
    }


def box_json(view: RankView, now: float) -> dict[str, Any] | None:
    """Return what a rank left behind when it ran out of memory, in this life or in the last one that did."""
    box = view.box if view.box is not None else view.former_box
    at = view.boxed if view.box is not None else view.former_boxed
    if box is None:
        return None
    return {
        "error": box.error,
        "step": box.step,
        "phase": box.phase or None,
        "asked": box.asked,
        "free": box.free,
        "limit": box.limit,
        "memory": memory_json(box.memory),
        "allocator": counters_json(box.allocator),
        "collectives": collectives_json(box.collectives),
        "inputs": list(box.inputs),
        "calls": calls_json(box.calls),
        "reasons": dict(box.reasons),
        "former_life": view.box is None,
        "age": None if at is None else max(0.0, now - at),
    }


def stack_json(view: RankView, now: float) -> dict[str, Any] | None:
    """Return where the training thread was while its step took much too long."""
    stack = view.stack
    if stack is None:
        return None
    return {
        "step": stack.step,
        "waited": stack.waited,
        "calls": calls_json(stack.calls),
        "reason": stack.reason,
        "age": None if view.stack_at is None else max(0.0, now - view.stack_at),
    }


def _finite(value: Value) -> Value:
    """JSON knows no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
