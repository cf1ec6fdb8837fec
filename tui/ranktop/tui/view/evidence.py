"""One finding with all that it stands on, as lines: sentence, advice, numbers, plot, and where Python stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Final

from ranktop.tui.keys import EVIDENCE_KEYS
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.evidence_plot import plot_lines, value_words
from ranktop.tui.view.findings import beginning, mark, rule_words, style_of, whom
from ranktop.tui.view.header import title_line
from ranktop.tui.view.hints import hint_line, place, window
from ranktop.tui.view.options import Options
from ranktop.tui.view.postmortem import has_account
from ranktop.tui.view.stack import stack_lines
from ranktop.tui.view.text import Line, Span, count, duration, fit, length, merge, pad, plain, ranges

HELP: Final = (
    "What one finding stands on. The numbers are those at the last look; the plot shows them over the last steps or "
    "over the ranks of the group, and what they are held against as a broken line across.",
    "Tab chooses another of the finding's ranks; Enter goes to it on the ranks screen, c lays it beside a typical "
    "peer.",
)
"""Text of the help, above the keys."""

WIDE: Final = 110
"""Cells from which on numbers and plot stand side by side."""
PLOT: Final = 50
"""Cells that the plot keeps beside the numbers."""
CALLER: Final = ": caller "
"""In the name of a fact that is a call of a stack, which is shown whole."""
STUCK: Final = ("hang", "pause")
"""Rules for which it matters where Python stands."""


@dataclass(slots=True)
class Reading:
    """The finding that is read, and how far."""

    finding: Finding
    over: float | None = None
    """When it was first missed, on the session's clock; None while it stands."""
    turn: int = 0
    top: int = 0

    def refresh(self, snapshot: Snapshot) -> None:
        """Take the finding as it is now; the last of it where it is over."""
        now = next((one for one in snapshot.findings if one.key == self.finding.key), None)
        if now is not None:
            self.finding, self.over = now, None
        elif self.over is None:
            self.over = snapshot.now


def evidence_lines(
    snapshot: Snapshot, link: Link, reading: Reading, options: Options, size: tuple[int, int], notice: str
) -> list[Line]:
    """Draw a finding's evidence into (width, height) cells; keeps the scroll position where it can be."""
    width, height = max(1, size[0]), max(1, size[1])
    head = [title_line("evidence", snapshot, link, options, width)] if height > 2 else []
    body = _body(reading, snapshot, options, width)
    room = max(1, height - len(head) - (1 if height > 1 else 0))
    reading.top, shown = window(body, reading.top, room)
    shown += [pad((), width)] * (room - len(shown))
    right = place(reading.top, room, len(body), options.glyphs)
    foot = hint_line(_hints(reading.finding, snapshot, options), notice, right, options.glyphs, width, EVIDENCE_KEYS)
    return [*head, *shown, foot][:height]


def _hints(finding: Finding, snapshot: Snapshot, options: Options) -> list[tuple[str, str]]:
    hints = [("esc", "findings"), ("←→", "finding")]
    if finding.ranks:
        hints.append(("enter", f"rank {options.selected}"))
        hints.append(("c", "diff"))
    if len(finding.ranks) > 1:
        hints.append(("tab", "next rank"))
    view = snapshot.rank(options.selected)
    if view is not None and has_account(view):
        hints.insert(2, ("p", "post-mortem"))
    return [*hints, ("↑↓", "scroll"), ("?", "help"), ("q", "quit"), ("d", "device")]


def _body(reading: Reading, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    finding = reading.finding
    lines = [_identity(reading, snapshot, options, width), pad((), width)]
    lines += _wrapped(plain(finding.sentence), "text bold", width)
    if reading.over is not None:
        lines += _wrapped(f"over: it was last seen {duration(snapshot.now - reading.over)} ago", "good", width)
    if finding.advice:
        advice = plain(finding.advice)
        lines += [pad((), width), *_titled("do", advice[:1].upper() + advice[1:], width)]
    lines += [pad((), width), *_circumstances(finding, snapshot, width)]
    stacks = _stacks(finding, snapshot, width)
    if stacks:
        lines += stacks
        shown = tuple(one for one in finding.evidence if CALLER not in one.name)
        finding = replace(finding, evidence=shown)
    wide = width >= WIDE and bool(finding.evidence) and finding.plot is not None
    numbers = _numbers(finding, width - PLOT - 5 if wide else width - 1)
    if numbers:
        lines.append(pad((), width))
    plot_width = width - max(map(length, numbers)) - 5 if wide else width - 2
    plot = plot_lines(finding, min(plot_width, 90), options.glyphs)
    if wide and plot:
        lines += _beside(numbers, plot, width, options)
    else:
        lines += [pad(line, width) for line in numbers]
        lines += [pad((), width), *(pad(line, width) for line in plot)] if plot else []
    return lines


def _identity(reading: Reading, snapshot: Snapshot, options: Options, width: int) -> Line:
    finding = reading.finding
    severity = {"info": "note"}.get(finding.severity, finding.severity)
    who = "the job" if not finding.ranks else f"rank{'s' if len(finding.ranks) > 1 else ''} {whom(finding, 30)}"
    if len(finding.ranks) > 1 and who.endswith("ranks"):
        who = whom(finding, 30)
    found = [one.key for one in snapshot.findings]
    number = f"{found.index(finding.key) + 1} of {len(found)} " if finding.key in found else "over "
    left = f" {mark(finding, options.glyphs)} {severity}: {rule_words(finding)}, {who}"
    room = max(0, width - len(number))
    return merge([(fit(left, room), f"panel {style_of(finding)} bold"), (fit(number, width - room), "panel dim")])


def _circumstances(finding: Finding, snapshot: Snapshot, width: int) -> list[Line]:
    lines = _titled("since", beginning(finding, snapshot.now), width)
    lines += _titled("confidence", plain(finding.confidence), width)
    peers = [rank for rank in finding.peers if rank not in finding.ranks]
    if peers:
        names = f"{count(len(peers))} peer{'' if len(peers) == 1 else 's'}: rank{'' if len(peers) == 1 else 's'} "
        lines += _titled("beside", names + ranges(peers, 2), width)
    return lines


def _titled(title: str, text: str, width: int) -> list[Line]:
    """Write a text behind its title, going on under itself."""
    indent = 13 if width >= 40 else 1
    lines: list[Line] = []
    for at, part in enumerate(wrap(text, max(8, width - indent - 1))):
        lead = f" {title}".ljust(indent)[:indent] if at == 0 and indent > 1 else " " * indent
        lines.append(pad([(lead, "label"), (part, "text")], width))
    return lines


def _wrapped(text: str, style: str, width: int) -> list[Line]:
    return [pad([(f" {part}", style)], width) for part in wrap(text, max(8, width - 2))]


def _numbers(finding: Finding, width: int) -> list[Line]:
    """Lay the evidence out as a table: names left, values right-aligned, texts going on in further lines."""
    rows = [
        (plain(one.name), str(one.value) if one.is_name else value_words(one.value, one.unit), one.value)
        for one in finding.evidence
    ]
    if not rows:
        return []
    first = min(44, max(len(name) for name, _, _ in rows), max(8, width // 2)) + 2
    digits = max((len(text) for _, text, value in rows if not isinstance(value, str)), default=0)
    lines: list[Line] = []
    for name, text, value in rows:
        parts = wrap(text, max(8, width - first - 1)) if isinstance(value, str) else [f"{text:>{digits}}"]
        for at, part in enumerate(parts or [""]):
            lead = fit(name if at == 0 else "", first)
            spans: list[Span] = [(" ", ""), (lead, "label"), (part, "dim" if value is None else "number")]
            lines.append(merge(spans))
    return lines


def _beside(left: list[Line], right: list[Line], width: int, options: Options) -> list[Line]:
    cells = max(map(length, left)) + 2
    lines: list[Line] = []
    for at in range(max(len(left), len(right))):
        one = left[at] if at < len(left) else ()
        other = right[at] if at < len(right) else ()
        lines.append(pad([*pad(one, cells), (f"{options.glyphs.rule} ", "rule"), *other], width))
    return lines


def _stacks(finding: Finding, snapshot: Snapshot, width: int) -> list[Line]:
    """Say where the training threads of its ranks stand, ranks of the same place together."""
    if finding.rule not in STUCK:
        return []
    same: dict[tuple[object, ...], list[int]] = {}
    for rank in finding.ranks:
        view = snapshot.rank(rank)
        if view is not None and view.stack is not None:
            same.setdefault((view.stack.calls, view.stack.reason), []).append(rank)
    lines: list[Line] = []
    for ranks in list(same.values())[:3]:
        view = snapshot.rank(ranks[0])
        if view is None or view.stack is None:
            continue
        who = f"rank{'' if len(ranks) == 1 else 's'} {ranges(ranks, 2)}"
        lines += [pad((), width), *stack_lines(f"where {who} stands", view.stack, width)]
    return lines
