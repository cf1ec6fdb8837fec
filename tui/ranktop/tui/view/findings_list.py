"""The findings screen as lines: what is out of line, the gravest first, or what was looked at and found sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from ranktop.tui.keys import FINDINGS_KEYS
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.groups import peer_groups
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.findings import mark, rule_words, since_words, style_of, tally, whom
from ranktop.tui.view.header import title_line
from ranktop.tui.view.hints import at_replay, hint_line, place
from ranktop.tui.view.layout import scrolled
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, Span, count, duration, fit, length, merge, pad, plain, ranges

HINTS: Final = (
    ("↑↓", "select"), ("enter", "evidence"), ("r", "rank"), ("esc", "back"), ("?", "help"), ("q", "quit"),
    ("i", "imbalance"), ("space", "freeze"),
)  # fmt: skip
HELP: Final = (
    "A line is one finding: how grave it is, which ranks it is about, what is out of line and by how much, and for how "
    "long. Below stands the selected one in full, with what to do. Enter opens the evidence: the numbers, the ranks "
    "that it was compared with, a small plot, and where Python stands if the rank is stuck.",
    "A note says what is worth knowing though nothing is wrong: a long validation, a checkpoint being saved.",
)
"""Text of the help, above the keys."""

RANKS: Final = 10
"""Cells of the column of ranks."""
SINCE: Final = 6
PREVIEW: Final = 6
"""Rows for the selected finding in full, and all that the list leaves free."""


@dataclass(slots=True)
class Pick:
    """Which finding is selected, and the first line that is shown."""

    key: tuple[str, str, tuple[int, ...]] | None = None
    at: int = 0
    top: int = 0

    def index(self, findings: Sequence[Finding]) -> int:
        """Return where the selected finding is now; the nearest line when it is gone."""
        for at, finding in enumerate(findings):
            if finding.key == self.key:
                self.at = at
                return at
        self.at = max(0, min(self.at, len(findings) - 1))
        self.key = findings[self.at].key if findings else None
        return self.at

    def move(self, by: int, findings: Sequence[Finding]) -> None:
        """Select another one."""
        if findings:
            self.at = max(0, min(len(findings) - 1, self.index(findings) + by))
            self.key = findings[self.at].key


def findings_lines(
    snapshot: Snapshot, link: Link, pick: Pick, options: Options, size: tuple[int, int], notice: str
) -> list[Line]:
    """Draw all findings into (width, height) cells."""
    width, height = max(1, size[0]), max(1, size[1])
    found = snapshot.findings
    head = [title_line("findings", snapshot, link, options, width)]
    if found:
        at = pick.index(found)
        preview = _preview(found[at], snapshot, options, width)
        keep = min(len(preview), max(PREVIEW if height < 30 else height // 2, height - 3 - len(found)))
        room = height - 3 - keep
        if room < min(len(found), 3):
            preview, room = [], height - 3
        else:
            preview = preview[:keep]
        head.append(_heading(found, options, width))
        room = max(1, room)
        pick.top = scrolled(pick.top, at, room, len(found))
        shown = found[pick.top : pick.top + room]
        body = [_row(one, one.key == pick.key, snapshot, options, width) for one in shown]
        body += [pad((), width)] * (room - len(body))
        body += preview
        right = place(pick.top, room, len(found), options.glyphs)
    else:
        told = nothing_words(snapshot)
        body = [pad((), width)]
        for at, text in enumerate(told):
            style = "good bold" if at == 0 and can_tell(snapshot) else "bold" if at == 0 else "dim"
            body += [pad([(f" {part}", style)], width) for part in wrap(text, max(8, width - 2))]
        right = ()
    lines = [*head, *body][: max(1, height - 1)]
    lines += [pad((), width)] * (height - 1 - len(lines))
    foot = hint_line(at_replay(HINTS, options), notice, right, options.glyphs, width, FINDINGS_KEYS)
    return [*lines, foot][:height] if height > 1 else lines[:1]


def _heading(found: Sequence[Finding], options: Options, width: int) -> Line:
    right = f" {tally(found)} "
    left = f"   {'ranks':<{RANKS}} {'for':<{SINCE}} what"
    return (
        merge([(fit(left, width - len(right)), "label"), (right, "label bold")])
        if width > 40
        else pad([(left, "label")], width)
    )


def _row(finding: Finding, chosen: bool, snapshot: Snapshot, options: Options, width: int) -> Line:
    glyphs = options.glyphs
    more = " selected" if chosen else ""
    ago = "" if finding.since is None else _short(snapshot.now - finding.since)
    spans: list[Span] = [
        (glyphs.select if chosen else " ", f"cursor{more}"),
        (f"{mark(finding, glyphs)} ", f"{style_of(finding)} bold{more}"),
        (fit(whom(finding, RANKS), RANKS) + " ", f"text bold{more}" if chosen else "text"),
        (fit(ago, SINCE) + " ", f"dim{more}"),
    ]
    room = width - length(spans)
    style = {"critical": "bad", "warning": "text", "info": "dim"}.get(finding.severity, "dim")
    spans.append((fit(plain(finding.sentence), room), f"{style}{' bold' if chosen else ''}{more}"))
    return pad(spans, width)


def _short(seconds: float) -> str:
    return duration(seconds).replace(" min", " m")


def _preview(finding: Finding, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    """Write the selected finding out: sentence, advice, since when and how sure."""
    severity = {"info": "note"}.get(finding.severity, finding.severity)
    confidence = "" if finding.confidence == "high" else f", {finding.confidence} confidence"
    title = f" {mark(finding, options.glyphs)} {severity}: {rule_words(finding)}{confidence}"
    lines = [pad([(fit(title, width - 1), f"panel {style_of(finding)} bold")], width, "panel")]
    lines += [pad([(f" {part}", "text bold")], width) for part in wrap(plain(finding.sentence), max(8, width - 2))]
    advice = plain(finding.advice)
    if advice:
        lines += [pad([(f" {part}", "text")], width) for part in wrap(advice, max(8, width - 2))]
    lines.append(pad([(f" {since_words(finding, snapshot.now)}", "dim")], width))
    return lines


def can_tell(snapshot: Snapshot) -> bool:
    """Tell whether there was anything to look at."""
    return any(group.members and any(view.steps for view in group.members) for group in peer_groups(snapshot.ranks))


def nothing_words(snapshot: Snapshot) -> list[str]:
    """Say what was looked at, or why nothing can be said yet; the first is the answer."""
    if not snapshot.ranks:
        return ["nothing can be said yet", "no rank has been heard of"]
    groups = peer_groups(snapshot.ranks)
    members = [view for group in groups for view in group.members]
    if not can_tell(snapshot):
        waits = sum(view.state == "starting" for view in snapshot.ranks)
        missing = sum(view.state == "missing" for view in snapshot.ranks)
        why = [f"{count(waits)} of {_ranks(snapshot.world_size)} have not finished a step yet"] if waits else []
        why += [f"{_ranks(missing)} not seen yet"] if missing else []
        return ["nothing can be said yet", ", ".join(why) or f"job {snapshot.state}: no rank speaks now"]
    steps = [step.index for view in members for step in view.steps]
    told = [f"{_ranks(len(members))}, steps {count(min(steps))} to {count(max(steps))}"]
    for group in groups:
        if len(groups) > 1:
            several = f"ranks {ranges(group.ranks, 2)}" if len(group.ranks) > 1 else f"rank {group.ranks[0]}"
            told.append(f"{several} {plain(group.role)}: {_compared(len(group.members))}")
        else:
            told.append(_compared(len(group.members)))
    told.append(
        "Looked at: memory by category against the budget, the peers and the rank's own past; own work, waiting, "
        "tokens and arrival at collectives; devices, processes, versions, ends of ranks."
    )
    return ["nothing out of line", *told, *snapshot.limits.left_out()]


def _ranks(number: int) -> str:
    return f"{count(number)} rank{'' if number == 1 else 's'}"


def _compared(members: int) -> str:
    if members == 1:
        return "one of its kind: held against its budget and its own past, there is no peer"
    few = ", too few for more than a ratio" if members < 4 else ""
    return f"{count(members)} of a kind, compared with each other{few}"
