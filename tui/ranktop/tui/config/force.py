"""What is in force: flag before variable before file before default, each with where it comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ranktop.tui.config import own_keys
from ranktop.tui.config.kinds import nearest
from ranktop.tui.config.own_findings import read_findings
from ranktop.tui.config.reading import File, place
from ranktop.tui.config.table import AGENT, BY_NAME, CONFIG, SECTIONS, SETTINGS, Setting
from ranktop.tui.keymap import Keymap
from ranktop.tui.keys import BY_ID
from ranktop.tui.session.findings.limits import Limits

VARIABLES: Final = {setting.variable: setting for setting in SETTINGS}
_OURS: Final = "RANKTOP_"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from."""

    kind: str
    """``flag``, ``variable``, ``file`` or ``default``."""
    where: str = ""
    """The variable, or the file and the line."""

    @property
    def words(self) -> str:
        """In a few words."""
        return self.where or self.kind


DEFAULT: Final = Source("default")


@dataclass(slots=True)
class InForce:
    """All settings of one command, the errors that stand in the way, and what is odd but harmless."""

    file: File
    values: dict[str, Any] = field(default_factory=dict)
    """Of what is not the default, by the setting's name."""
    variables: dict[str, str] = field(default_factory=dict)
    """Setting -> the variable that sets it."""
    keymap: Keymap = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        """Return what is in force; KeyError for a name that is no setting."""
        return self.values.get(name, BY_NAME[name].default)

    def source(self, name: str) -> Source:
        """Return where it comes from."""
        if name in self.variables:
            return Source("variable", self.variables[name])
        if name in self.values:
            return Source("file", self.file.where(*name.split(".", 1)))
        return DEFAULT


def read(environ: Mapping[str, str]) -> InForce:
    """Read file and variables. What is wrong with their content is in ``errors``.

    ConfigError for a file that can't be read or is no TOML: nothing in it is known.
    """
    path, asked = place(environ)
    found = InForce(File(path, asked=asked))
    _read_file(found)
    _read_variables(found, environ)
    return found


def _read_file(found: InForce) -> None:
    for section, content in found.file.content.items():
        if section not in SECTIONS:
            found.errors.append(f"{found.file.where(section)}: {_unknown_section(section)}")
        elif not isinstance(content, dict):
            found.errors.append(f"{found.file.where(section)}: [{section}] must be a section of its own")
        elif section == "keys":
            found.keymap = _read_keys(found, content)
        elif section == "findings":
            found.limits, wrong = read_findings(content)
            found.errors += [f"{found.file.where('findings', *path)}: {words}" for path, words in wrong]
        else:
            for key, value in content.items():
                _read_one(found, section, key, value)


def _unknown_section(name: str) -> str:
    homes = [setting.section for setting in SETTINGS if setting.key == name]
    if homes:
        return f"{name} belongs to the section [{homes[0]}]"
    return _of_the_agent(name) or f"no section is named {name!r}{nearest(name, SECTIONS)}"


def _of_the_agent(key: str) -> str:
    """Say that a setting is the agent's, where it is; else nothing."""
    variable = f"{_OURS}{key.upper()}"
    if variable not in AGENT:
        return ""
    return f"{key} is read by the agents in the job's own environment alone: export {variable} there"


def _read_one(found: InForce, section: str, key: str, value: object) -> None:
    setting = BY_NAME.get(f"{section}.{key}")
    if setting is None:
        found.errors.append(f"{found.file.where(section, key)}: {_unknown_key(section, key)}")
        return
    try:
        found.values[setting.name] = setting.kind.from_toml(value)
    except ValueError as error:
        found.errors.append(f"{found.file.where(section, key)}: {setting.name}: {error}")


def _unknown_key(section: str, key: str) -> str:
    homes = [setting.section for setting in SETTINGS if setting.key == key]
    if homes:
        return f"{key} belongs to the section [{homes[0]}]"
    known = [setting.key for setting in SETTINGS if setting.section == section]
    return _of_the_agent(key) or f"[{section}] has no {key!r}{nearest(key, known)}"


def _read_keys(found: InForce, content: Mapping[str, Any]) -> Keymap:
    keymap: dict[str, tuple[str, ...]] = {}
    for id, value in content.items():
        if id not in BY_ID:
            found.errors.append(f"{found.file.where('keys', id)}: no key is named {id!r}{nearest(id, list(BY_ID))}")
        elif id in own_keys.FIXED:
            found.errors.append(f"{found.file.where('keys', id)}: {id} can't be changed: Ctrl+C always ends it")
        else:
            try:
                keymap[id] = own_keys.read(value)
            except ValueError as error:
                found.errors.append(f"{found.file.where('keys', id)}: {id}: {error}")
    clashes = own_keys.conflicts(keymap)
    found.errors += [f"{found.file.where('keys', id)}: {id}: {words}" for id, words in clashes]
    return keymap


def _read_variables(found: InForce, environ: Mapping[str, str]) -> None:
    for name, text in environ.items():
        if not name.startswith(_OURS) or name == CONFIG or not text:
            continue
        if name in VARIABLES:
            _take(found, VARIABLES[name], text)
        elif name not in AGENT:
            known = [one.removeprefix(_OURS) for one in (*VARIABLES, *AGENT, CONFIG)]
            like = nearest(name.removeprefix(_OURS), known).replace("mean ", f"mean {_OURS}")
            found.warnings.append(f"no variable is named {name!r}{like}")


def _take(found: InForce, setting: Setting, text: str) -> None:
    try:
        found.values[setting.name] = setting.kind.from_text(text)
        found.variables[setting.name] = setting.variable
    except ValueError as error:
        found.errors.append(f"{setting.variable}: {error}")


def pass_on(found: InForce) -> None:
    """Put what the file says into the environment where those look that take no setting, and their children."""
    for setting in SETTINGS:
        value = found.value(setting.name)
        if setting.passed and value != setting.default and setting.name not in found.variables:
            os.environ[setting.variable] = str(value)
