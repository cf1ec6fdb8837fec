"""The detail panel of the selected rank: who it is, the category table, and as many blocks beside as fit."""

from __future__ import annotations

from textwrap import wrap
from typing import Final

from ranktop.budget.terms import CATEGORIES, NOT_BUDGETED
from ranktop.tui.session.expected import ALLOCATED
from ranktop.tui.session.findings.scene import Key
from ranktop.tui.session.processes import strays
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.bar import LETTERS
from ranktop.tui.view.columns import device_name
from ranktop.tui.view.device import device_block
from ranktop.tui.view.device_words import device_sentences, other_sentence, parts_of_other, unknown_sentences
from ranktop.tui.view.facts import card_block, rules_block, stale_note, steps_block
from ranktop.tui.view.findings import about, mark, style_of
from ranktop.tui.view.header import moment_title
from ranktop.tui.view.history import history
from ranktop.tui.view.options import PAGES, Options
from ranktop.tui.view.postmortem import has_account
from ranktop.tui.view.rows import Table, delta_style
from ranktop.tui.view.scale import Shown
from ranktop.tui.view.status import end_sentence
from ranktop.tui.view.text import (
    Line,
    Span,
    Unit,
    beside,
    count,
    first_that_fits,
    fit,
    human,
    length,
    merge,
    pad,
    plain,
    signed,
    size,
)

TABLE_WIDTH: Final = 49
MIN_SIDE: Final = 28
"""Cells that one side page needs."""
SIDE: Final = 34
"""Cells from which on a further page is shown beside it."""
MIN_CHART: Final = 6
MOST_FINDINGS: Final = 3
"""Findings about the rank that are told in full."""
OTHER_TEXT: Final = 34
"""Cells of a category's row up to where what ``other`` is made of begins: nothing is expected of it."""
CONTENT_ROWS: Final = 12
"""Rows that the panel needs: identity, titles, nine categories, the sum."""


def detail(
    snapshot: Snapshot, frame: Table, options: Options, width: int, height: int, told: frozenset[Key] = frozenset()
) -> list[Line]:
    """Fill exactly ``height`` lines of ``width`` cells about the selected rank.

    ``told``: findings that the screen tells elsewhere in full.
    """
    if height <= 0 or width <= 0:
        return []
    at = frame.index(options.selected)
    if at is None:
        nothing = "no rank passes the filter" if frame.total_ranks else "waiting for the first rank"
        return _filled([pad([(f" {nothing}", "panel dim")], width, "panel")], width, height)
    row = frame.rows[at]
    lines = [_identity(row, options, width)]
    lines += _body(row, snapshot, frame, options, (width, height - 1), told)
    return _filled(lines, width, height)


def _filled(lines: list[Line], width: int, height: int) -> list[Line]:
    lines = [pad(line, width) for line in lines[:height]]
    return lines + [pad((), width)] * (height - len(lines))


def _identity(row: Shown, options: Options, width: int) -> Line:
    view, dot = row.view, f" {options.glyphs.dot} "
    title = moment_title(options, row.moment)
    step = _older_step(view)
    right = f" {title}, step {count(step)} " if step is not None and row.moment != "now" else f" {title} "
    facts = [f"rank {view.rank}"]
    card = view.card
    if card is not None:
        place = "" if card.device.nvml_index is None else f" (NVML {card.device.nvml_index})"
        facts += [plain(card.node), device_name(view) + place, plain(card.device.name), f"pid {card.pid}"]
        if view.restart:
            facts.append(f"restart {view.restart}")
    stale = stale_note(view)
    room = width - len(right) - len(stale) - 3
    # Dropped in this order when it is narrow: the device's name, the pid, the node.
    for left_out in ((), (3,), (3, 4), (1, 3, 4), (1, 2, 3, 4)):
        text = dot.join(fact for at, fact in enumerate(facts) if fact and at not in left_out)
        if length(((text, ""),)) <= room:
            break
    left: list[Span] = [(f" {text}", "panel bold")]
    if stale:
        left.append((f"  {stale}", "panel warn"))
    return beside(left, ((right, "panel"),), width, "panel")


def _older_step(view: RankView) -> int | None:
    """Return the step that the table is of, when it is not the one that finished last."""
    sample = view.sample
    return None if sample is None or sample.table is None or sample.table.step == sample.step else sample.table.step


def memory_block(row: Shown, snapshot: Snapshot, frame: Table, options: Options) -> list[Line]:
    """Lay expected beside measured by category, with the difference and the step since when it stands."""
    glyphs, unit = options.glyphs, frame.scale.unit
    titles = f" {unit.name:<13}{'expected':>9}{'measured':>9}{glyphs.delta:>8}  since"
    lines: list[Line] = [pad([(titles, "label")], TABLE_WIDTH)]
    grave = {one.subject for one in about(row.view.rank, snapshot.findings) if one.severity != "info"}
    for name in CATEGORIES:
        lines.append(_category(name, row, unit, options, name in grave))
        if name == "other":
            lines[-1] = _with_parts(lines[-1], row, snapshot, frame)
    used = size(row.memory.used(), unit, 2, glyphs.dash)
    total = size(_total(row), unit, 2, glyphs.dash)
    lines.append(
        pad([(f"{' used':<14}{'':9}", "label"), (f"{used:>9}", "bold"), (_of(total, row), "dim")], TABLE_WIDTH)
    )
    if row.comparable:
        both = sum(getattr(row.memory, name) for name in row.comparable)
        delta = row.total_delta
        lines.append(
            pad([(f"{' compared':<14}", "label"), (f"{size(row.expected_sum, unit, 2):>9}", "number"),
                 (f"{size(both, unit, 2):>9}", "number"),
                 (f"{signed(delta, unit, 2, glyphs):>8}", delta_style(delta, row.expected_sum))], TABLE_WIDTH)
        )  # fmt: skip
    return lines


def _total(row: Shown) -> int | None:
    """Return the device's bytes; those of the card while the device does not say."""
    card = row.view.card
    return row.memory.total if row.memory.total is not None or card is None else card.device.total


def _of(total: str, row: Shown) -> str:
    """Say of how much that is, and whether it is the host's memory that the device shares."""
    card = row.view.card
    if card is None or not card.device.unified:
        return f"  of {total}"
    return first_that_fits((f"  of {total} shared", f" of {total} shared", f"  of {total}"), TABLE_WIDTH - 32)


def _category(name: str, row: Shown, unit: Unit, options: Options, hot: bool) -> Line:
    glyphs = options.glyphs
    measured: int | None = getattr(row.memory, name)
    amount = row.amounts.get(name)
    wanted = None if amount is None else amount.bytes
    guessed = glyphs.about if amount is not None and wanted and amount.within is None else ""
    expected = f"{guessed}{size(wanted, unit, 2, glyphs.dash)}"
    delta = row.delta(name)
    text = signed(delta, unit, 2, glyphs)
    if delta and text.startswith(glyphs.about):
        text = human(delta, sign=True).replace(" ", "")
    mark = LETTERS.get(name, ".") if options.letters else glyphs.swatch
    style = "bad bold" if hot else "number"
    return pad(
        [(f" {mark} ", f"key:{LETTERS.get(name, '.')}"), (f"{name:<11}", "bad bold" if hot else "text"),
         (f"{expected:>9}", "dim" if wanted is None or guessed else "number"),
         (f"{size(measured, unit, 2, glyphs.dash):>9}", style),
         (f"{text if delta is not None else '':>8}", delta_style(delta, wanted)),
         (f"  {_since(name, row, options)}", "dim")], TABLE_WIDTH
    )  # fmt: skip


def _with_parts(line: Line, row: Shown, snapshot: Snapshot, frame: Table) -> Line:
    """Say in what is left of the row of ``other`` what it is made of, as much as there is room for."""
    parts = [(name, size(held, frame.scale.unit, 2)) for name, held in parts_of_other(row.view, snapshot)]
    room = TABLE_WIDTH - OTHER_TEXT
    names = [name for name, _ in parts]
    forms = [", ".join(f"{name} {held}" for name, held in parts), " + ".join(names), *names[:1], ""]
    text = first_that_fits(forms, room)
    style = "bad" if text.startswith("rank") and strays(row.view, snapshot) is not None else "dim"
    return pad((*pad(line, OTHER_TEXT), (text, style)), TABLE_WIDTH) if text else line


def _since(name: str, row: Shown, options: Options) -> str:
    standing = row.view.standing.get((row.moment or "", name))
    if standing is None or not row.delta(name):
        return ""
    mark = "" if standing.known else options.glyphs.at_most
    return fit(f"{mark}{count(standing.step)}", 6).rstrip()


def _body(
    row: Shown, snapshot: Snapshot, frame: Table, options: Options, room: tuple[int, int], elsewhere: frozenset[Key]
) -> list[Line]:
    width, height = room
    memory = memory_block(row, snapshot, frame, options)
    parts = other_sentence(row.view, snapshot, frame.scale.unit)
    known = [*_shared(row), *parts, *_unknown(row), *unknown_sentences(row.view)]
    free = width - TABLE_WIDTH - 1
    sides = min(len(PAGES), max(free // SIDE, 1 if free >= MIN_SIDE else 0))
    # The device's page tells what ails it: no need to say it again where that would take the page's room.
    health = sides != 1 or PAGES[options.page % len(PAGES)] != "device"
    told = _sentences(row, snapshot, options, health, elsewhere, brief=sides == 1 and height <= CONTENT_ROWS)
    if not sides:
        block = memory if options.page % 2 == 0 else _page(options.page // 2, row, snapshot, options, width - 1)
        return [*block, *_tell([*told, *known], width)][:height]
    columns, widths, pages = [memory], [TABLE_WIDTH], _pages(options.page, row)
    for at in range(sides):
        each = free // sides - 2 if at < sides - 1 else free - (free // sides) * (sides - 1) - 2
        columns.append(_page(pages[at], row, snapshot, options, each))
        widths.append(each)
    below = _tell(told, width)
    if told and height - len(memory) < len(below):
        # Small screens have no line below the table: say it beside it.
        columns[1] = _beside(columns[1], told, widths[1], height)
        below = []
    below += _tell(known, width)
    tallest = max(len(column) for column in columns)
    lines = _side_by_side(columns, widths, min(height, max(len(memory), min(tallest, height - len(below)))), options)
    lines += below[: max(0, height - len(lines))]
    rest = height - len(lines) - 1
    if rest >= MIN_CHART:
        lines.append(pad((), width))
        lines += history(row, snapshot, frame, options, width, rest)
    return lines


def _beside(page: list[Line], told: list[tuple[str, str]], width: int, height: int) -> list[Line]:
    said = [pad([(part, style)], width) for text, style in told for part in wrap(text, max(8, width))]
    return [*page[: max(0, height - len(said))], *said]


def _pages(first: int, row: Shown) -> list[int]:
    """Return the pages from the chosen one on; a host says so little that its device comes last."""
    order = [(first + at) % len(PAGES) for at in range(len(PAGES))]
    host = row.view.card is not None and row.view.card.device.kind != "cuda"
    device = PAGES.index("device")
    return sorted(order, key=lambda page: page == device) if host and order[0] != device else order


def _page(number: int, row: Shown, snapshot: Snapshot, options: Options, width: int) -> list[Line]:
    name = PAGES[number % len(PAGES)]
    if name == "device":
        return device_block(row.view, snapshot, width, options.glyphs)
    if name == "card":
        return card_block(row.view, width)
    if name == "rules":
        return rules_block(row, width)
    return steps_block(row.view, snapshot, width, options.glyphs)


def _side_by_side(columns: list[list[Line]], widths: list[int], rows: int, options: Options) -> list[Line]:
    lines: list[Line] = []
    for at in range(rows):
        spans: list[Span] = []
        for index, (column, width) in enumerate(zip(columns, widths, strict=True)):
            if index:
                spans.append((f"{options.glyphs.rule} ", "rule"))
            spans += column[at] if at < len(column) else pad((), width)
        lines.append(merge(spans))
    return lines


def _sentences(
    row: Shown, snapshot: Snapshot, options: Options, health: bool, elsewhere: frozenset[Key], *, brief: bool
) -> list[tuple[str, str]]:
    """Return what is to be said of the rank, the worst first; ``brief``: of its findings only the first."""
    told: list[tuple[str, str]] = []
    ended = end_sentence(row.view)
    if ended:
        told.append((ended, "dim" if row.view.state == "ended" else "bad bold"))
    found = [one for one in about(row.view.rank, snapshot.findings) if not (ended and one.rule == "death")]
    known = frozenset(one.rule for one in found)
    told += device_sentences(row.view, snapshot, options.glyphs, health=health, known=known)
    here = [one for one in found if one.key not in elsewhere]
    for finding in here[: 1 if brief else MOST_FINDINGS]:
        told.append((f"{mark(finding, options.glyphs)} {plain(finding.sentence)}", style_of(finding)))
    if has_account(row.view):
        told.append(("p: post-mortem", "accent"))
    return told


def _shared(row: Shown) -> list[tuple[str, str]]:
    card = row.view.card
    unified = card is not None and card.device.unified
    return [("the device has no memory of its own: it shares the host's", "dim")] if unified else []


def _unknown(row: Shown) -> list[tuple[str, str]]:
    """Say why tensors have no expected side, categories of one reason in one sentence."""
    reasons: dict[str, list[str]] = {}
    for name in ALLOCATED:
        amount = row.amounts.get(name)
        if amount is not None and amount.bytes is None and amount.rule not in ("", NOT_BUDGETED):
            reasons.setdefault(plain(amount.rule), []).append(name)
    return [(f"no expected {' and '.join(names)}: {reason}", "dim") for reason, names in reasons.items()]


def _tell(told: list[tuple[str, str]], width: int) -> list[Line]:
    return [pad([(f" {part}", style)], width) for text, style in told for part in wrap(text, max(8, width - 2))]
