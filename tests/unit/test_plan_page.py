"""The page of ``ranktop plan``, on an answer made by hand."""

from __future__ import annotations

import re

import pytest
from plan_answer import G, hand_made

from ranktop.budget.planning.page import in_ascii, page
from ranktop.budget.planning.sizes import GIB, MIB, seconds, unit_for

NARROW = page(hand_made(), 80, False)


@pytest.mark.parametrize("width", [20, 40, 79, 80, 100, 104, 105, 120, 150, 300])
def test_every_width_holds_the_same_numbers(width: int) -> None:
    text = page(hand_made(link=50e9), width, False)
    for name in ("ddp", "fsdp-full", "pp-1f1b", "3d"):
        line = next(line for line in text.splitlines() if line[1:].startswith(f"{name} "))
        assert line.split()[1:4] == next(r for r in NARROW.splitlines() if r[1:].startswith(f"{name} ")).split()[1:4]
    # The table itself needs 80 columns; everything around it keeps to what there is.
    assert max(map(len, text.splitlines())) <= max(width, 80)


def test_colours_are_added_and_change_no_letter() -> None:
    painted = page(hand_made(), 80, True)
    assert "\x1b[32m   yes" in painted
    assert "\x1b[31m -33.0" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == NARROW


def test_without_unicode_it_is_ascii_and_as_wide() -> None:
    text = in_ascii(NARROW)
    assert text.isascii()
    assert "?" not in text
    assert [len(line) for line in text.splitlines()] == [len(line) for line in NARROW.splitlines()]


def test_without_a_device_nothing_is_said_about_fitting() -> None:
    text = page(hand_made(memory=None), 80, False)
    assert "no device given" in text
    assert "fits: unknown without a device: give --device-memory 80GiB or --gpu h100" in text
    assert "yes" not in text


def test_when_nothing_fits_it_says_what_is_nearest() -> None:
    text = page(hand_made(memory=30 * G), 80, False)
    assert "nothing known fits: fsdp-full comes nearest, 5.00 GiB too much" in text
    assert "* best" not in text


@pytest.mark.parametrize(
    ("size", "written"),
    [
        (0, "0"),
        (1, "<.01"),
        (G // 100, "0.01"),
        (int(9.994 * G), "9.99"),
        (int(9.996 * G), "10.0"),
        (int(99.96 * G), "100"),
        (9999 * G, "9999"),
        (12_000 * G, "12K"),
        (-33 * G, "-33.0"),
        (None, "–"),
    ],
)
def test_sizes_have_three_digits(size: int | None, written: str) -> None:
    assert GIB.write(size) == written


def test_a_toy_is_shown_in_mib() -> None:
    assert unit_for([10 * 2**20, 3]) is MIB
    assert unit_for([2**30]) is GIB
    assert unit_for([]) is GIB
    assert MIB.named(10 * 2**20) == "10.0 MiB"


@pytest.mark.parametrize(
    ("value", "written"), [(0.0, "0"), (1e-5, "<1ms"), (0.0214, "21ms"), (0.13, "0.13s"), (12.3, "12s")]
)
def test_seconds(value: float, written: str) -> None:
    assert seconds(value) == written
