"""How long a sample is when nobody says it."""

from __future__ import annotations

import pytest

from ranktop.tui.planning.flags import Flags
from ranktop.tui.planning.request import USUAL, request


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
