"""What every test can rely on: short paths, and an environment that is not the terminal's it runs in."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hub_harness import Node
    from jobs import Viewer


LONGEST_BUILD = 900.0
"""Seconds that torch takes at most to build an operation of DeepSpeed, its lock held."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Replace pytest's own: its paths grow with every run until a socket's no longer fits into 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def _state_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rt-state-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session", autouse=True)
def _no_lock_of_a_job_that_is_gone() -> None:
    """A job that was killed while it loaded DeepSpeed's operations leaves a lock: all later ones would wait."""
    cache = Path(os.environ.get("TORCH_EXTENSIONS_DIR", Path.home() / ".cache" / "torch_extensions"))
    for lock in cache.glob("**/lock"):
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime > LONGEST_BUILD:
                lock.unlink()


@pytest.fixture(autouse=True)
def _own_state(_state_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have hubs record into a folder of the test's own, made when it is used, and never into a home directory."""
    place = _state_root / secrets.token_hex(4)
    monkeypatch.setenv("RANKTOP_STATE_DIR", str(place))
    yield
    if place.exists():
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard's look must not depend on the terminal that the tests run in."""
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_FILTERS", "COLORFGBG", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever runs the tests may have changed keys, limits and looks: none of it counts here."""
    from ranktop.tui import config, keymap
    from ranktop.tui.session.findings import limits

    monkeypatch.setenv("RANKTOP_CONFIG", "off")
    config.settings.cache_clear()
    yield
    config.settings.cache_clear()
    keymap.use({})
    limits.use(limits.DEFAULTS)


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs and viewers meet in the test's temporary folder."""
    monkeypatch.setenv("RANKTOP_RUN_DIR", str(tmp_path / "run"))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Give a node of its own, on which hubs may start."""
    from hub_harness import fresh_node

    with fresh_node(monkeypatch) as made:
        yield made


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    """Follow the job that the test starts."""
    from jobs import Viewer

    found = Viewer()
    yield found
    found.close()


# Hundreds of modules and thousands of tests stay to the end: the collector need not look through them again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave alone what is there once the tests are known; collect what they make."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of slow tests and others in turn: real jobs wait, others compute; short files are left for the end."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = [file for file, found in files.items() if any(item.get_closest_marker("slow") for item in found)]
    quick = sorted(files.keys() - set(slow), key=lambda file: (-len(files[file]), file))
    turns = [file for pair in zip_longest(slow, quick) for file in pair if file is not None]
    items[:] = [item for file in turns for item in files[file]]
