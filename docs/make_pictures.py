"""Draws the pictures of the documentation from the dashboard itself: ``python docs/make_pictures.py [FOLDER]``.

``session.svg`` is a real training run, recorded by ``docs/record_session.py`` and replayed at one moment. The others
show jobs made by hand, which have what a run on CPUs has not: GPUs, faults, hundreds of ranks.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "tui"), str(HERE.parent / "tests")]

from dashboard import dashboard  # noqa: E402
from fake_findings import over_its_peers  # noqa: E402
from fake_gpu_jobs import hung_job, stray_job  # noqa: E402
from fake_job import GIB, FakeJob, fsdp_job  # noqa: E402
from hand_tape import tape  # noqa: E402
from msgspec import structs  # noqa: E402
from replayed import replayed  # noqa: E402
from terminal_svg import Run, svg  # noqa: E402

from ranktop.tui.replay import survey  # noqa: E402
from ranktop.tui.screens.strategies import StrategiesScreen  # noqa: E402
from ranktop.wire.recording import Recording  # noqa: E402

SESSION_AT = 140.0
"""Seconds from the beginning of the recording."""


async def session(size: tuple[int, int]) -> list[list[Run]]:
    """Return the cells of the ranks screen on the recorded session at one moment, its fullest rank selected."""
    recording = Recording.open(HERE / "session.ranktop")
    async with replayed(recording, size, at=recording.begin + SESSION_AT) as run:  # type: ignore[arg-type]
        await run.press("down", "down", "down", "z", "z", "z")
        await run.beats(4.0)
        return run.rows()


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


PICTURES = {
    "session": (
        lambda: session((120, 26)),
        "ranktop: a real run of four ranks, expected over measured memory",
    ),
    "ranks": (lambda: ranks(fsdp_job(), (120, 30), 3), "ranktop: eight ranks, expected over measured memory"),
    "device": (lambda: device(stray_job(), (120, 34)), "ranktop: all that a rank's GPU says, and who else is on it"),
    "strategies": (lambda: strategies(fsdp_job(), (120, 28)), "ranktop: the same job under every strategy"),
    "findings": (lambda: findings(hung_job(), (120, 28)), "ranktop: what one finding stands on"),
    "replay": (lambda: replay((120, 26)), "ranktop: a recording of a job, and where in it something went wrong"),
    "imbalance": (
        lambda: imbalance(many_ranks(), (120, 30)),
        "ranktop: 512 ranks, each by its distance from its peers",
    ),
}


def main(folder: Path = HERE) -> None:
    """Write every picture into a folder, by default beside this file."""
    os.environ.pop("NO_COLOR", None)
    os.environ["TZ"] = "UTC"
    time.tzset()
    setattr(survey, "COST", float("inf"))  # noqa: B010  # as on a machine that has nothing else to do
    for name, (scene, title) in PICTURES.items():
        (folder / f"{name}.svg").write_text(svg(asyncio.run(scene()), 120, title), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
