"""What is taken when nobody says it: how long a sample is, whose head a model has; and which words mean the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ranktop.budget.planning.flags import Flags
from ranktop.budget.planning.request import USUAL, request, strategies
from ranktop.budget.run import STRATEGIES


@pytest.mark.parametrize(
    ("model", "given", "tokens"),
    [("gpt2", None, 1024), ("llama-3-8b", None, 8192), ("llama-3.1-8b", None, USUAL), ("llama-3.1-8b", "65536", 65536)],
)
def test_the_models_own_length_unless_it_is_longer_than_anybody_trains_with(
    model: str, given: str | None, tokens: int
) -> None:
    asked = request(Flags(model=model, seq_len=given, world_size="8"))
    assert (asked.run.sequence_length or asked.run.model.positions) == tokens
    told = [line for line in asked.assumed if "tokens per sample" in line]
    taken = model == "llama-3.1-8b" and given is None
    assert told == [f"{USUAL} tokens per sample (--seq-len); the model takes 131072"] * taken


LLAMA = Flags(
    params="70B", layers="80", hidden="8192", heads="64", kv_heads="8", ffn="28672", vocab="128256", world_size="8"
)


def test_a_shape_by_numbers_says_its_length() -> None:
    told = request(LLAMA).assumed
    assert "2048 tokens per sample (--seq-len)" in told
    given = request(replace(LLAMA, seq_len="4096"))
    assert given.run.sequence_length == 4096
    assert not any("tokens per sample" in text for text in given.assumed)


@pytest.mark.parametrize(
    ("params", "tied", "told"),
    [
        ("70B", False, "head of its own, +0.8 % from the number given; with a tied head -0.7 %"),
        ("70.5B", False, "head of its own, +0.1 % from the number given; with a tied head -1.4 %"),
        ("69.5B", True, "tied head, +0.0 % from the number given"),
    ],
)
def test_a_rounded_number_of_a_llama_leaves_it_its_own_head_and_says_so(params: str, tied: bool, told: str) -> None:
    asked = request(replace(LLAMA, params=params))
    assert asked.run.model.tied is tied
    assert any(text.endswith(told) for text in asked.assumed)


def test_gpt_2_by_its_numbers_is_the_nearest() -> None:
    asked = request(Flags(params="124M", layers="12", hidden="768", heads="12", vocab="50257", seq_len="1024"))
    assert (asked.run.model.family, asked.run.model.tied) == ("gpt", True)
    assert asked.parameters == 124_439_808


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ZeRO-3", ("zero3",)),
        ("zero_3_offload, ZERO-2", ("zero2", "zero3-offload")),
        ("FSDP_full,PP-1F1B,3D", ("fsdp-full", "pp-1f1b", "3d")),
        ("All", STRATEGIES),
    ],
)
def test_strategies_are_understood_however_they_are_spelled(text: str, names: tuple[str, ...]) -> None:
    assert strategies(text) == names
