"""Two ranks side by side as lines: only what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ranktop.tui.keys import DIFF_KEYS
from ranktop.tui.session.diff import Difference, differences, typical_peer
from ranktop.tui.session.rank_view import GONE, RankView
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.columns import device_name
from ranktop.tui.view.evidence_plot import value_words
from ranktop.tui.view.header import title_line
from ranktop.tui.view.hints import at_replay, hint_line, place, window
from ranktop.tui.view.options import MOMENT_WORDS, Options
from ranktop.tui.view.postmortem import has_account
from ranktop.tui.view.text import Line, Span, duration, fit, human, length, pad, plain

HINTS: Final = (
    ("←→", "other rank"), ("tab", "swap"), ("o", "typical"), ("↑↓", "scroll"), ("esc", "back"), ("?", "help"),
    ("q", "quit"), ("f", "findings"), ("space", "freeze"),
)  # fmt: skip
HELP: Final = (
    "Two ranks side by side, and only that in which they differ: by more than noise, by more than the budget expects, "
    "and not what tells any two ranks apart (number, node, process, ids of the device). The rank beside the selected "
    "one is the most typical of its peers, the one that is closest to their medians.",
)
"""Text of the help, above the keys."""

GROUPS: Final = {"runs": "What they run", "memory": "Memory at the peak of the step", "steps": "Steps, medians",
                 "device": "Device", "findings": "Findings"}  # fmt: skip
NAME: Final = 22


@dataclass(slots=True)
class Pair:
    """Which ranks are beside each other."""

    left: int | None = None
    right: int | None = None
    """None: the most typical peer."""
    top: int = 0


def partner(pair: Pair, snapshot: Snapshot) -> int | None:
    """Return the rank on the right: the chosen one, else the most typical peer, else any other."""
    if pair.left is None:
        return None
    if pair.right is not None and snapshot.rank(pair.right) is not None:
        return pair.right
    found = typical_peer(pair.left, snapshot)
    return found if found is not None else next((v.rank for v in snapshot.ranks if v.rank != pair.left), None)


def diff_lines(
    snapshot: Snapshot, link: Link, pair: Pair, options: Options, size: tuple[int, int], notice: str
) -> list[Line]:
    """Draw two ranks into (width, height) cells; keeps the scroll position where it can be."""
    width, height = max(1, size[0]), max(1, size[1])
    left, right = snapshot.rank(pair.left), snapshot.rank(partner(pair, snapshot))
    head = [title_line("two ranks", snapshot, link, options, width)] if height > 2 else []
    if left is None or right is None:
        why = "waiting for the first rank" if left is None else f"rank {left.rank} is alone: there is none beside it"
        body: list[Line] = [pad([(f" {why}", "dim")], width)]
    else:
        if height > 4:
            head.append(_names(left, right, pair, options, width))
        body = _body(left, right, snapshot, options, width)
    room = max(1, height - len(head) - (1 if height > 1 else 0))
    pair.top, shown = window(body, pair.top, room)
    shown += [pad((), width)] * (room - len(shown))
    hints = [*at_replay(HINTS, options)]
    if left is not None and has_account(left):
        hints.insert(1, ("p", "post-mortem"))
    foot = hint_line(hints, notice, place(pair.top, room, len(body), options.glyphs), options.glyphs, width, DIFF_KEYS)
    return [*head, *shown, foot][:height]


def _widths(width: int) -> tuple[int, int]:
    """Return the cells of a name and of each rank's value; the rest is the difference's."""
    name = min(NAME, max(10, width // 4))
    return name, max(6, min(36, (width - name - 21) // 2))


def _names(left: RankView, right: RankView, pair: Pair, options: Options, width: int) -> Line:
    name, each = _widths(width)
    typical = "  typical peer" if pair.right is None else ""
    spans: list[Span] = [(" " * (name + 1), "panel")]
    for view, more in ((left, ""), (right, typical)):
        where = "" if view.card is None else f" {options.glyphs.dot} {plain(view.card.node)} {device_name(view)}"
        brief = ", typical" if more else ""
        forms = (
            f"rank {view.rank}{where}{more}",
            f"rank {view.rank}{more}",
            f"rank {view.rank}{brief}",
            f"rank {view.rank}",
        )
        text = next((form for form in forms if len(form) <= each), forms[-1])
        spans += [(fit(text, each), "panel bold"), (" ", "panel")]
    spans.append(("difference", "panel dim"))
    return pad(spans, width, "panel")


def _body(left: RankView, right: RankView, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    found = differences(left, right, snapshot)
    old = [
        pad([(f" rank {view.rank}: its values are {duration(view.age)} old", "warn")], width)
        for view in (left, right)
        if view.age is not None and (view.stale or view.state in GONE)
    ]
    if not found:
        looked = "versions, code, device, memory, steps, findings"
        return [*old, pad((), width), pad([(" nothing differs beyond noise", "good bold")], width),
                pad([(f" compared: {looked}", "dim")], width)]  # fmt: skip
    lines: list[Line] = [*old]
    for group, title in GROUPS.items():
        rows = [one for one in found if one.group == group]
        if rows:
            lines += [pad((), width)] if lines else []
            lines.append(pad([(f" {title}", "label bold")], width))
            lines += [line for one in rows for line in _row(one, options, width)]
    same = [title.split(",")[0].split(" at ")[0].lower() for group, title in GROUPS.items() if group not in _of(found)]
    if same:
        lines += [pad((), width), pad([(f" the same: {', '.join(same)}", "dim")], width)]
    return lines


def _of(found: Sequence[Difference]) -> set[str]:
    return {one.group for one in found}


def _row(one: Difference, options: Options, width: int) -> list[Line]:
    name, each = _widths(width)
    spans: list[Span] = [(fit(f"  {plain(one.name)}", name) + " ", "text")]
    for value in (one.left, one.right):
        text = (
            ""
            if value == ""
            else MOMENT_WORDS.get(value, plain(value))
            if isinstance(value, str)
            else (value_words(value, one.unit))
        )
        spans.append((fit(text, each) + " ", "dim" if value is None else "number"))
    away = one.away
    if away is not None:
        spans.append((fit(_away(one, away), max(0, width - length(spans))), "warn"))
    return [pad(spans, width)]


def _away(one: Difference, away: float) -> str:
    share = ""
    if isinstance(one.right, (int, float)) and one.right and abs(away / one.right) < 100:
        share = f" {away / one.right:+.0%}"
    if one.unit == "B":
        return f"{human(int(away), sign=True)}{share}"
    sign = "+" if away > 0 else "-"
    return f"{sign}{value_words(abs(away), one.unit)}{share}"
