"""The screens of what is out of line, as text and as a map of styles: see ``test_screens``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from dashboard import dashboard
from fake_findings import all_kinds, many, pause, usual_findings
from fake_gpu_jobs import hung_job, oom_job, staged_job
from fake_job import FakeJob, fsdp_job
from golden_screens import compare, picture
from msgspec import structs

from ranktop.wire.schema import Job

SIZES = [(80, 24), (120, 40)]


@pytest.fixture(autouse=True)
def colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_FILTERS"):
        monkeypatch.delenv(name, raising=False)


def with_all_kinds() -> FakeJob:
    return replace(hung_job(), findings=all_kinds())


def calm_job() -> FakeJob:
    """Eight ranks of which none is out of line."""
    job = fsdp_job()
    for rank in (3, 6):
        job.specs[rank] = replace(job.specs[rank], activations=job.specs[0].activations, runtime=job.specs[0].runtime)
    job.findings = ()
    return job


def paused_job() -> FakeJob:
    job = calm_job()
    job.findings = (pause(),)
    return job


def crowded_job() -> FakeJob:
    job = fsdp_job()
    job.findings = many(60)
    return job


def mixed_job() -> FakeJob:
    """Sixteen ranks of which some are silent, dead, missing, or do not tell their power."""
    job = fsdp_job(16)
    job.silent.add(5)
    job.absent.add(9)
    job.reading_changes[2] = {"power": None, "reasons": {"power": "not permitted (NVML 4)"}}
    job.findings = usual_findings(16)
    return job


PAGES: dict[str, tuple[Callable[[], FakeJob], tuple[str, ...]]] = {
    "ranks-findings": (with_all_kinds, ("down", "down", "down", "down", "down")),
    "ranks-note": (paused_job, ()),
    "findings": (with_all_kinds, ("f", "down")),
    "findings-none": (calm_job, ("exclamation_mark",)),
    "findings-many": (crowded_job, ("f", "pagedown", "pagedown", "pagedown")),
    "evidence-hang": (with_all_kinds, ("f", "enter")),
    "evidence-memory": (with_all_kinds, ("f", "down", "enter")),
    "evidence-straggler": (with_all_kinds, ("f", "down", "down", "down", "down", "enter")),
    "imbalance": (fsdp_job, ("down", "down", "down", "i")),
    "imbalance-power": (mixed_job, ("i", "left_square_bracket", *["left_square_bracket"] * 4)),
    "imbalance-mesh": (staged_job, ("i", "x", "n")),
    "imbalance-zoom": (mixed_job, ("i", "n", "enter")),
    "diff": (fsdp_job, ("down", "down", "down", "c")),
    "diff-none": (calm_job, ("c",)),
    "postmortem": (oom_job, ("down", "down", "down", "p")),
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, size: tuple[int, int]) -> None:
    make, keys = PAGES[name]
    compare(f"{name}-{size[0]}x{size[1]}", asyncio.run(picture(make(), size, *keys)))


@pytest.mark.parametrize("name", ["findings", "evidence-straggler", "imbalance", "postmortem"])
def test_page_in_ascii_and_without_colour(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    make, keys = PAGES[name]
    text = asyncio.run(picture(make(), (80, 24), *keys, ascii=True))
    assert text.isascii()
    assert "color" not in text.rsplit("\n\n", 1)[1]
    compare(f"{name}-80x24-ascii", text)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_thousand_ranks_are_on_one_screen(size: tuple[int, int]) -> None:
    async def grid() -> str:
        job = fsdp_job(8)
        big = replace(
            job, specs={rank: job.specs[rank % 8] for rank in range(1024)}, history_seconds=0,
            job=of_ranks(job, 1024), findings=usual_findings(8),
        )  # fmt: skip
        async with dashboard(big, size, budgets=False) as run:
            await run.press("down", "i")
            return run.painted()

    text = asyncio.run(grid())
    assert " of 1" not in text.splitlines()[size[1] - 1], "all of it is on the screen"
    compare(f"imbalance-1024-{size[0]}x{size[1]}", text)


def of_ranks(job: FakeJob, ranks: int) -> Job:
    return structs.replace(job.job, world_size=ranks)
