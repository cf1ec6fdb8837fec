"""The pictures of an explanation: every rank's share, bars of what is full, one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.explain.explanation import SHOWN, Explanation, Moment, Rank, Share
from ranktop.budget.run import WITHOUT_PEAK, RankBudget
from ranktop.budget.terms import BUDGETED, STEP
from ranktop.tui.view.bar import LETTERS, cells, half_blocks, letters
from ranktop.tui.view.explain_text import MOMENT_WORDS, Paper, ranks_words
from ranktop.tui.view.text import Line, Span, fit, length

LABEL: Final = 15
"""Cells of the names in front of a picture."""

BOX: Final = (3, 8)
"""Fewest and most cells of one rank's box."""

TOTAL: Final = 7


def share_lines(explanation: Explanation, paper: Paper) -> list[Line]:
    """Draw every rank's part of each category: a box is the whole, what is filled is held."""
    notes = {category: _note(at, explanation, paper) for at, category in enumerate(SHOWN)}
    room = paper.width - LABEL - max(map(len, notes.values())) - 1
    if room < 2 * (BOX[0] + 1):
        notes, room = dict.fromkeys(SHOWN, ""), paper.width - LABEL
    shown = _spread(explanation.ranks, max(1, room // (BOX[0] + 1)))
    box = _even(max(1, min(BOX[1], room // max(1, len(shown)) - 1)), shown, 1 if paper.glyphs.ascii else 2)
    lines = [_head("rank", [str(rank.rank) for rank in shown], box)]
    axes = [name for name, _ in shown[0].place] if shown else []
    if len(axes) > 1:
        lines += [_head(name, [str(dict(rank.place)[name]) for rank in shown], box) for name in axes]
    for at, category in enumerate(SHOWN):
        spans: list[Span] = [(" ", ""), paper.swatch(category), (f" {category:<{LABEL - 3}}", "text")]
        for rank in shown:
            spans += [*_box(rank.shares[at], box, paper), (" ", "")]
        lines.append((*spans, (notes[category], "dim")))
    world = explanation.ranks[-1].rank + 1 if explanation.ranks else 0
    if len(shown) < world:
        lines += paper.told(f"{len(shown)} of {world} ranks", "dim", indent=LABEL)
    return [*lines, *(line for text in _activations(explanation) for line in paper.told(text, "dim"))]


def _activations(explanation: Explanation) -> Iterator[str]:
    """Yield what the boxes of the activations do not show: what is not cut, and of how many micro-batches they are."""
    at = SHOWN.index("activations")
    shares = [rank.shares[at] for rank in explanation.ranks]
    if any(share.partly for share in shares):
        yield "activations: cut inside attention and MLP, whole on every rank around them"
    most, least = (pick((share.in_flight for share in shares), default=1) for pick in (max, min))
    if most > 1:
        rank = explanation.projection.rank
        chunks = rank is not None and rank.plan.pipeline is not None and rank.plan.pipeline.virtual > 1
        fewer = f"; the fewest: {least}" if least < most else ""
        what = "chunks" if chunks else "micro-batches"
        yield f"activations: of the rank's own layers, for up to {most} {what} in flight{fewer}"


def _spread(ranks: tuple[Rank, ...], most: int) -> tuple[Rank, ...]:
    if len(ranks) <= most:
        return ranks
    if most == 1:
        return ranks[:1]
    return tuple(ranks[i * (len(ranks) - 1) // (most - 1)] for i in range(most))


def _even(box: int, ranks: tuple[Rank, ...], steps: int) -> int:
    """Return the largest box that all numbers of parts divide, so that equal parts look equal."""
    parts = {share.parts for rank in ranks for share in rank.shares if share.parts <= steps * box}
    fitting = [size for size in range(box, 1, -1) if all(not steps * size % max(1, part) for part in parts)]
    return fitting[0] if fitting else box


def _head(name: str, values: list[str], box: int) -> Line:
    return ((f"   {name:<{LABEL - 3}}", "label"), *((fit(value, box) + " ", "label") for value in values))


def _note(at: int, explanation: Explanation, paper: Paper) -> str:
    """Return how the whole is dealt out, and how many bytes that makes on the rank that has the most."""
    shares = [rank.shares[at] for rank in explanation.ranks]
    sizes = [share.bytes for share in shares]
    most = None if None in sizes else max((size or 0 for size in sizes), default=0)
    return f"{_dealt(shares):<6} {paper.cell(most) if most is None or most else '':>5}"


def _dealt(shares: list[Share]) -> str:
    """Return in a word how the ranks share a category."""
    held = [share for share in shares if share.parts]
    if not held:
        return shares[0].away or "none" if shares else ""
    if len(held) < len(shares):
        return "one"
    parts = held[0].parts
    if held[0].partly:
        return "partly"
    if parts == 1:
        return "own" if held[0].own else "all"
    return f"1/{parts}"


def _box(share: Share, width: int, paper: Paper) -> list[Span]:
    """Draw one box with a rank's part filled; in halves of cells where blocks can be shown."""
    letter = LETTERS[share.category]
    if share.away:
        return [(fit(share.away, width), "dim")]
    empty = "." if paper.glyphs.ascii else "·"
    if not share.parts:
        return [(empty * width, "track")]
    steps = width if paper.glyphs.ascii else 2 * width
    start = min(share.index * steps // share.parts, steps - 1)
    stop = start + max(1, steps // share.parts)
    if share.partly:
        return [((letter if paper.glyphs.ascii else "▒") * width, f"key:{letter}")]
    if paper.glyphs.ascii:
        text = empty * start + letter.upper() * (stop - start) + empty * (steps - stop)
        filled = (text[:start], "track"), (text[start:stop], f"key:{letter}"), (text[stop:], "track")
        return [span for span in filled if span[0]]
    halves = [start <= at < stop for at in range(steps)]
    spans: list[Span] = []
    for left, right in zip(halves[::2], halves[1::2], strict=True):
        block = "█" if left and right else "▌" if left else "▐" if right else empty
        spans.append((block, f"key:{letter}" if left or right else "track"))
    return spans


def _bar(held: dict[str, int | None], scale: int, width: int, paper: Paper) -> Line:
    row = cells(held, scale, width)
    return letters(row, row, False, paper.glyphs) if paper.letters else half_blocks(row, row, False)


def peak_lines(explanation: Explanation, paper: Paper) -> list[Line]:
    """Draw every kind of rank at its peak against a device, and say what the worst one's bar is made of."""
    labels = [_kind(rank) for rank in explanation.kinds]
    wide = min(max([LABEL, *(len(label) + 2 for label in labels)]), paper.width // 2)
    sums = [sum(_at_peak(rank).values(), start=0) for rank in explanation.kinds]
    capacity = explanation.run.device_memory
    scale = max([*sums, capacity or 0, 1])
    width = max(4, paper.width - wide - TOTAL - 18)
    if paper.width < 60:
        width = max(4, paper.width - wide - TOTAL)
    lines: list[Line] = []
    for rank, label, total in zip(explanation.kinds, labels, sums, strict=True):
        over = capacity is not None and total > capacity
        written = paper.plain("" if rank.total is not None else "≥") + paper.cell(total)
        bar = _bar(dict(_at_peak(rank)), scale, width, paper)
        spans: list[Span] = [(fit(f" {paper.plain(label)}", wide), "text")]
        spans += _marked(bar, capacity, scale, width, paper)
        spans.append((f"{written:>{TOTAL}}", "bad" if over else "number"))
        if paper.width >= 60:
            spans.append((f"  {MOMENT_WORDS.get(_fullest(rank), '')}", "dim"))
        lines.append(tuple(spans))
    told = f"full bar: {paper.size(scale)}"
    if capacity is not None and scale > capacity:
        told += f"; {paper.glyphs.rule} what a GPU has, {paper.size(capacity)}"
    return [*lines, *paper.told(told, "dim", indent=wide), *_legend(explanation, paper), *_away(explanation, paper)]


def _marked(bar: Line, capacity: int | None, scale: int, width: int, paper: Paper) -> Line:
    """Put a line into a bar where the device ends, when the bar goes on behind it."""
    if capacity is None or capacity >= scale:
        return bar
    from ranktop.tui.view.text import cut

    at = min(width - 1, round(capacity / scale * width))
    left, rest = cut(bar, at)
    _, right = cut(rest, 1)
    return (*left, (paper.glyphs.rule, "bad bold"), *right)


def _kind(rank: RankBudget) -> str:
    stage = f"stage {rank.stage}, " if rank.plan.layout.pipeline > 1 else ""
    return f"{stage}{ranks_words(rank.ranks)}"


def _fullest(rank: RankBudget) -> str:
    """Return the moment of a rank's peak; without one that at which the most is known."""
    known = {name: sum(amount.bytes or 0 for amount in rank.budget.at(name).values()) for name in STEP}
    return rank.budget.peak() or max(known, key=lambda name: (known[name], name == WITHOUT_PEAK))


def _at_peak(rank: RankBudget) -> dict[str, int]:
    at = rank.budget.at(_fullest(rank))
    return {name: at[name].bytes or 0 for name in BUDGETED if name in at}


def _legend(explanation: Explanation, paper: Paper) -> list[Line]:
    """Return the worst rank's categories at its peak, each with its colour, in as many lines as that takes."""
    rank = explanation.projection.rank
    lines: list[Line] = []
    line: list[Span] = [(" ", "")]
    for name, amount in rank.budget.at(_fullest(rank)).items() if rank is not None else ():
        if name not in BUDGETED:
            continue
        unsure = "" if amount.within == 0 and not amount.slack else "?" if amount.within is None else ""
        item: list[Span] = [paper.swatch(name), (f" {name} ", "dim"), (f"{paper.cell(amount.bytes)}{unsure}", "number"),
                            ("  ", "")]  # fmt: skip
        if length(line) + length(item) - 2 > paper.width and len(line) > 1:
            lines.append(tuple(line))
            line = [(" ", "")]
        line += item
    return [*lines, tuple(line)]


def _away(explanation: Explanation, paper: Paper) -> list[Line]:
    """Say what a rank keeps off its device, and what that is made of."""
    rank = explanation.projection.rank
    lines: list[Line] = []
    places = (("host memory", rank.budget.host), ("NVMe", rank.budget.nvme)) if rank is not None else ()
    for where, amount in places:
        if amount.bytes:
            pieces = ", ".join(f"{part.name.partition(' (')[0]} {paper.size(part.bytes)}" for part in amount.parts)
            lines += paper.told(f"{where}: {paper.size(amount.bytes)} per rank" + (f": {pieces}" if pieces else ""))
    return lines


def step_lines(explanation: Explanation, paper: Paper) -> list[Line]:
    """Draw what the worst rank holds through one step."""
    capacity = explanation.run.device_memory
    rank = explanation.projection.rank
    peak = rank.budget.peak() if rank is not None else None
    sums = [sum(size or 0 for size in moment.held.values()) for moment in explanation.moments]
    scale = max([*sums, min(capacity or 0, 2 * max(sums, default=0)), 1])
    label = 16
    note = max(0, min(46, paper.width - label - TOTAL - 24))
    note = note if note >= 16 else 0
    width = max(4, paper.width - label - TOTAL - note)
    lines: list[Line] = []
    for moment, total in zip(explanation.moments, sums, strict=True):
        hot = moment.name == peak
        words = MOMENT_WORDS.get(moment.name, moment.name)
        known = "" if moment.total is not None else "≥"
        passing, *more = _passing(moment, note, paper)
        lines.append(
            ((fit(f" {words}", label), "text bold" if hot else "text"),
             *_marked(_bar(dict(moment.held), scale, width, paper), capacity, scale, width, paper),
             (f"{paper.plain(known) + paper.cell(total):>{TOTAL}}", "number bold" if hot else "number"),
             (passing, "dim"))
        )  # fmt: skip
        lines += [((" " * (label + width + TOTAL) + row, "dim"),) for row in more]
    return lines


def _passing(moment: Moment, room: int, paper: Paper) -> list[str]:
    """Return the largest piece that is there only for a while, in as many lines as that takes."""
    if room < 8 or moment.largest is None:
        return [""]
    size = paper.cell(moment.largest.bytes)
    name = moment.largest.name.partition(" (")[0]
    if len(paper.plain(name)) > room - len(size) - 3:
        name = name.partition(", ")[0]
    first, *rest = paper.fold(name, room - len(size) - 3)
    return [f"  {size} {first}", *(" " * (len(size) + 3) + row for row in rest)]
