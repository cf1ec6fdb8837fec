"""Agents, hub and viewers in namespaces of their own, as in containers, with nothing but a directory in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_harness import PREAMBLE, TALK

IN_A_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""As the containers of one pod: the host name is the same, process ids are not."""


def can(*command: str) -> bool:
    try:
        return subprocess.run([*command, "true"], capture_output=True, timeout=30).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not can(*IN_A_CONTAINER), reason="no namespace can be made here (root's, and unshare)")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What a volume is: open to all, with nothing in it yet."""
    tmp_path.chmod(0o777)
    return tmp_path


@pytest.fixture
def container(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A job of one rank in a container; its hub is there, too."""
    (place / "run").mkdir(mode=0o700)
    script = PREAMBLE + TALK + "sys.stdin.readline()"
    process = subprocess.Popen(
        [*IN_A_CONTAINER, sys.executable, "-c", script, str(place / "run" / "a1b2c3")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(place),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def environment(place: Path) -> dict[str, str]:
    """Return what an image sets: no HOME, the two directories within the volume."""
    kept = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_RUNTIME_DIR")}
    return kept | {"RANKTOP_RUN_DIR": str(place / "run"), "RANKTOP_STATE_DIR": str(place / "recordings")}


def ask(place: Path, around: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    command = [*around, str(Path(sys.executable).with_name("ranktop")), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(place))


def jobs(place: Path, around: tuple[str, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ask(place, around, "jobs", "--json").stdout or "{}").get("jobs", [])
    return found


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 40.0
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
    return found


def test_a_side_car_and_the_host_see_the_job(place: Path, container: subprocess.Popen[str]) -> None:
    recorded = until(lambda: [job for job in jobs(place, IN_A_CONTAINER) if job["recording"]])
    assert [(job["id"], job["state"]) for job in recorded] == [("a1b2c3", "running")]
    (told,) = json.loads(ask(place, (), "status", "--json").stdout)["jobs"]
    assert [rank["state"] for rank in told["ranks"] if rank["rank"] == 3] == ["starting"]
    # The recording alone, where the socket is not shared: its hub is in no other container's list of processes.
    (place / "elsewhere").mkdir(mode=0o700)
    alone = environment(place) | {"RANKTOP_RUN_DIR": str(place / "elsewhere")}
    command = [*IN_A_CONTAINER, str(Path(sys.executable).with_name("ranktop")), "jobs"]
    assert "running" in subprocess.run(command, capture_output=True, text=True, timeout=60, env=alone).stdout


def test_the_end_of_a_container_is_recorded(place: Path, container: subprocess.Popen[str]) -> None:
    until(lambda: [job for job in jobs(place, ()) if job["recording"]])
    container.communicate("\n", timeout=60)
    (job,) = until(lambda: [job for job in jobs(place, ()) if job["state"] != "running"])
    assert job["id"] == "a1b2c3"


@pytest.mark.skipif(not can("unshare", "--user", "--map-user=1234"), reason="no user namespace can be made here")
def test_the_same_user_by_another_number_is_the_same_user(place: Path, container: subprocess.Popen[str]) -> None:
    for mapping in ("--map-root-user", "--map-user=1234"):
        assert ask(place, ("unshare", "--user", mapping), "status").returncode == 0


OF_A_VOLUME = """
import os, sys
from ranktop.wire.endpoints import RunDirectoryError, run_directory
os.setgroups([]), os.setgid(1234), os.setuid(1234)
try:
    run_directory(create=True)
except RunDirectoryError as error:
    print(error)
"""


def test_a_volume_itself_is_refused_with_the_way_out(place: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", OF_A_VOLUME], capture_output=True, text=True, timeout=60,
        env=environment(place) | {"RANKTOP_RUN_DIR": str(place)},
    )  # fmt: skip
    advice = f"set RANKTOP_RUN_DIR to a directory of yours, {place}/ranktop for one"
    assert told.stdout == f"{place} belongs to user root: refused; {advice}\n"
