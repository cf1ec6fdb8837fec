"""What ``ranktop doctor`` needs on this Python: requirements of other versions of Python are none here."""

from __future__ import annotations

import doctest

from ranktop.tui.doctor import libraries


def test_bounds_and_markers_are_read_as_the_docstrings_say() -> None:
    tried = doctest.testmod(libraries)
    assert tried.attempted >= 2
    assert tried.failed == 0
