"""Screens as text and as a map of styles. ``RANKTOP_UPDATE_GOLDEN=1`` writes them anew; read the diff."""

from __future__ import annotations

import os
from pathlib import Path

from dashboard import dashboard
from fake_job import FakeJob

SCREENS = Path(__file__).parents[1] / "golden" / "screens"
UPDATE = os.environ.get("RANKTOP_UPDATE_GOLDEN") == "1"


def compare(name: str, text: str) -> None:
    path = SCREENS / f"{name}.txt"
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing: run once with RANKTOP_UPDATE_GOLDEN=1"
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


async def picture(job: FakeJob, size: tuple[int, int], *keys: str, theme: str = "dark", ascii: bool = False) -> str:
    async with dashboard(job, size, theme, ascii=ascii) as run:
        await run.press(*keys)
        await run.after(4.0)
        assert run.app.trouble == ""
        return run.painted()
