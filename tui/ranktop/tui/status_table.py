"""What ``ranktop status`` prints for people: a table per job, and below it the findings."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Final

from ranktop.budget.terms import STATES
from ranktop.tui.printing import legible
from ranktop.tui.session.expected import difference
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Session, Snapshot
from ranktop.tui.status_json import BUDGETABLE, strategy_json
from ranktop.tui.status_report import recording_line, report
from ranktop.tui.view.label import simulated
from ranktop.tui.view.nodes import nodes_line
from ranktop.wire.codec import clean


def print_table(sessions: Sequence[Session]) -> None:
    """Print a table per job as it is now, and below it the findings."""
    print_snapshots([session.snapshot() for session in sessions])


def print_snapshots(snapshots: Sequence[Snapshot]) -> None:
    """Print a table per job, wide enough for its columns, and below it the findings; in ASCII where that is all."""
    for snapshot in snapshots:
        print(legible(_told(snapshot)))


def _told(snapshot: Snapshot) -> str:
    from rich.console import Console
    from rich.table import Table

    seen = shutil.get_terminal_size().columns
    width = max(seen, 160)
    rows = [table_row(view) for view in snapshot.ranks]
    # Into a file or a pipe go all columns; a narrow terminal would break each line in two.
    room = seen if sys.stdout.isatty() else width
    shown = fitting(rows, room)
    # With a height too: rich takes any terminal of TERM=dumb for one of 80 columns.
    console = Console(width=width, height=25, markup=False, emoji=False, highlight=False)
    with console.capture() as told:
        console.print(job_line(snapshot))
        if line := nodes_line(snapshot):
            console.print(line, soft_wrap=True)
        if line := progress_line(snapshot, room):
            console.print(line, soft_wrap=True)
        if line := recording_line(snapshot):
            console.print(line, soft_wrap=True)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        for name in shown:
            table.add_column(name, justify="left" if name in {"node", "moment", "state"} else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(cell for name, cell in zip(COLUMNS, row, strict=True) if name in shown))
        console.print(table)
        for line in unknowns(snapshot):
            console.print(line, soft_wrap=True)
        if left_out := [name for name in COLUMNS if name not in shown]:
            console.print(f"no room for: {', '.join(left_out)}")
        console.print(FOOTNOTE, soft_wrap=True)
        for line in report(snapshot):
            console.print(line, soft_wrap=True)
    return told.get()


FOOTNOTE: Final = (
    "MiB at each rank's peak moment; Δ: measured - expected, over what is budgeted; 0: within the rules' error"
)

GAP: Final = 2
"""Cells between two columns."""

COLUMNS: Final = (
    *("rank", "node", "param", "grad", "optim", "activ", "buffers", "cache", "runtime", "Δ", "util", "step", "s/step"),
    *("moment", "state"),
)

LEAST_WANTED: Final = ("moment", "buffers", "node", "runtime", "cache", "util", "s/step")
"""Columns that a narrow terminal goes without, in this order."""


def fitting(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the columns that fit into ``width`` cells, two between them; the others are left out by their order."""
    shown = list(COLUMNS)
    needed = {
        name: max(map(len, (name, *(row[at] for row in rows)))) + GAP * (at > 0) for at, name in enumerate(COLUMNS)
    }
    for name in LEAST_WANTED:
        if sum(needed[each] for each in shown) > width:
            shown.remove(name)
    return shown


def job_line(snapshot: Snapshot) -> str:
    """Return one line about the job."""
    job = snapshot.job
    if job is None:
        return "a job that has said nothing yet"
    words = strategy_json(snapshot).get("words") or "no model seen yet"
    seen = sum(view.state != "missing" for view in snapshot.ranks)
    ranks = f"{seen}/{snapshot.world_size} ranks"
    label = "SIMULATED, nothing here was measured: " if simulated(view.card for view in snapshot.ranks) else ""
    return clean(f"{label}{job.name} ({job.id})  {words}  {ranks}  step {snapshot.step}  {snapshot.state}")


def progress_line(snapshot: Snapshot, width: int = 160) -> str:
    """Return one line about loss, learning rate, tokens a second and what is left; empty while nothing is told."""
    from ranktop.tui.session.progress import of_job
    from ranktop.tui.view.progress import line
    from ranktop.tui.view.text import UNICODE

    job = of_job(snapshot)
    if job is None:
        return ""
    told = line(job, UNICODE, width, ended=snapshot.state == "ended")
    return clean("".join(text for text, _ in told)).strip()


def table_row(view: RankView) -> list[str]:
    """Return the cells of one rank."""
    memory = view.memory(view.peak)
    amounts = view.budget.at(view.peak) if view.budget and view.peak else {}
    deltas = [difference(getattr(memory, name), amounts.get(name)) for name in BUDGETABLE] if memory else []
    known = [delta for delta in deltas if delta is not None]
    last = view.steps[-1] if view.steps else None
    sample = view.sample
    parts = (*STATES, "activations", "buffers", "cache", "runtime")
    return [
        str(view.rank),
        clean(view.card.node)[:20] if view.card else "–",
        *(_mib(getattr(memory, name) if memory else None) for name in parts),
        _mib(sum(known), signed=True) if known else "–",
        f"{sample.device.utilization}%" if sample and sample.device.utilization is not None else "–",
        str(sample.step) if sample else "–",
        f"{last.seconds:.3g}" if last and last.seconds is not None else "–",
        (view.peak or "–").replace("_", " "),
        _state(view),
    ]


def unknowns(snapshot: Snapshot) -> list[str]:
    """Return a line for each reason why the table has a dash for ranks that are otherwise well."""
    from ranktop.tui.view.device_words import ranks_words

    found: dict[tuple[str, str], list[int]] = {}
    for view in snapshot.ranks:
        memory, sample = view.memory(view.peak), view.sample
        if view.state != "ok" or memory is None or sample is None:
            continue
        missing: dict[str, list[str]] = {}
        for name in ("activations", "cache", "runtime"):
            if getattr(memory, name) is None and name in sample.reasons:
                missing.setdefault(sample.reasons[name], []).append(name)
        if sample.device.utilization is None and view.card is not None and view.card.device.kind == "cuda":
            missing.setdefault(sample.device.reasons.get("utilization", ""), []).append("util")
        for reason, names in missing.items():
            if reason:
                found.setdefault((", ".join(names), reason), []).append(view.rank)
    return [clean(f"{ranks_words(ranks)}: {names} not known: {why}") for (names, why), ranks in found.items()]


def _state(view: RankView) -> str:
    """Return a rank's state, with what slows down or ails the GPU of one that is well, and how old the picture is."""
    from ranktop.tui.view.device_words import health_word
    from ranktop.tui.view.gauges import Gauges
    from ranktop.tui.view.progress import activity_word

    gauges = Gauges.of(view)
    if gauges is None or view.state != "ok" or view.stale:
        return view.state + _age(view)
    word, old = health_word(gauges), gauges.old("utilization", "used")
    facts = [view.state, activity_word(view), word, "" if old is None else f"GPU read {old:.0f} s ago"]
    return ", ".join(fact for fact in facts if fact)


def _age(view: RankView) -> str:
    return f", {view.age:.0f} s old" if view.stale and view.age is not None else ""


def _mib(size: int | None, *, signed: bool = False) -> str:
    if size is None:
        return "–"
    return f"{size / 2**20:{'+' if signed and size else ''}.1f}"
