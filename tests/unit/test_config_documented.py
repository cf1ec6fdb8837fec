"""docs/configuration.md and docs/findings.md have every setting, variable and limit, with the code's own words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ranktop.tui.config.kinds import written
from ranktop.tui.config.table import AGENT, CONFIG, SETTINGS, Setting
from ranktop.tui.session.findings.limits import LIMITS, RULE_NAMES, Limit
from ranktop.tui.session.findings.rules import RULES

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\bRANKTOP_[A-Z_]*[A-Z]\b")


def setting_row(setting: Setting) -> str:
    flag = f"`{setting.flag}`" if setting.flag else ""
    default = f"`{written(setting.default)}`"
    return f"| `{setting.name}` | `{setting.variable}` | {flag} | {default} | {setting.told} |"


def limit_row(limit: Limit) -> str:
    span = f"{limit.low:.15g} to {limit.high:.15g}"
    unit = {"share": "share of 1", "B": "bytes"}.get(limit.unit, limit.unit)
    return f"| `{limit.name}` | `{written(limit.default)}` | {unit}, {span} | {limit.words} |"


def rows(page: str, first: str) -> list[str]:
    """Return the rows of the table of a page whose heading begins so."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (table,) = re.findall(rf"^{re.escape(first)}.*\n\|[-|: ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return str(table).splitlines()


def test_every_setting_is_documented_as_it_is() -> None:
    assert rows("configuration.md", "| setting |") == [setting_row(setting) for setting in SETTINGS]


def test_every_limit_is_documented_as_it_is() -> None:
    assert rows("findings.md", "| limit |") == [limit_row(limit) for limit in LIMITS]


def test_every_variable_of_the_agent_is_documented() -> None:
    assert rows("configuration.md", "| variable of the job |") == [
        f"| `{key}` | {words} |" for key, words in AGENT.items()
    ]


def test_every_variable_that_the_code_reads_is_known() -> None:
    read = {
        name
        for folder in ("tui", "agent", "probes")
        for path in (ROOT / folder).rglob("*.py")
        for name in VARIABLE.findall(path.read_text(encoding="utf-8"))
    }
    assert read == {*AGENT, CONFIG, *(setting.variable for setting in SETTINGS)} & read
    assert {*AGENT} <= read


def test_the_names_of_the_rules_are_those_that_there_are() -> None:
    assert set(RULE_NAMES) == set(RULES)
    assert {limit.rule for limit in LIMITS} <= set(RULES)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_every_limit_is_one_that_a_rule_asks_for(limit: Limit) -> None:
    folder = ROOT / "tui/ranktop/tui/session/findings"
    sources = [path.read_text(encoding="utf-8") for path in folder.glob("*.py") if path.name != "limits.py"]
    assert any(f'"{limit.name}"' in text for text in sources)
    assert limit.low <= limit.default <= limit.high
