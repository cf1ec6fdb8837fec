"""Findings in few words: their marks, whom they are about, since when, and the strip that every screen has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.keymap import of
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.scene import Key
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.text import Glyphs, Line, Span, beside, count, cut, duration, fit, length, plain, ranges

STYLES: Final = {"info": "dim", "warning": "warn", "critical": "bad"}
"""Severity -> style."""

STRIP_ROWS: Final = 3
"""Findings that a tall ranks screen tells at most."""

TALL: Final = 30
"""Rows from which on a screen tells several."""

SMALL: Final = 8
"""Rows below which a screen has no room for a strip."""


def mark(finding: Finding, glyphs: Glyphs) -> str:
    """Return the shape that stands for its severity."""
    return {"critical": glyphs.critical, "warning": glyphs.alert}.get(finding.severity, glyphs.note)


def rule_words(finding: Finding) -> str:
    """Name its rule and what it is about: ``memory (activations)``."""
    subject = f" ({plain(finding.subject)})" if finding.subject else ""
    return f"{plain(finding.rule).replace('_', ' ')}{subject}"


def style_of(finding: Finding) -> str:
    """Return the style of its severity."""
    return STYLES.get(finding.severity, "dim")


def serious(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that need a person."""
    return tuple(finding for finding in findings if finding.severity != "info")


def about(rank: int, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that name a rank, in their order."""
    return tuple(finding for finding in findings if rank in finding.ranks)


def by_rank(findings: Iterable[Finding]) -> dict[int, Finding]:
    """Return rank -> the gravest finding that has a word for the rank's row."""
    found: dict[int, Finding] = {}
    for finding in findings:
        if finding.short:
            for rank in finding.ranks:
                if rank not in found or finding.gravity > found[rank].gravity:
                    found[rank] = finding
    return found


def whom(finding: Finding, width: int) -> str:
    """Name its ranks in ``width`` cells: ``3``, ``0-3, 5``, ``12 ranks``, ``job``."""
    if not finding.ranks:
        return "job"
    text = ranges(finding.ranks, 2)
    return text if len(text) <= width else f"{count(len(finding.ranks))} ranks"


def beginning(finding: Finding, now: float) -> str:
    """Say when it began: ``step 1,180 (40 s ago)``, ``40 s ago``, ``not known``."""
    ago = "" if finding.since is None else f"{duration(now - finding.since)} ago"
    if finding.step is None:
        return ago or "not known"
    step = f"step {count(finding.step)}"
    return f"{step} ({ago})" if ago else step


def since_words(finding: Finding, now: float) -> str:
    """Say since when it stands: ``since step 1,180 (40 s ago)``."""
    if finding.step is not None:
        return f"since {beginning(finding, now)}"
    return "since when is not known" if finding.since is None else f"for {duration(now - finding.since)}"


def tally(findings: Sequence[Finding], *, more: bool = False) -> str:
    """Count findings by severity: ``1 critical, 2 warnings, 1 note``; with ``more``: ``3 more``."""
    if more:
        return f"+{count(len(findings))} more"
    words = (("critical", "critical", "critical"), ("warning", "warning", "warnings"), ("info", "note", "notes"))
    parts = []
    for severity, one, several in words:
        number = sum(finding.severity == severity for finding in findings)
        if number:
            parts.append(f"{count(number)} {one if number == 1 else several}")
    return ", ".join(parts)


def strip(snapshot: Snapshot, glyphs: Glyphs, width: int, rows: int, read: Key | None = None) -> list[Line]:
    """Tell the gravest findings, one a line, and how many more there are; nothing while none needs a person.

    ``read``: the finding that the rest of the screen is about.
    """
    others = [finding for finding in snapshot.findings if finding.key != read]
    told = serious(others)[: max(0, rows)]
    rest = others[len(told) :]
    lines: list[Line] = []
    for at, finding in enumerate(told):
        right: list[Span] = []
        if at == len(told) - 1:
            number = f"  {tally(rest, more=True)}" if rest else ""
            right = [(f"{number}  ", "panel dim"), (of("findings"), "panel key"), (" findings ", "panel dim")]
            if width < 60:
                right = [(f" +{len(rest)} ", "panel dim")] if rest else []
        left = f" {mark(finding, glyphs)} "
        text = fit(plain(finding.sentence), max(0, width - len(left) - length(right)))
        style = f"panel {style_of(finding)} bold"
        lines.append(beside([(left, style), (text, style)], right, width, "panel"))
    return lines


def told_whole(lines: Iterable[Line], findings: Iterable[Finding]) -> frozenset[Key]:
    """Return the findings whose sentence a strip has room for."""
    said = ["".join(text for text, _ in line) for line in lines]
    return frozenset(one.key for one in findings if any(plain(one.sentence) in line for line in said))


def with_notes(line: Line, snapshot: Snapshot, glyphs: Glyphs, width: int) -> Line:
    """Put the number of findings at the end of a screen's last line while all of them are but notes."""
    if not snapshot.findings or serious(snapshot.findings):
        return line
    text = f" {glyphs.note} {tally(snapshot.findings)} ({of('findings')}) "
    left, right = cut(line, max(0, width - len(text)))
    free = all(not part.strip() for part, _ in right)
    return (*left, (text, "dim")) if free and len(text) < width else line
