"""Every command of README and docs/ is run as it stands there, or its block says why not; every example can be read.

A comment above a block tells what is special about it:

    <!-- not run: reason -->                   it is skipped with the reason, which pytest lists
    <!-- run by tests/file.py::test_name -->   another test runs it (or several: a, b); it must exist
    <!-- exit codes: 0, 1 (why) -->            of its last command, where 0 is not the only one
    <!-- output -->                            this block is what the block of commands before it prints last; a line
                                               "..." stands for lines that are left out, within a
                                               line for anything

Commands that open a screen run in a terminal and are ended with `q`; those that serve until they are interrupted are.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_pages import LANGUAGES, PROGRAMS, ROOT, SHELL, Block, anchors, blocks, commands, links, pages, prose
from docs_place import Place, place
from sshd import why_not

BLOCKS = [block for page in pages() for block in blocks(page)]
SCREENS = re.compile(r"ranktop( --?\w.*| (watch|replay|simulate|demo)\b.*)?")
PLAIN = re.compile(r"--list\b|--help\b|--version\b|[|>]")
"""What makes a command that could open a screen print instead."""


def of(*languages: str) -> list[Any]:
    """Return the blocks in these languages, as parameters."""
    return [pytest.param(block, id=block.name) for block in BLOCKS if block.language in languages]


SHOWN = {before.name for before, block in pairwise(BLOCKS) if "output" in block.said}
"""Blocks whose output the page shows: without a terminal a screen is printed."""


@pytest.fixture(scope="module")
def prepared() -> Iterator[Place]:
    with (
        tempfile.TemporaryDirectory(prefix="rt-docs-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        place(Path(folder)) as made,
    ):
        yield made


def bare(command: str) -> str:
    """Return a command without its comments."""
    return re.sub(r"\s+#.*", "", command).strip()


def opens_a_screen(command: str) -> bool:
    return SCREENS.fullmatch(bare(command)) is not None and PLAIN.search(bare(command)) is None


def left_to_others(block: Block) -> bool:
    """Return whether another test runs it, which must exist; skips a block that says why it is not run."""
    if "run by" in block.said:
        for test in block.said["run by"].split(", "):
            file, _, name = test.partition("::")
            path = ROOT / file
            assert path.is_file(), f"{block.name}: there is no {file}"
            known = re.search(rf"^ *(async )?def {re.escape(name)}\(", path.read_text(), re.MULTILINE)
            assert known, f"{block.name}: no {name} in {file}"
        return True
    if "not run" in block.said:
        assert len(block.said["not run"]) > 10, f"{block.name}: not run, and no reason"
        pytest.skip(f"not run: {block.said['not run']}")
    return False


@pytest.mark.parametrize("block", of(*SHELL, "python"))
def test_the_block_runs(block: Block, prepared: Place) -> None:
    if block.language == "python":
        ast.parse(block.text)
    if left_to_others(block):
        return
    here = prepared.of(block.page)
    if block.language == "python":
        (here.folder / "block.py").write_text(block.text)
        done = here.run("python block.py")
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        run_commands(block, here)


def not_here(command: str) -> str:
    """Return what this machine lacks for a command; empty when nothing."""
    if re.search(r"\bjq\b", command) and shutil.which("jq") is None:
        return "no jq on this machine"
    if re.search(r"\b(gpu0\d|login)\b", bare(command)):
        return why_not()
    return ""


PRINTED: dict[str, str] = {}
"""Block -> what its last command has printed."""


def run_commands(block: Block, here: Place) -> str:
    """Run the commands of a block, once; returns what the last one prints."""
    if block.name in PRINTED:
        return PRINTED[block.name]
    every, done = commands(block.text), None
    for command in every:
        allowed = block.codes if command is every[-1] else {0}
        if missing := not_here(command):
            pytest.skip(f"not run: {missing}")
        if opens_a_screen(command) and not (command is every[-1] and block.name in SHOWN):
            code, shown = here.look(bare(command))
            assert " quit" in shown or code not in (0,), f"{command}\nno screen:\n{shown}"
        else:
            done = here.run(command)
            code, shown = done.returncode, done.stdout + done.stderr
        assert code in allowed, f"{command}\nexit code {code}:\n{shown}"
        assert "Traceback" not in shown, f"{command}:\n{shown}"
    PRINTED[block.name] = done.stdout if done is not None else ""
    return PRINTED[block.name]


def test_the_two_commands(prepared: Place) -> None:
    """What `make demo` starts is run by test_demo.py; `make test` runs tests where what it installs is there."""
    checkout = prepared.folder.parent / "checkout"
    (checkout / ".venv").mkdir(parents=True)
    for part in ("bin", "lib", "pyvenv.cfg"):
        (checkout / ".venv" / part).symlink_to(Path(sys.prefix) / part)
    for name in ("Makefile", "pyproject.toml", "tests", "tui", "agent", "probes"):
        (checkout / name).symlink_to(ROOT / name)
    for mark in (".demo", ".test"):
        (checkout / ".venv" / mark).touch()
    demo = prepared.run(f"cd {checkout} && make --silent --dry-run demo")
    assert demo.stdout.split() == [".venv/bin/ranktop", "demo"]
    assert '"demo"' in (ROOT / "tests" / "integration" / "test_demo.py").read_text()  # runs that
    one = "tests/unit/test_house.py::test_the_namespace_has_no_init_in_any_root"
    tests = prepared.run(f"cd {checkout} && make test WORKERS=0 TESTS={one}")
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "1 passed" in tests.stdout


def with_output() -> list[Any]:
    """Return each block that shows what the commands before it print, with them."""
    found = []
    for before, block in pairwise(BLOCKS):
        if "output" in block.said:
            assert before.page == block.page
            assert before.language in SHELL, f"{block.name}: the block before it has no commands"
            found.append(pytest.param(before, block, id=block.name))
    return found


@pytest.mark.parametrize(("block", "shown"), with_output())
def test_what_is_shown_is_what_is_printed(block: Block, shown: Block, prepared: Place) -> None:
    told = run_commands(block, prepared.of(block.page))
    lines = [line.rstrip() for line in shown.text.splitlines()]
    wanted = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line).replace(re.escape("..."), ".*") + r"\n"
        for line in lines
    )
    printed = "\n".join(line.rstrip() for line in told.splitlines()) + "\n"
    assert re.fullmatch(wanted, printed), f"{shown.name}: the command prints:\n{printed}"


def test_the_configurations_can_be_read() -> None:
    for block in BLOCKS:
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.text))
        elif block.language == "toml":
            tomllib = pytest.importorskip("tomllib", reason="new in Python 3.11")
            tomllib.loads(block.text)


def test_no_command_stands_where_it_would_not_be_run() -> None:
    command = re.compile(rf"^(\$ )?({'|'.join(PROGRAMS)}) [^ ]", re.MULTILINE)
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"{block.name}: {block.language}?"
        if block.language == "" and "output" not in block.said:
            found = command.search(block.text)
            assert found is None, f"{block.name}: a command in a block that is not run: {found and found[0]}"


def test_every_link_leads_somewhere() -> None:
    for page in pages():
        for link in links(page):
            if link.startswith(("http://", "https://", "mailto:")):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), f"{page.name}: {link} leads nowhere"
            assert not anchor or anchor in anchors(target), f"{page.name}: no heading {anchor} in {target.name}"


def test_every_page_can_be_found_from_the_index() -> None:
    index = {link.partition("#")[0] for link in links(ROOT / "docs" / "README.md")}
    assert {page.name for page in pages() if page.parent.name == "docs"} - {"README.md"} <= index
    assert "docs/README.md" in links(ROOT / "README.md")


def test_files_that_are_named_exist() -> None:
    """Paths of this repository in backquotes; in CONTRIBUTING, which is about the code, of its folders, too."""
    tui, budget = ROOT / "tui" / "ranktop" / "tui", ROOT / "probes" / "ranktop" / "budget"
    places = (ROOT, ROOT / "docs", tui, budget, tui / "session" / "findings")
    for page in pages():
        for name in re.findall(r"`((?:tests|docs|tui|agent|probes)/[\w./-]+)`", prose(page)):
            assert (ROOT / name).exists(), f"{page.name}: there is no {name}"
    for name in re.findall(r"`([\w/.-]+(?:\.py|/))`", prose(ROOT / "CONTRIBUTING.md")):
        assert any((place / name).exists() for place in places), f"CONTRIBUTING.md: there is no {name}"


def test_commands_within_sentences_have_the_flags_that_they_name() -> None:
    from typer.main import get_command

    from ranktop.tui.commands import app

    root: Any = get_command(app)
    for page in pages():
        for words in re.findall(r"`ranktop ([a-z]+)([^`]*)`", prose(page)):
            name, rest = words
            assert name in root.commands, f"{page.name}: no command `ranktop {name}`"
            known = {option for one in root.commands[name].params for option in (*one.opts, *one.secondary_opts)}
            if name in ("plan", "explain"):  # read their lines themselves
                continue
            for flag in re.findall(r"--[a-z][a-z-]+", rest):
                assert flag in known | {"--help"}, f"{page.name}: `ranktop {name}` takes no {flag}"


def test_the_counted_bytes_of_a_page_are_those_of_the_cases() -> None:
    table = (ROOT / "tests" / "data" / "budget_cases.json").read_text(encoding="utf-8")
    rows = re.findall(r"\| ([\d ]+) \| (\d{4}) \|$", (ROOT / "docs" / "the-4.5x-rule.md").read_text(), re.MULTILINE)
    assert len(rows) == 6
    for counted, case in rows:
        found = re.search(rf'"id": "{case}".*"value": (\d+)', table)
        assert found is not None
        assert found[1] == counted.replace(" ", "")
