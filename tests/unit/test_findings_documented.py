"""docs/findings.md has a section for every rule, and what explains others is a rule."""

from __future__ import annotations

import re
from pathlib import Path

from ranktop.tui.session.findings.explained import LINKS
from ranktop.tui.session.findings.rules import RULES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_rule_has_a_section_and_every_section_a_rule() -> None:
    text = (DOCS / "findings.md").read_text(encoding="utf-8")
    assert re.findall(r"^### `(\w+)`$", text, re.MULTILINE) == list(RULES)


def test_the_contract_for_scripts_names_the_rules() -> None:
    text = (DOCS / "status.md").read_text(encoding="utf-8")
    (told,) = re.findall(r'\{"rule": "([^"]+)"', text)
    assert set(re.findall(r"\w+", told)) == set(RULES)


def test_only_rules_explain_and_are_explained() -> None:
    assert {name for link in LINKS for name in (link.by, *link.of)} <= set(RULES)
