"""The screen of the plans that fit as lines: a table of them, or the lines that ask for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranktop.budget.planning.sizes import seconds
from ranktop.tui.keys import FIT_KEYS
from ranktop.tui.view.fit_lines import plan_lines, wrapped
from ranktop.tui.view.fit_table import Look, about, columns, heading, row
from ranktop.tui.view.hints import hint_line, place, window
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, Span, Unit, beside, human, in_ascii, pad, plain, unit_for

if TYPE_CHECKING:
    from ranktop.budget.fit import Fit

HINTS: Final = (("enter", "lines to ask for it"), ("↑↓", "move"), ("esc", "strategies"), ("?", "help"), ("q", "quit"))
LINES_HINTS: Final = (("↑↓", "scroll"), ("tab", "next form"), ("esc", "plans"), ("?", "help"), ("q", "quit"))

HELP: Final = (
    "A row is the cheapest plan of one strategy that fits, for the same number of samples per step. batch: "
    "micro-batch × forwards per step; then the bytes of the rank that needs the most, at its peak; left: beside it on "
    "the device, ! less than the budget may be off. A dot or star marks what runs now.",
    "sent: bytes that the busiest GPU sends per step. The rest are seconds per step, at least, nothing overlapped: "
    "copy: to and from the host, and its optimizer's step; again: forward computed again; wait: idle in a pipeline; "
    "lost: all of it with sending. The line above the keys says at which speeds.",
)
"""Text of the help, above the keys."""


@dataclass(slots=True)
class Chosen:
    """What the person has selected, and what is shown of it."""

    at: int = 0
    top: int = 0
    open: bool = False
    """The selected plan's lines are shown instead of the table."""
    form: int = 0
    """Which of its forms."""
    scroll: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What there is to show."""

    found: Fit | None
    """None when the search could not begin (``reason``)."""
    reason: str = ""
    done: bool = False
    capacity: int = 0
    """Bytes of one device."""
    several_nodes: bool = False
    host: bool = False
    """The devices are the ranks' shares of RAM."""


def fit_lines(state: State, chosen: Chosen, options: Options, size: tuple[int, int], notice: str) -> list[Line]:
    """Draw the screen into (width, height) cells; keeps selection and scroll position where they can be."""
    width, height = max(1, size[0]), max(1, size[1])
    found = state.found
    if found is None or not found.fitting:
        lines = [_title(state, options, width), *_without(state, options, width)]
        return _page(lines, hint_line(HINTS[2:], notice, (), options.glyphs, width, FIT_KEYS), options, width, height)
    chosen.at = max(0, min(len(found.fitting) - 1, chosen.at))
    if chosen.open:
        return _open(found, chosen, options, (width, height), notice)
    return _table(state, found, chosen, options, (width, height), notice)


def _table(
    state: State, found: Fit, chosen: Chosen, options: Options, size: tuple[int, int], notice: str
) -> list[Line]:
    width, height = size
    look = Look(options, width, _unit(found), state.capacity)
    head = [_title(state, options, width), _now(found, width)]
    below = about(found.fitting[chosen.at], found, state.several_nodes, options, width)
    room = height - len(head) - len(below) - 3
    if room < 4:
        below, room = [], max(1, height - len(head) - 2)
    chosen.top = max(min(chosen.top, chosen.at), chosen.at - room + 1)
    chosen.top = max(0, min(chosen.top, len(found.fitting) - room))
    shown = columns(found, look)
    rows = [
        row(one, number == chosen.at, shown, look)
        for number, one in enumerate(found.fitting[chosen.top : chosen.top + room], chosen.top)
    ]
    lines = [*head, heading(shown, look), *rows]
    if below:
        lines += [*([pad((), width)] * (height - 1 - len(lines) - len(below))), *below]
    more = place(chosen.top, len(rows), len(found.fitting), options.glyphs)
    return _page(lines, hint_line(HINTS, notice, more, options.glyphs, width, FIT_KEYS), options, width, height)


def _unit(found: Fit) -> Unit:
    return unit_for(max((one.total for one in found.fitting), default=None))


def _page(lines: Sequence[Line], footer: Line, options: Options, width: int, height: int) -> list[Line]:
    room = max(0, height - 1)
    whole = [*lines[:room], *([pad((), width)] * (room - len(lines))), footer]
    return [in_ascii(line) for line in whole] if options.glyphs.ascii else whole


def _title(state: State, options: Options, width: int) -> Line:
    found = state.found
    title: list[Span] = [(" what fits ", "head accent")]
    if found is None:
        return pad(title, width, "head")
    place = "of RAM per rank" if state.host else "per device"
    text = f"{found.global_batch} samples a step {options.glyphs.dot} {human(state.capacity)} {place}"
    tried = f"{found.tried} plans in {found.layouts} layouts"
    right = f" {tried} " if state.done else f" searching{options.glyphs.ellipsis} {found.tried} plans "
    return beside([*title, (f" {text}", "head")], [(right, "head")] if len(right) < width else [], width, "head")


def _now(found: Fit, width: int) -> Line:
    """Say what runs now, beside which the plans are."""
    now = found.present
    if now is None:
        return pad((), width, "panel")
    short = f"{human(now.missing)} too much" if now.missing else "fits tightly" if now.tight else "fits"
    text = (
        f" now: {now.title} {now.run.micro_batch}×{now.run.accumulation}, checkpointing {now.run.checkpointing}: "
        f"{human(now.total)}, {short}; {seconds(now.cost)} lost per step"
    )
    return pad([(text, "panel warn bold" if now.missing else "panel")], width, "panel")


def _without(state: State, options: Options, width: int) -> list[Line]:
    """Say why there is no table: the search goes on, could not begin, or nothing fits and what would help."""
    found = state.found
    if found is None:
        return [pad((), width), *wrapped(plain(state.reason), width, "warn")]
    lines = [_now(found, width), pad((), width)]
    if not state.done:
        return [*lines, *wrapped(f"nothing that fits has been found yet{options.glyphs.ellipsis}", width, "dim")]
    one = found.nearest
    if one is None:
        return [*lines, *wrapped(f"no plan can be judged: {plain(found.reason)}", width, "warn")]
    text = (
        f"nothing fits. Nearest is {one.title} with {one.run.micro_batch}×{one.run.accumulation} samples, "
        f"checkpointing {one.run.checkpointing}, {one.run.precision}: {human(one.total)}, "
        f"{human(one.missing)} too much."
    )
    lines += [*wrapped(text, width, "bad bold"), pad((), width)]
    from ranktop.budget.planning.fit_page import helps

    for help in helps(found):
        lines += wrapped(help, width, "text")
    return lines


def _open(found: Fit, chosen: Chosen, options: Options, size: tuple[int, int], notice: str) -> list[Line]:
    """Draw the lines that ask for the selected plan."""
    width, height = size
    head, body = plan_lines(found.fitting[chosen.at], chosen.form, options, width)
    room = max(1, height - len(head) - 1)
    chosen.scroll, shown = window(body, chosen.scroll, room)
    more = place(chosen.scroll, len(shown), len(body), options.glyphs)
    return _page(
        [*head, *shown], hint_line(LINES_HINTS, notice, more, options.glyphs, width, FIT_KEYS), options, width, height
    )
