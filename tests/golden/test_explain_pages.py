"""The page of ``ranktop explain``, letter by letter, on explanations made by hand.

``RANKTOP_UPDATE_GOLDEN=1`` writes it anew; read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from explain_answer import sharded, staged

from ranktop.tui.view.explain import explain_lines
from ranktop.tui.view.text import ASCII, UNICODE

PAGES = {"sharded": sharded, "staged": staged}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, width: int) -> None:
    _same(f"explain-{name}-{width}", PAGES[name](), width, ascii_only=False)


def test_page_without_unicode() -> None:
    _same("explain-staged-56-ascii", staged(), 56, ascii_only=True)


def _same(name: str, explanation: object, width: int, *, ascii_only: bool) -> None:
    from ranktop.budget.explain import Explanation

    assert isinstance(explanation, Explanation)
    lines = explain_lines(explanation, width, ASCII if ascii_only else UNICODE, ascii_only)
    text = "".join("".join(part for part, _ in line).rstrip() + "\n" for line in lines)
    path = Path(__file__).parent / "screens" / f"{name}.txt"
    if os.environ.get("RANKTOP_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
