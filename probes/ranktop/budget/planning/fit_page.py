"""The search for plans that fit as a page: a table, the lines that ask for one plan, or what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ranktop.budget.planning.notes import device_line, model_line, run_line
from ranktop.budget.planning.page import painted
from ranktop.budget.planning.sizes import GIB, fold, seconds
from ranktop.budget.planning.table import Cell

if TYPE_CHECKING:
    from ranktop.budget.fit import Candidate, Fit
    from ranktop.budget.planning.request import Request

SHOWN: Final = 20
"""Plans in the table; JSON has them all."""

LEGEND: Final = (
    "GiB on the worst rank at its peak; left: beside it, ! less than the total may be off; sent: GiB by the busiest GPU"
    "{}; lost: seconds per step for all that, at least"
)

WORDS: Final = {
    "host": "GiB beside the GPU, for each rank", "copy": "to and from the host, and its optimizer's step",
    "again": "computed again", "wait": "idle in a pipeline",
}  # fmt: skip


def page(request: Request, found: Fit, width: int, number: int, colour: bool) -> str:
    """Return the page, ending with a newline; ``number``: the plan whose lines are shown, counted from 1."""
    lines = [[(line, "")] for text in _header(request, found) for line in fold(text, width, "  ")]
    lines.append([])
    lines += _answer(request, found, width, number) if found.fitting else _nothing(found, width)
    return "\n".join("".join(painted(cell, colour) for cell in line).rstrip() for line in lines) + "\n"


def _header(request: Request, found: Fit) -> Iterator[str]:
    yield model_line(request)
    yield f"{run_line(request)}; {device_line(request)}"
    now = found.present
    if now is not None:
        short = f"{GIB.named(now.missing)} too much" if now.missing else "fits, but tightly" if now.tight else "fits"
        yield (
            f"now: {now.title}, {batch(now)}, {checkpointing(now)}: {GIB.named(now.total)}, {short}; "
            f"{seconds(now.cost)} lost per step"
        )


def batch(one: Candidate) -> str:
    """Return micro-batch and accumulation, e.g. ``2 × 16``."""
    return f"{one.run.micro_batch} × {one.run.accumulation}"


def checkpointing(one: Candidate) -> str:
    """Return what is checkpointed, in words."""
    return {"none": "no checkpointing"}.get(one.run.checkpointing, f"{one.run.checkpointing} checkpointing")


def _answer(request: Request, found: Fit, width: int, number: int) -> Iterator[list[Cell]]:
    run = request.run
    if found.less_precise:
        text = f"nothing fits with {run.precision}; as exact in its updates, with {found.less_precise}:"
        yield from ([(line, "strong")] for line in fold(text, width, "  "))
    yield from _table(found, width, request.own is not None)
    words = found.speeds.words(run.world_size > run.gpus_per_node)
    told = [f"; {name}: {WORDS[name]}" for name, _, used in _columns(found) if used and name in WORDS]
    text = f"{LEGEND.format(''.join(told))} (nothing overlapped, {words})."
    yield from ([(line, "dim")] for line in fold(text, width))
    text = (
        f"The cheapest plan of each strategy that fits {found.global_batch} samples a step: {found.tried} plans judged "
        f"in {found.layouts} layouts."
    )
    yield from ([(line, "dim")] for line in fold(text, width))
    yield []
    yield from _lines(found.fitting[number - 1], number, width, request.own is not None)
    if len(found.fitting) > 1:
        yield from _styled("--fit-plan N shows the lines of another plan, --json every form of all", width, "dim")


Column = tuple[str, "Callable[[Candidate], Cell]", bool]
"""Head, cell, whether any plan that is shown has something in it."""


def _columns(found: Fit) -> list[Column]:
    shown = found.fitting[:SHOWN]

    def time(name: str, part: Callable[[Candidate], float]) -> Column:
        return name, lambda one: (seconds(part(one)), ""), any(part(one) for one in shown)

    return [
        ("batch", lambda one: (f"{one.run.micro_batch}×{one.run.accumulation}", ""), True),
        ("ckpt", lambda one: (CHECKPOINTING.get(one.run.checkpointing, one.run.checkpointing), ""), True),
        ("GiB", lambda one: (GIB.write(one.total), "strong"), True),
        ("left", _left, True),
        ("host", lambda one: (GIB.write(host(one)), ""), any(host(one) for one in shown)),
        ("sent", lambda one: (GIB.write(one.sent), ""), True),
        time("copy", lambda one: one.seconds.copying),
        time("again", lambda one: one.seconds.recomputing),
        time("wait", lambda one: one.seconds.waiting),
        ("lost", lambda one: (seconds(one.cost), "strong"), True),
    ]


def host(one: Candidate) -> int | None:
    """Return the bytes that a rank keeps in the host's memory and on disk."""
    budget = one.projection.ranks[one.projection.worst].budget
    return None if budget.host.bytes is None else budget.host.bytes + (budget.nvme.bytes or 0)


CHECKPOINTING: Final = {"none": "–", "selective": "sel", "full": "full"}


def _left(one: Candidate) -> Cell:
    text = ("!" if one.tight else "") + GIB.write(one.projection.headroom)
    return text, "bad" if one.tight else ""


def _table(found: Fit, width: int, told: bool) -> Iterator[list[Cell]]:
    """Yield head and rows; what each changes of what runs now stands behind it where there is room, else below it."""
    columns = [(head, cell) for head, cell, used in _columns(found) if used]
    shown = found.fitting[:SHOWN]
    table = [[cell(one) for _, cell in columns] for one in shown]
    widths = [max(len(head), *(len(row[i][0]) for row in table)) for i, (head, _) in enumerate(columns)]
    names = max(len("plan"), *(len(one.title) for one in shown))
    changes = [", ".join(one.changes) if told else "" for one in shown]
    taken = 3 + names + sum(size + 1 for size in widths) + 2
    beside = any(changes) and taken + max(map(len, changes)) <= width
    yield [(f"   {'plan'.ljust(names)}", "dim"), *((f" {head.rjust(size)}", "dim")
           for (head, _), size in zip(columns, widths, strict=True)), ("  changes" * beside, "dim")]  # fmt: skip
    for number, (one, row, change) in enumerate(zip(shown, table, changes, strict=True), 1):
        line: list[Cell] = [(f"{number:2} ", "dim"), (one.title.ljust(names), "best" if number == 1 else "")]
        line += [(f" {text.rjust(size)}", style) for (text, style), size in zip(row, widths, strict=True)]
        yield [*line, (f"  {change}", "dim")] if beside else line
        if change and not beside:
            yield from ([(f"     {part}", "dim")] for part in fold(change, max(20, width - 5), "  "))


def _lines(one: Candidate, number: int, width: int, told: bool) -> Iterator[list[Cell]]:
    """Yield the most direct form that asks for a plan, and what it cannot say."""
    from ranktop.budget.fitting.lines import KINDS, beside, lines_of

    also = f" (the same: {', '.join(one.also)})" if one.also else ""
    changes = f": {', '.join(one.changes) or 'no change'}" if told else ""
    yield from _styled(f"{number}. {one.title}{also}{changes}", width, "strong", "   ")
    for kind, lines in lines_of(one).items():
        yield [(f"in {KINDS[kind]}:", "dim")]
        yield from ([(f"  {line}", "")] for line in lines)
        for text in beside(one, kind):
            yield from _styled(f"and {text}", width)
        return


def _styled(text: str, width: int, style: str = "", indent: str = "  ") -> Iterator[list[Cell]]:
    yield from ([(line, style)] for line in fold(text, width, indent))


def _nothing(found: Fit, width: int) -> Iterator[list[Cell]]:
    """Yield what is nearest, and what would help."""
    one = found.nearest
    if one is None:
        yield from _styled(f"no plan can be judged: {found.reason}", width)
        return
    yield from _styled(
        f"nothing fits for {found.global_batch} samples a step: of {found.tried} plans, {one.title} is nearest: it "
        f"needs {GIB.named(one.total)}, {GIB.named(one.missing)} too much",
        width,
        "bad",
    )
    yield from _styled(f"  with {batch(one)} samples, {checkpointing(one)}, {one.run.precision}", width)
    yield []
    for text in helps(found):
        yield from _styled(text, width)


def helps(found: Fit) -> Iterator[str]:
    """Yield what would make something fit, one line each."""
    one = found.nearest
    if one is None:
        return
    yield f"a larger GPU: {GIB.named(one.total)} or more for {one.title}"
    if found.more_ranks is not None:
        yield f"more GPUs: with {found.more_ranks[0]} of them {found.more_ranks[1]} fits"
    if found.shorter is not None:
        yield f"shorter samples: {one.title} fits with {found.shorter} tokens"
    if len(found.suggestions) == 0 and found.more_ranks is None and found.shorter is None:
        yield "neither more GPUs nor shorter samples nor a smaller optimizer makes these strategies fit"
    for each in found.suggestions:
        what = each.candidate
        yield (
            f"other training: {each.words}: {what.title} with {batch(what)} samples, {checkpointing(what)} takes "
            f"{GIB.named(what.total)}"
        )
