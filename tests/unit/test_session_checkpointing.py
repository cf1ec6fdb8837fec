"""Checkpointing that cannot be seen from outside is told by the bytes, or makes the expected side a guess."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from fake_job import fsdp_job

from ranktop.budget.terms import Amount
from ranktop.tui.session.expected import difference, expected
from ranktop.wire.schema import Card, Table


def card(checkpointing: str | None) -> Card:
    found = fsdp_job().card(0)
    assert found.plan is not None
    return msgspec.structs.replace(found, plan=replace(found.plan, checkpointing=checkpointing))


def activations(checkpointing: str | None, measured: int | None = None) -> Amount:
    job = fsdp_job()
    job.specs[0] = replace(job.specs[0], activations=measured or 1)
    table = None if measured is None else Table(step=5, moments={"forward_end": job.memory(0, "forward_end")})
    budget = expected(card(checkpointing), table)
    assert budget is not None
    return budget.at("forward_end")["activations"]


def test_bytes_near_full_checkpointing_are_taken_for_it() -> None:
    full = activations("full").bytes
    assert full is not None
    found = activations(None, int(full * 1.04))
    assert found.bytes == full
    assert found.within is not None


@pytest.mark.parametrize("share", [0.85, 1.0, 1.3])
def test_bytes_near_the_plain_ones_or_above_are_compared_with_those(share: float) -> None:
    plain = activations("none").bytes
    assert plain is not None
    assert activations(None, int(plain * share)).bytes == plain


def test_bytes_that_are_neither_make_it_a_guess_from_which_nothing_differs() -> None:
    plain, full = activations("none").bytes, activations("full").bytes
    assert plain is not None
    assert full is not None
    between = (plain + full) // 2
    found = activations(None, between)
    assert found.within is None
    assert difference(between, found) is None


def test_checkpointing_that_is_known_is_not_second_guessed() -> None:
    plain, full = activations("none").bytes, activations("full").bytes
    assert full is not None
    assert activations("none", full).bytes == plain
