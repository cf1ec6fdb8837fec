"""The dashboard's look must not depend on the terminal that the tests run in."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_FILTERS", "COLORFGBG"):
        monkeypatch.delenv(name, raising=False)
