"""Every benchmark can be run by name and has its place in docs/, where a run puts what it printed and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.run import SCRIPTS, put

ROOT = Path(__file__).parents[2]


def test_every_script_is_run_by_its_name() -> None:
    assert {path.stem.removeprefix("bench_") for path in (ROOT / "tests" / "bench").glob("bench_*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_one_block_in_the_documentation(name: str) -> None:
    line = rf"^<!-- result: bench_{name}\.py -->\n```\n(.+?)^```$"
    found = [
        block
        for page in (ROOT / "docs").glob("*.md")
        for block in re.findall(line, page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert len(found) == 1
    assert re.search(r"^20\d\d-\d\d-\d\d\b.*, \d+ cores", found[0], re.MULTILINE), "it says when and where"


def test_a_run_replaces_its_own_block_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n\n<!-- result: bench_x.py -->\n```\nold\n```\n\n<!-- result: bench_y.py -->\n```\nother\n```\n")
    assert put("bench_x.py", r"new \1" + "\nline", [page])
    assert page.read_text() == (
        "a\n\n<!-- result: bench_x.py -->\n```\nnew \\1\nline\n```\n\n<!-- result: bench_y.py -->\n```\nother\n```\n"
    )
    assert not put("bench_z.py", "new", [page])
