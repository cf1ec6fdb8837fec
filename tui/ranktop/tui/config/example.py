"""A file with every setting in it, commented, at its default."""

from __future__ import annotations

from collections.abc import Iterator

from ranktop.tui.config.kinds import written
from ranktop.tui.config.own_findings import AT_LEAST
from ranktop.tui.config.table import SECTIONS, SETTINGS, UNTOLD
from ranktop.tui.keys import REPLAY_KEYS, SCREENS
from ranktop.tui.session.findings.limits import LIMITS, RULE_NAMES

HEAD = """\
# ranktop.toml: the habits of whoever watches. All values below are the defaults; delete what you don't change.
# A flag goes before a variable (RANKTOP_*), a variable before this file. `ranktop config` shows what is in force.
# The agents inside of a job don't read it: they have variables of their own (docs/configuration.md).
"""


def example() -> str:
    """Return the file. Read back, it changes nothing."""
    return "\n".join([HEAD, *_settings(), *_findings(), *_keys()]) + "\n"


def _settings() -> Iterator[str]:
    for section in SECTIONS:
        if section in UNTOLD:
            continue
        yield f"[{section}]"
        for setting in SETTINGS:
            if setting.section == section:
                yield f"# {setting.told}"
                yield f"{setting.key} = {written(setting.default)}"
        yield ""


def _findings() -> Iterator[str]:
    yield "# Which findings are told, and from where on: docs/findings.md. at_least: info, warning, critical or never."
    for rule in RULE_NAMES:
        yield f"[findings.{rule}]"
        yield f'{AT_LEAST} = "info"'
        for limit in LIMITS:
            if limit.rule == rule:
                unit = f" ({limit.unit})" if limit.unit != "share" else " (share of 1)"
                yield f"# {limit.words}{unit}"
                yield f"{limit.key} = {written(limit.default)}"
        yield ""


def _keys() -> Iterator[str]:
    yield "# Keys of the dashboard, by screen: a key, or a list of them. ctrl+t, F5, Space, Esc and ? are keys."
    yield "[keys]"
    for screen, keys in (*SCREENS.items(), ("replay", REPLAY_KEYS)):
        yield f"# -- {screen}"
        for key in keys:
            if key.id != "quit-now":
                names = list(key.names)
                yield f"{key.id} = {written(names if len(names) > 1 else names[0])}  # {key.words}"
