"""ranktop.toml and RANKTOP_* variables: what counts, where it comes from, and how mistakes are told."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ranktop.tui import config
from ranktop.tui.commands import app
from ranktop.tui.config.command import config as print_config
from ranktop.tui.config.example import example
from ranktop.tui.config.force import InForce, read
from ranktop.tui.config.reading import ConfigError
from ranktop.tui.config.report import lines as page
from ranktop.tui.config.table import ORDERS, SCALES, SETTINGS, SHOWN, THEMES
from ranktop.tui.keys import BY_ID
from ranktop.tui.remote.flags import way, ways
from ranktop.tui.session.findings.limits import DEFAULTS
from ranktop.tui.theme import BY_NAME as PALETTES
from ranktop.tui.view.options import MOMENT_CHOICES, SORTS, ZOOMS

DOCS = Path(__file__).parents[2] / "docs"


def of(tmp_path: Path, text: str | bytes, **variables: str) -> InForce:
    path = tmp_path / "ranktop.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read({"RANKTOP_CONFIG": str(path), **variables})


def error(tmp_path: Path, text: str | bytes, **variables: str) -> str:
    """Return the one complaint, which is one line; without the folder."""
    try:
        found = of(tmp_path, text, **variables).errors
    except ConfigError as broken:
        found = [str(broken)]
    (told,) = found
    assert "\n" not in told
    return told.removeprefix(f"{tmp_path}/")


def test_without_a_file_all_is_by_default() -> None:
    for environment in ({"RANKTOP_CONFIG": "off"}, {"XDG_CONFIG_HOME": "/nowhere", "HOME": "/nowhere"}):
        found = read(environment)
        assert not found.values
        assert found.limits == DEFAULTS
        assert (found.errors, found.warnings, found.keymap) == ([], [], {})


def test_a_flag_goes_before_a_variable_before_the_file_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = of(tmp_path, '\n[dashboard]\ntheme = "light"\nsort = "used"\n', RANKTOP_THEME="ansi")
    assert [found.value(f"dashboard.{name}") for name in ("theme", "sort", "scale")] == ["ansi", "used", "auto"]
    assert [found.source(f"dashboard.{name}").words for name in ("theme", "sort", "scale")] == [
        "RANKTOP_THEME", f"{tmp_path}/ranktop.toml:4", "default",
    ]  # fmt: skip
    monkeypatch.setenv("RANKTOP_CONFIG", str(tmp_path / "ranktop.toml"))
    assert config.given("dashboard.theme", "none") == "none"
    assert config.given("dashboard.theme", None) == "light"


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_is_not_set(empty: str, tmp_path: Path) -> None:
    found = of(tmp_path, "", RANKTOP_IDENTITY="", RANKTOP_FAIL_ON="")
    assert not found.errors
    assert not found.values
    assert "RANKTOP_FAIL_ON" in error(tmp_path, "", RANKTOP_FAIL_ON="x" + empty)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[dashboard\n", "ranktop.toml:1: not TOML: "),
        ("[dash", "ranktop.toml:1: not TOML: Expected ']' at the end of a table declaration"),
        ('[dashboard]\ntheme = "a"\ntheme = "b"\n', "ranktop.toml:3: not TOML: Cannot overwrite a value"),
        ('[dashboard]\ntheme = """\nnever closed', "ranktop.toml:3: not TOML: "),
        ("[dashbord]\n", "ranktop.toml:1: no section is named 'dashbord'; did you mean dashboard?"),
        ("[x]\n", "ranktop.toml:1: no section is named 'x'"),
        ("# first\n\n[dashboard]\nthem = 1\n", "ranktop.toml:4: [dashboard] has no 'them'; did you mean theme?"),
        ("[status]\ntheme = 'dark'\n", "ranktop.toml:2: theme belongs to the section [dashboard]"),
        ("theme = 'dark'\n", "ranktop.toml:1: theme belongs to the section [dashboard]"),
        ("dashboard = 1\n", "ranktop.toml:1: [dashboard] must be a section of its own"),
        ('[dashboard]\ntheme = "drak"\n',
         f"ranktop.toml:2: dashboard.theme: 'drak' is none of {', '.join(THEMES)}; did you mean dark?"),
        ("[dashboard]\ndetail = 1\n", "ranktop.toml:2: dashboard.detail: must be true or false"),
        ("[dashboard]\nlink = -1\n", "ranktop.toml:2: dashboard.link: -1 is not a whole number from 0 to 1000000000"),
        ("[dashboard]\nlink = true\n",
         "ranktop.toml:2: dashboard.link: True is not a whole number from 0 to 1000000000"),
        ('[ssh]\noptions = "A=b"\n', "ranktop.toml:2: ssh.options: must be a list of texts in quotes"),
        ('[ssh]\noptions = [\n "A=b",\n 7,\n]\n', "ranktop.toml:2: ssh.options: must be text in quotes"),
        ('[ssh]\nidentity = "a\\u001bb"\n', "ranktop.toml:2: ssh.identity: must be printable text in one line"),
        ('"\\u001b[31m" = 1\n', "ranktop.toml:1: no section is named '\\x1b[31m'"),
        ("[agent]\n", "ranktop.toml:1: no section is named 'agent'"),
        ("interval = 2\n",
         "ranktop.toml:1: interval is read by the agents in the job's own environment alone: "
         "export RANKTOP_INTERVAL there"),
        ("[paths]\nrecord_bytes = '1GiB'\n",
         "ranktop.toml:2: record_bytes is read by the agents in the job's own environment alone: "
         "export RANKTOP_RECORD_BYTES there"),
        (b"[dashboard]\n\n# \xff\n", "ranktop.toml:3: not UTF-8"),
        (b"#" * (64 * 1024 + 1), "ranktop.toml: larger than 65536 bytes, which no configuration is"),
        ("x = " + "[" * 9000, "ranktop.toml: nested deeper than any configuration is"),
        ("x = " + "9" * 5000, "ranktop.toml: not TOML: Exceeds the limit (4300 digits) for integer"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_place_and_the_right_name(text: str | bytes, told: str, tmp_path: Path) -> None:
    found = error(tmp_path, text)
    assert found.startswith(told)
    assert found.isprintable()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("RANKTOP_THEME", "lihgt", f"RANKTOP_THEME: 'lihgt' is none of {', '.join(THEMES)}; did you mean light?"),
        ("RANKTOP_LINK", "fast", "RANKTOP_LINK: 'fast' is not a whole number from 0 to 1000000000"),
        ("RANKTOP_ASCII", "maybe", "RANKTOP_ASCII: 'maybe' is none of 1, true, yes, on, 0, false, no, off, auto"),
        ("RANKTOP_SSH_OPTIONS", "A='b", "RANKTOP_SSH_OPTIONS: No closing quotation"),
    ],
)
def test_a_wrong_value_of_a_variable_names_it(name: str, value: str, told: str, tmp_path: Path) -> None:
    assert error(tmp_path, "", **{name: value}) == told


def test_an_unknown_variable_is_told_and_harmless(tmp_path: Path) -> None:
    found = of(tmp_path, "", RANKTOP_THEEM="dark", RANKTOP_INTERVAL="nonsense", RANKTOP_XQ="1", OTHER="1")
    assert not found.errors
    assert found.warnings == [
        "no variable is named 'RANKTOP_THEEM'; did you mean RANKTOP_THEME?", "no variable is named 'RANKTOP_XQ'",
    ]  # fmt: skip


def test_a_named_file_must_be_there_and_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file, but RANKTOP_CONFIG names it"):
        read({"RANKTOP_CONFIG": str(tmp_path / "none.toml")})
    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(ConfigError, match="not a file"):
            read({"RANKTOP_CONFIG": str(place)})


def test_a_file_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranktop.toml"
    path.touch()
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="everybody can write it"):
        read({"RANKTOP_CONFIG": str(path)})


def test_variables_are_read_as_a_shell_writes_them(tmp_path: Path) -> None:
    found = of(tmp_path, "", RANKTOP_SSH_OPTIONS="A=b 'C=d e'", RANKTOP_ASCII="Yes", RANKTOP_DETAIL="0")
    assert [found.value(name) for name in ("ssh.options", "dashboard.ascii", "dashboard.detail")] == [
        ["A=b", "C=d e"], True, False,
    ]  # fmt: skip


def test_the_example_names_everything_and_changes_nothing(tmp_path: Path) -> None:
    found = of(tmp_path, example())
    assert not found.errors
    assert found.limits == DEFAULTS
    assert found.values == {setting.name: setting.default for setting in SETTINGS}
    assert found.keymap == {id: key.names for id, key in BY_ID.items() if id != "quit-now"}


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", (DOCS / "configuration.md").read_text(), re.DOTALL))
def test_the_examples_of_the_documentation_are_right(text: str, tmp_path: Path) -> None:
    found = of(tmp_path, text)
    assert not found.errors
    assert found.values or found.keymap


def test_the_words_are_those_that_the_dashboard_knows() -> None:
    assert set(THEMES) == {"auto", *PALETTES}
    assert (SCALES, SHOWN, ORDERS) == (ZOOMS, MOMENT_CHOICES, SORTS)


def test_what_is_in_force_is_printed_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ranktop.toml"
    path.write_text('[dashboard]\ntheme = "light"\n[findings]\ntokens = false\n[keys]\nimbalance = ["I", "F2"]\n')
    monkeypatch.setenv("RANKTOP_CONFIG", str(path))
    monkeypatch.setenv("RANKTOP_INTERVAL", "0.5")
    assert print_config() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"file: {path}"
    rows = {words[0]: words[1:] for line in lines if (words := re.split(r"\s{2,}", line.strip()))}
    assert rows["dashboard.theme"] == ['"light"', f"{path}:2 (flag --theme)"]
    assert rows["dashboard.sort"] == ['"rank"', "default"]
    assert rows["findings.tokens"] == ["not told", f"{path}:4"]
    assert rows["keys.imbalance"] == ["I F2", f"{path}:6"]
    assert rows["RANKTOP_INTERVAL"][0] == "0.5"
    assert print_config(as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["dashboard.theme"] == {
        "value": "light", "default": "auto", "source": "file", "where": f"{path}:2", "variable": "RANKTOP_THEME",
        "flag": "--theme",
    }  # fmt: skip
    assert (told["schema"], told["findings"]["off"], told["agent"]["RANKTOP_INTERVAL"]) == (1, ["tokens"], "0.5")
    assert print_config(path=True) == 0
    assert capsys.readouterr().out == f"{path}\n"


def test_a_command_with_a_broken_file_says_so_and_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ranktop.toml"
    path.write_text('[dashbord]\n[findings]\nstragler = false\nhang = "x"\n')
    monkeypatch.setenv("RANKTOP_CONFIG", str(path))
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(tmp_path / "run"))
    run = CliRunner()
    for command in (["status"], ["jobs"], ["watch", "nowhere"], ["replay", "x"], []):
        config.settings.cache_clear()
        result = run.invoke(app, command)
        assert result.exit_code == 2, command
        assert result.output.splitlines() == [
            f"ranktop: {path}:1: no section is named 'dashbord'; did you mean dashboard? "
            "(and 2 more: `ranktop config` lists them)"
        ]
    all_of_them = run.invoke(app, ["config"])
    assert all_of_them.exit_code == 2
    assert f"! {path}:3: no rule is named 'stragler'; did you mean straggler?" in all_of_them.output
    monkeypatch.setattr(sys, "argv", ["ranktop", "status", "--help"])
    assert run.invoke(app, ["status", "--help"]).exit_code == 0


def test_ssh_takes_its_habits_and_the_command_line_goes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ranktop.toml"
    path.write_text('[ssh]\noptions = ["A=file"]\njump = "gate"\nidentity = "~/.ssh/key"\nremote_command = "/opt/r"\n')
    monkeypatch.setenv("RANKTOP_CONFIG", str(path))
    ssh = way("me@gpu01", ways(["A=flag"], jump="other"))
    assert (ssh.options, ssh.jump, ssh.identity, ssh.config) == (("A=flag", "A=file"), "other", "~/.ssh/key", None)
    assert ssh.remote_command == "/opt/r"


def test_paths_of_the_file_count_for_what_looks_into_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ranktop.toml"
    path.write_text('[paths]\nrun_dir = "/from/file"\nstate_dir = "/from/file"\n')
    monkeypatch.setenv("RANKTOP_CONFIG", str(path))
    monkeypatch.setenv("RANKTOP_RUN_DIR", "")
    monkeypatch.setenv("RANKTOP_STATE_DIR", "/from/variable")
    config.apply()
    assert [os.environ[name] for name in ("RANKTOP_RUN_DIR", "RANKTOP_STATE_DIR")] == ["/from/file", "/from/variable"]


def test_reading_costs_milliseconds(tmp_path: Path) -> None:
    text = example()
    of(tmp_path, text)  # what is loaded once

    def once() -> float:
        start = time.process_time()
        of(tmp_path, text)
        return time.process_time() - start

    assert min(once() for _ in range(5)) < 0.02


def test_the_page_is_aligned_and_breaks_between_words_on_a_narrow_terminal() -> None:
    environ = {"RANKTOP_CONFIG": "off", "RANKTOP_RUN_DIR": "/run/user/1000/ranktop", "RANKTOP_STATE_DIR": "/s" * 30}
    told = list(page(read(environ), environ, 80))
    assert len({line.index("default") for line in told if "  default" in line}) == 1
    of_the_agent = told[told.index("findings, keys: as they are by default") + 1 :]
    assert all(len(line) <= 80 for line in of_the_agent if "/s/s" not in line)
    assert len({line.index("not set") for line in of_the_agent if "  not set" in line}) == 1
    assert "where recordings are written" in " ".join(" ".join(of_the_agent).split())
