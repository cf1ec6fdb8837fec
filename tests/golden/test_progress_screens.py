"""Screens of a job whose script tells how it goes. ``RANKTOP_UPDATE_GOLDEN=1`` writes them anew; read the diff."""

from __future__ import annotations

import asyncio

import pytest
from fake_job import fsdp_job
from fake_told import told, told_fsdp, told_host
from golden_screens import compare, picture


@pytest.fixture(autouse=True)
def colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_FILTERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
def test_loss_and_learning_rate_beside_memory(size: tuple[int, int]) -> None:
    compare(f"progress-{size[0]}x{size[1]}", asyncio.run(picture(told_fsdp(activities={2: "validation"}), size)))


def test_the_curve_of_the_loss_beside_the_step_time() -> None:
    compare("progress-host-120x40", asyncio.run(picture(told_host(first_step=2000), (120, 40))))


def test_where_a_finding_takes_the_line_the_header_tells_the_loss() -> None:
    text = asyncio.run(picture(told(fsdp_job()), (80, 24)))
    assert "loss 2.076  step 1,207" in text.splitlines()[0]
    assert "lr 2.28e-4" in text


def test_a_loss_that_is_nan_in_ascii() -> None:
    job = told_fsdp(changes={0: {"loss": None, "not_finite": {"loss": "nan"}}})
    text = asyncio.run(picture(job, (80, 24), ascii=True))
    assert text.isascii()
    assert " loss NaN (rank 0)" in text
