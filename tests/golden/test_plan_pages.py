"""The page of ``ranktop plan``, letter by letter, on an answer made by hand.

``RANKTOP_UPDATE_GOLDEN=1`` writes it anew; read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plan_answer import hand_made

from ranktop.budget.planning.page import page


@pytest.mark.parametrize("width", [80, 110, 160])
def test_page(width: int) -> None:
    text = page(hand_made(link=50e9), width, False)
    assert max(map(len, text.splitlines())) <= width
    path = Path(__file__).parent / "screens" / f"plan-{width}.txt"
    if os.environ.get("RANKTOP_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
