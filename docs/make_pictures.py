"""Draws the pictures of the README from the dashboard itself: ``python docs/make_pictures.py``.

Blocks become rectangles instead of glyphs, so that bars have no seams whatever font a browser takes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from html import escape
from pathlib import Path

from rich.cells import cell_len
from rich.style import Style

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "tui"), str(HERE.parent / "tests")]

from dashboard import dashboard  # noqa: E402
from fake_findings import over_its_peers  # noqa: E402
from fake_gpu_jobs import hung_job, stray_job  # noqa: E402
from fake_job import GIB, FakeJob, fsdp_job  # noqa: E402
from hand_tape import tape  # noqa: E402
from msgspec import structs  # noqa: E402
from replayed import replayed  # noqa: E402

from ranktop.tui.replay import survey  # noqa: E402
from ranktop.tui.screens.strategies import StrategiesScreen  # noqa: E402

CELL_W, CELL_H, FONT = 8.4, 18.0, 14.0
MARGIN, TITLE = 10.0, 30.0
GROUND = "#14171f"
INK = "#d6dae3"
VERTICAL = "▁▂▃▄▅▆▇█"
HORIZONTAL = "▏▎▍▌▋▊▉"
Run = tuple[str, Style]


def rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a rectangle without soft edges: neighbours must meet."""
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect shape-rendering="crispEdges" {place} fill="{fill}"/>'


def color(style: Style, *, ground: bool) -> str | None:
    """Return the background or foreground of a style, None for the terminal's own."""
    chosen = style.bgcolor if ground else style.color
    return None if chosen is None or chosen.is_default else chosen.get_truecolor().hex


def blocks(text: str, x: float, y: float, ink: str) -> list[str]:
    """Draw a run of equal block characters as one rectangle; empty for other text."""
    width = len(text) * CELL_W
    first = text[0]
    if any(character != first for character in text):
        return []
    if first == "▀":
        return [rect(x, y, width, CELL_H / 2, ink)]
    if first in VERTICAL:
        height = CELL_H * (VERTICAL.index(first) + 1) / 8
        return [rect(x, y + CELL_H - height, width, height, ink)]
    if first in HORIZONTAL and len(text) == 1:
        return [rect(x, y, CELL_W * (HORIZONTAL.index(first) + 1) / 8, CELL_H, ink)]
    return []


def pieces(text: str) -> list[str]:
    """Split a run where block characters begin, change or end."""
    special = "▀" + VERTICAL + HORIZONTAL
    out: list[str] = []
    for character in text:
        kind = character if character in special else ""
        last = out[-1][-1] if out else None
        if last is not None and kind == (last if last in special else ""):
            out[-1] += character
        else:
            out.append(character)
    return out


def words(text: str, x: float, y: float, style: Style, ink: str) -> list[str]:
    """Place each word by itself: renderers don't agree on the width of spaces."""
    weight = ' font-weight="bold"' if style.bold else ""
    out: list[str] = []
    at = 0
    for word in text.split(" "):
        if word:
            left, width = x + at * CELL_W, cell_len(word) * CELL_W
            place = f'x="{left:.2f}" y="{y + CELL_H * 0.74:.2f}" textLength="{width:.2f}"'
            out.append(f'<text {place} fill="{ink}"{weight}>{escape(word)}</text>')
        at += cell_len(word) + 1
    return out


def row_svg(runs: list[Run], y: float) -> list[str]:
    """Draw one row of cells, backgrounds first."""
    under: list[str] = []
    over: list[str] = []
    x = MARGIN
    for text, style in runs:
        ink, ground = color(style, ground=False) or INK, color(style, ground=True)
        if ground and ground != GROUND:
            under.append(rect(x, y, cell_len(text) * CELL_W, CELL_H, ground))
        for piece in pieces(text):
            over += blocks(piece, x, y, ink) or words(piece, x, y, style, ink)
            x += cell_len(piece) * CELL_W
    return [*under, *over]


def svg(rows: list[list[Run]], columns: int, title: str) -> str:
    """Return the picture of a terminal window that shows these rows."""
    width = columns * CELL_W + 2 * MARGIN
    height = len(rows) * CELL_H + TITLE + MARGIN
    lights = "".join(
        f'<circle cx="{18 + 18 * at}" cy="15" r="5.5" fill="{fill}"/>'
        for at, fill in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    body = [part for at, runs in enumerate(rows) for part in row_svg(runs, TITLE + at * CELL_H)]
    fonts = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'font-family="{fonts}" font-size="{FONT}" role="img" aria-label="{escape(title)}">',
            f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>',
            lights,
            *body,
            "</svg>",
            "",
        ]
    )


async def ranks(job: FakeJob, size: tuple[int, int], selected: int) -> list[list[Run]]:
    """Return the cells of the ranks screen with one rank selected."""
    async with dashboard(job, size) as run:
        await run.press(*["down"] * selected)
        await run.after(4.0)
        return run.rows()


async def strategies(job: FakeJob, size: tuple[int, int]) -> list[list[Run]]:
    """Return the cells of the strategies screen once all rows are there."""
    async with dashboard(job, size) as run:
        await run.pilot.press("s")
        await run.pilot.pause()
        screen = run.app.screen
        assert isinstance(screen, StrategiesScreen)
        while len(screen.whatif.rows) + len(screen.whatif.failures) < len(screen.whatif.order()):
            await run.pilot.pause(0.02)
        screen.hurry()
        await run.pilot.pause()
        return run.rows()


async def device(job: FakeJob, size: tuple[int, int]) -> list[list[Run]]:
    """Return the cells of the device screen of the first rank."""
    async with dashboard(job, size) as run:
        await run.press("d")
        await run.after(1.0)
        return run.rows()


async def findings(job: FakeJob, size: tuple[int, int]) -> list[list[Run]]:
    """Return the cells of the evidence behind the second finding."""
    async with dashboard(job, size) as run:
        await run.press("f", "down")
        await run.press("enter")
        await run.after(1.0)
        return run.rows()


async def imbalance(job: FakeJob, size: tuple[int, int]) -> list[list[Run]]:
    """Return the cells of the grid of all ranks with the first outlier selected."""
    async with dashboard(job, size, budgets=False) as run:
        await run.press("i", "n")
        await run.after(1.0)
        return run.rows()


async def replay(size: tuple[int, int]) -> list[list[Run]]:
    """Return the cells of a replay of a job whose ranks were started anew."""
    setattr(survey, "COST", float("inf"))  # noqa: B010  # as on a machine that has nothing else to do
    recording = tape("restart", 2, ranks=8, seconds=600, start=100)
    async with replayed(recording, size, at=recording.begin + 250.0) as run:
        return run.rows()


def many_ranks() -> FakeJob:
    """Return 512 ranks on 64 nodes, of which a few are out of line."""
    job, ranks = fsdp_job(8), 512
    specs = {rank: replace(job.specs[0], activations=job.specs[rank % 8 % 3].activations) for rank in range(ranks)}
    for rank, more in ((139, 6.0), (140, 2.0), (310, -3.0), (437, 4.0)):
        specs[rank] = replace(specs[rank], activations=int(specs[rank].activations + more * GIB))
    found = tuple(
        over_its_peers(rank, "activations", specs[rank].activations, specs[0].activations, range(ranks))
        for rank in (139, 437)
    )
    world = structs.replace(job.job, world_size=ranks)
    return replace(job, specs=specs, job=world, findings=found, history_seconds=0)


def main() -> None:
    """Write every picture beside this file."""
    os.environ.pop("NO_COLOR", None)
    os.environ["TZ"] = "UTC"
    time.tzset()
    pictures = {
        "ranks": (ranks(fsdp_job(), (120, 30), 3), "ranktop: eight ranks, expected over measured memory"),
        "device": (device(stray_job(), (120, 34)), "ranktop: all that a rank's GPU says, and who else is on it"),
        "strategies": (strategies(fsdp_job(), (120, 28)), "ranktop: the same job under every strategy"),
        "findings": (findings(hung_job(), (120, 28)), "ranktop: what one finding stands on"),
        "replay": (replay((120, 26)), "ranktop: a recording of a job, and where in it something went wrong"),
        "imbalance": (imbalance(many_ranks(), (120, 30)), "ranktop: 512 ranks, shaded by distance from their peers"),
    }
    for name, (rows, title) in pictures.items():
        (HERE / f"{name}.svg").write_text(svg(asyncio.run(rows), 120, title), encoding="utf-8")


if __name__ == "__main__":
    main()
