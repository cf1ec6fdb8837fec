"""What is shown before there is a job: how to attach, or which jobs there are."""

from __future__ import annotations

import time
from textwrap import wrap
from typing import TYPE_CHECKING

from ranktop.tui.keymap import of
from ranktop.tui.view.text import Glyphs, Line, beside, duration, fit, pad, plain

if TYPE_CHECKING:
    from ranktop.wire.endpoints import Found

TORCHRUN = "torchrun --nproc-per-node 8 -m ranktop.agent train.py --your args"
ONE_LINER = "from ranktop.agent import attach; attach(model, optimizer)"


def _framed(body: list[Line], title: str, hints: str, width: int, height: int) -> list[Line]:
    head = pad([(" ranktop", "head accent"), (f"  {title}", "head bold")], width, "head")
    foot = pad([(f" {hints}", "dim")], width)
    body = [pad(line, width) for line in body][: max(0, height - 2)]
    lines = [head, *body, *([pad((), width)] * max(0, height - 2 - len(body))), foot]
    return lines[: max(0, height)]


def _problems(problems: list[str], glyphs: Glyphs, width: int) -> list[Line]:
    lines: list[Line] = []
    for problem in problems:
        for at, row in enumerate(wrap(plain(problem), max(10, width - 6)) or [""]):
            lines.append(((f"  {glyphs.alert if at == 0 else ' '} ", "warn"), (row, "warn")))
    return lines


def fit_place(place: str) -> str:
    """Return the words for the machine that is looked at, so long that the sentence around it fits."""
    return fit(plain(place), 30).rstrip() if place else "this machine"


def waiting_lines(
    problems: list[str], trouble: str, waited: float, glyphs: Glyphs, width: int, height: int, place: str = ""
) -> list[Line]:
    """Say that there is no job yet, how to attach one, and what stood in the way."""
    body: list[Line] = [
        (),
        ((f"  No job with ranktop's agent on {fit_place(place)} yet; it appears here by itself.", "text"),),
        (),
        (("  Attach to a script without changing it:", "label"),),
        ((f"    {TORCHRUN}", "accent"),),
        (),
        (("  or from inside it, once model and optimizer exist:", "label"),),
        ((f"    {ONE_LINER}", "accent"),),
        (),
        (("  Also without torchrun: ", "label"), ("python -m ranktop.agent train.py", "accent")),
        (),
    ]
    body += _problems([*problems, *([trouble] if trouble else [])], glyphs, width)
    title = f"waiting for a job, {duration(waited)}"
    return _framed(body, title, f"{of('help')} help  {of('theme')} theme  {of('quit')} quit", width, height)


def choose_lines(found: Found, chosen: str, glyphs: Glyphs, width: int, height: int, place: str = "") -> list[Line]:
    """List the jobs of a machine, this one when ``place`` is empty, with the chosen one marked."""
    body: list[Line] = [(), (("    job                       ranks  started   id", "label"),)]
    ids = [job.id for job in found.jobs]
    room = max(1, height - 5)
    at = ids.index(chosen) if chosen in ids else 0
    top = max(0, min(at - room // 2, len(ids) - room))
    for job in found.jobs[top : top + room]:
        mine = job.id == chosen
        style = "bold selected" if mine else "text"
        since = duration(max(0.0, time.time() - job.started)) + " ago"
        ended = "  ended" if job.ended else ""
        text = f"{fit(plain(job.name), 24)}  {job.world_size:>5}  {since:<10} {plain(job.id)}{ended}"
        mark = glyphs.select if mine else " "
        body.append(pad([(f"  {mark} ", "cursor"), (fit(text, max(0, width - 4)), style)], width))
    body.append(())
    body += _problems(found.problems, glyphs, width)
    title = f"several jobs on {plain(place)}: which one?" if place else "several jobs: which one?"
    lines = _framed(body, title, f"up/down choose  enter attach  {of('quit')} quit", width, height)
    if len(ids) > room and lines:
        lines[0] = beside(lines[0], ((f"{top + 1}-{top + room} of {len(ids)} ", "head"),), width, "head")
    return lines
