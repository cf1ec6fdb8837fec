"""All rules, in the order in which they are asked. A new rule is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.scene import Scene

Rule = Callable[[Scene], Iterable[Finding]]

RULES: Final[dict[str, Rule]] = {}
"""Name -> rule. What one finding explains of another is settled afterwards (``explained``)."""
