"""Wheel and sdist: what is in them, and what they do in clean environments of every Python that this machine has."""

from __future__ import annotations

import email
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from slow_link import ThrottledPty

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
ROOTS = ("tui", "agent", "probes")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TESTED = PYTHONS[:-1]
"""Those that pyproject.toml names; a newer one is tried where it is there."""

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"

NEEDED = "import ssl, sqlite3, ctypes, venv, sys; print('%d.%d' % sys.version_info[:2])"

CONSUMER = """
from __future__ import annotations

from ranktop.agent import annotate, attach, detach, report
from ranktop.budget import BadInput, Comparison, compare
from ranktop.recording import RecordingError, Sample, open_recording


def plan(world: int) -> int | None:
    try:
        table: Comparison = compare("gpt2", world_size=world, gpu="h100", strategy=["ddp", "zero2"])
    except BadInput:
        return None
    fits: bool | None = table["zero2"].fits
    return table["zero2"].total if fits else None


def most(path: str) -> dict[int, int]:
    found: dict[int, int] = {}
    try:
        with open_recording(path) as run:
            for sample in run.samples(every=10.0, ranks=run.ranks):
                one: Sample = sample
                found[one.rank] = max(found.get(one.rank, 0), one.measured["total"] or 0)
    except RecordingError:
        return {}
    return found


@annotate("save")
def train() -> None:
    attach()
    report(step=1, loss=0.5)
    with annotate("validation"):
        detach()
"""

WRONG = """
from ranktop.agent import attach
from ranktop.budget import compare
from ranktop.recording import open_recording

compare("gpt2", world_sise=8)
open_recording("x").begin.upper()
attach(optimizer=1)
"""

JOB = """
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def interpreter(wanted: str) -> Path | None:
    """Return a Python of that version that has what ranktop needs of the standard library."""
    named = [sys.executable] if wanted == HERE else []
    named += [found] if (found := shutil.which(f"python{wanted}")) else []
    named += sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{wanted}.*/bin/python")), reverse=True)
    for path in named:
        told = subprocess.run([path, "-c", NEEDED], capture_output=True, text=True, check=False)
        if told.stdout.strip() == wanted:
            return Path(path)
    return None


@dataclass(frozen=True)
class Place:
    """A clean environment into which the wheel was installed, and directories of its own."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANKTOP_", "PYTHON"))}
        return {
            **kept, "RANKTOP_RUN_DIR": str(self.folder / "run"), "RANKTOP_STATE_DIR": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder), "RANKTOP_HUB_LINGER": "1", "TERM": "xterm-256color",
            "PATH": f"{self.bin}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    @property
    def packages(self) -> Path:
        """Where its libraries are."""
        (found,) = self.folder.glob("venv/lib/*/site-packages")
        return found

    def sees(self, others: Path) -> None:
        """Have it find, behind its own libraries, those of another environment."""
        (self.packages / "others.pth").write_text(f"{others}\n")

    def run(self, *words: str | Path, code: int = 0, seconds: float = 90.0) -> str:
        """Run one of its programs to its end and return what it printed."""
        done = subprocess.run(
            [str(self.bin / words[0]), *map(str, words[1:])], cwd=self.folder, env=self.environment, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@dataclass(frozen=True)
class Built:
    """What was built, and where it is installed."""

    folder: Path
    wheel: Path
    sdist: Path
    places: dict[str, Place] = field(default_factory=dict)

    def place(self, python: str) -> Place:
        """Return the environment of a Python, made when it is first asked for; skips where there is no such Python."""
        found = interpreter(python)
        if found is None:
            pytest.skip(f"no Python {python} on this machine")
        if python not in self.places:
            self.places[python] = self._installed(python, found)
        return self.places[python]

    def _installed(self, python: str, found: Path) -> Place:
        place = Place(self.folder / python)
        for name in ("", "run", "state"):
            (place.folder / name).mkdir(mode=0o700)
        quietly([found, "-m", "venv", "--without-pip", place.folder / "venv"], cwd=self.folder)
        pip = [sys.executable, "-m", "pip", "--python", place.bin / "python", "install", "-q", "--no-compile"]
        quietly([*pip, self.wheel], cwd=self.folder)
        return place


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    """Build the sdist, and the wheel from it."""
    with tempfile.TemporaryDirectory(prefix="rt-pkg-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "dist"
        quietly([sys.executable, "-m", "build", "--outdir", output, ROOT], cwd=folder)
        (wheel,), (sdist,) = output.glob("*.whl"), output.glob("*.tar.gz")
        yield Built(Path(folder), wheel, sdist)


def quietly(command: list[Any], cwd: Path | str) -> None:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


def modules() -> set[str]:
    """Return every file of the three roots as a wheel names it."""
    found = set()
    for root in ROOTS:
        for path in (ROOT / root / "ranktop").rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(str(path.relative_to(ROOT / root)))
    return found


def test_the_wheel_has_all_that_is_needed_and_no_more(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
        about = {name.partition(".dist-info/")[2]: name for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(wheel.read(about["METADATA"]))
        assert wheel.read(about["licenses/LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert names - set(about.values()) == modules()
    packages = {name.split("/")[1] for name in modules()}
    assert {f"ranktop/{package}/py.typed" for package in packages} <= names
    assert "ranktop/tui/ranktop.tcss" in names
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    needs = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert needs
    assert not [each for each in needs if re.match("torch|numpy|pandas", each)], "a job has its own torch"


def test_the_sdist_has_what_a_checkout_has(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "docs/status.md"} <= names
    assert "tests/frameworks/test_packages.py" in names
    assert {f"{root}/{name}" for root in ROOTS for name in modules() if (ROOT / root / name).is_file()} <= names
    assert not [name for name in names if re.search(r"__pycache__|\.pyc$|^\.venv|^\.git/|_cache/", name)]


def test_the_versions_that_are_named_are_those_that_are_tried() -> None:
    named = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    assert tuple(named) == TESTED


@pytest.mark.parametrize("python", PYTHONS)
def test_it_runs_in_a_clean_environment_without_torch(built: Built, python: str) -> None:
    place = built.place(python)
    loaded = json.loads(place.run("python", "-c", "import sys, json, importlib.util as u; import ranktop.tui.cli as c; "
                                  "print(json.dumps([c.__file__, u.find_spec('torch') is not None]))"))  # fmt: skip
    assert loaded == [str(place.folder / f"venv/lib/python{python}/site-packages/ranktop/tui/cli.py"), False]
    assert re.fullmatch(r"ranktop \d+\.\d+\.\d+\S*\n", place.run("ranktop", "--version"))
    asked = ("plan", "--model", "llama-3-8b", "--world-size", "8", "--gpu", "h100", "--strategy", "zero2,tp", "--json")
    here = subprocess.run([sys.executable, "-m", "ranktop.tui.cli", *asked], capture_output=True, text=True, check=True)
    # Bytes are equal; of seconds Python 3.12 sums the last digit more exactly.
    assert rounded(place.run("ranktop", *asked)) == rounded(here.stdout)
    assert json.loads(place.run("ranktop", "status", "--json", code=3))["jobs"] == []
    told = place.run("ranktop", "simulate", "--ranks", "2", "--steps", "2", "--seconds", "0.1")
    assert told.startswith("SIMULATED")
    assert "FSDP2 full shard" in told
    if python in TESTED:
        report = json.loads(place.run("ranktop", "doctor", "--json", "--wait", "2"))
        failed = {each["id"]: each["found"] for each in report["checks"] if each["status"] == "fail"}
        assert not failed
    screen(place)


def rounded(text: str) -> Any:
    return json.loads(text, parse_float=lambda number: round(float(number), 12))


def screen(place: Place) -> None:
    """Open the dashboard in a terminal and leave it."""
    words = [str(place.bin / "ranktop"), "simulate", "--ranks", "2", "--seconds", "0.2"]
    terminal = ThrottledPty(words, (100, 30), rate=1e9, delay=0.0, environment=place.environment)
    try:
        terminal.until(lambda: ("SIMULATED" in terminal.text() and " quit" in terminal.text()) or terminal.over, 30.0)
        shown = terminal.text()
        terminal.press("q")
        assert terminal.ended(20.0) == 0, shown
        assert "SIMULATED" in shown, shown
    finally:
        terminal.close()


def test_its_agent_watches_a_job_with_a_torch_of_its_own(built: Built) -> None:
    """The wheel in its environment, torch from where these tests have it: nothing of this checkout is loaded."""
    import torch

    place = built.place(HERE)
    place.sees(Path(torch.__file__).parents[1])
    (place.folder / "job.py").write_text(JOB)
    told = place.run(
        "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ranktop.agent",
        "job.py", seconds=90.0,
    )  # fmt: skip
    assert "ranktop" not in told
    (job,) = json.loads(place.run("ranktop", "status", "--json", "--job", "job"))["jobs"]
    assert (job["step"], job["strategy"]["name"]) == (6, "ddp")
    for rank in job["ranks"]:
        assert rank["state"] == "ended"
        # 64 * 64 + 64 + 64 * 8 + 8 numbers of 4 bytes; AdamW keeps two more of each, and a count for each tensor.
        assert rank["measured"]["parameters"] == rank["expected"]["parameters"] == 18720
        assert rank["measured"]["optimizer"] == rank["expected"]["optimizer"] == 2 * 18720 + 4 * 4
        assert rank["agent"]["errors"] == 0


def test_a_typed_script_is_checked_against_the_installed_wheel(built: Built) -> None:
    place = built.place(HERE)
    for name, text in (("consumer.py", CONSUMER), ("wrong.py", WRONG)):
        (place.folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", str(place.bin / "python"),
         "--cache-dir", str(place.folder / "cache"), "consumer.py", "wrong.py"],
        cwd=place.folder, env=place.environment, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [re.sub(r".*\[(.*)\]", r"\1", line) for line in errors] == ["call-arg", "attr-defined", "call-arg"], (
        done.stdout
    )
    assert all(line.startswith("wrong.py") for line in errors)
