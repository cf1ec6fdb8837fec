"""The rules that keep the house in order, checked on the real files and in real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = ("tui", "agent", "probes")


def test_the_namespace_has_no_init_in_any_root() -> None:
    for root in ROOTS:
        assert (ROOT / root / "ranktop").is_dir()
        assert not (ROOT / root / "ranktop" / "__init__.py").exists(), "it would hide the other roots"


def test_the_roots_are_listed_alike_everywhere() -> None:
    tomllib = pytest.importorskip("tomllib", reason="new in Python 3.11")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["hatch"]["build"]["dev-mode-dirs"] == list(ROOTS)
    assert tools["hatch"]["build"]["targets"]["wheel"]["packages"] == [f"{root}/ranktop" for root in ROOTS]
    assert tools["ruff"]["src"] == list(ROOTS)
    assert tools["mypy"]["mypy_path"].split(":")[: len(ROOTS)] == list(ROOTS)


def loaded_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import ranktop.tui.app, ranktop.tui.cli, ranktop.tui.status, ranktop.tui.demo, ranktop.tui.session.receiver",
        "import ranktop.tui.screens.strategies, ranktop.tui.screens.explain, ranktop.tui.screens.fit",
        "import ranktop.wire.codec, ranktop.wire.schema, ranktop.wire.endpoints",
    ],
)
def test_the_dashboard_does_not_load_torch(statement: str) -> None:
    assert not loaded_after(statement) & {"torch", "numpy", "deepspeed"}


def test_the_budget_is_standard_library_only() -> None:
    modules = [
        ".".join(file.relative_to(ROOT / "probes").with_suffix("").parts)
        for file in (ROOT / "probes" / "ranktop" / "budget").rglob("*.py")
        if file.stem != "__init__"
    ]
    assert len(modules) > 100
    before = loaded_after("")
    assert loaded_after(f"import {', '.join(modules)}") - before - {"ranktop"} <= sys.stdlib_module_names


def test_the_planner_loads_neither_torch_nor_the_dashboard() -> None:
    script = """import contextlib, os
from ranktop.tui.explain import explain
from ranktop.tui.plan import plan
flags = ["--model", "gpt2", "--world-size", "4", "--gpu", "h100"]
with contextlib.redirect_stdout(open(os.devnull, "w")):
    for more in ([], ["--json"], ["--fit", "--global-batch", "8"]):
        assert plan(flags + more) == 0
    assert explain(["zero2", *flags]) == 0"""
    loaded = loaded_after(script)
    assert not loaded & {"torch", "numpy", "deepspeed", "textual", "zmq", "msgspec", "typer", "psutil", "pynvml"}


@pytest.mark.parametrize(
    "statement",
    [
        "import ranktop.agent.attaching, ranktop.agent.sampler, ranktop.agent.watch, ranktop.agent.publisher",
        "import ranktop.agent.hub, ranktop.agent.lifecycle",
    ],
)
def test_the_job_does_not_load_the_dashboard(statement: str) -> None:
    assert not loaded_after(statement) & {"textual", "rich", "typer"}


def test_the_agent_waits_for_the_script_to_import_torch() -> None:
    """A script may set variables that torch reads on import, so the agent must not import it first."""
    assert "torch" not in loaded_after("import ranktop.agent.attaching, ranktop.agent.sampler, ranktop.agent.runner")


def test_files_and_functions_stay_small() -> None:
    import ast

    long: list[str] = []
    for root in ROOTS:
        for file in (ROOT / root).rglob("*.py"):
            text = file.read_text()
            if text.count("\n") > 400:
                long.append(f"{file}: {text.count(chr(10))} lines")
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    length = (node.end_lineno or node.lineno) - node.lineno + 1
                    if length > 60:
                        long.append(f"{file}:{node.lineno} {node.name}: {length} lines")
    assert not long, "\n".join(long)
