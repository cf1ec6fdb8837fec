"""``ranktop plan`` as a process: exit codes and streams, pipes and terminals, what it loads, a trace of a class."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path
from struct import pack

import pytest

PLAN = [sys.executable, "-m", "ranktop.tui.cli", "plan"]
GPT2 = ["--model", "gpt2", "--world-size", "4", "--gpu", "h100"]

MODEL = """
import torch
from torch import nn

print("a script may say something when it is imported")

class Net(nn.Module):
    def __init__(self, layers: int = 2, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))
        self.head = nn.Linear(width, 100)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

class Broken(Net):
    def forward(self, tokens):
        raise ValueError("no such thing")
"""


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "LINES")}
    return {**kept, "TERM": "xterm-256color", **more}


def run(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PLAN, *arguments], capture_output=True, text=True, cwd=cwd, env=environment(**env), timeout=100, check=False
    )


def test_an_answer_is_on_standard_output_and_plain() -> None:
    done = run(*GPT2, COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.startswith("gpt2: 124,439,808 parameters")


def test_a_complaint_is_on_standard_error_with_code_2() -> None:
    done = run("--model", "gpt2", "--world-size", "4", "--tp", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ranktop: tp 3")
    assert done.stderr.count("\n") == 1


def test_json_is_one_document() -> None:
    done = run(*GPT2, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["schema"] == 1


def test_the_other_commands_name_it_and_lead_to_it() -> None:
    top = subprocess.run(
        [sys.executable, "-m", "ranktop.tui.cli", "--theme", "dark", "plan", "--model", "gpt2", "--tp", "7"],
        capture_output=True, text=True, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert (top.returncode, top.stdout) == (2, "")
    assert "tp 7" in top.stderr
    help_ = run("--help", COLUMNS="80")
    assert help_.returncode == 0
    assert "--world-size" in help_.stdout


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    with subprocess.Popen(
        [*PLAN, *GPT2, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"{"
        process.stdout.close()
        complaint = process.stderr.read()
        assert process.wait(60) == 0
    assert complaint == b""


def test_a_locale_without_unicode_gets_ascii() -> None:
    done = run(*GPT2, "--strategy", "ddp,tp", COLUMNS="120", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


def test_planning_loads_neither_torch_nor_the_dashboard() -> None:
    script = (
        "import sys\nfrom ranktop.tui.plan import plan\n"
        "code = plan(sys.argv[1:])\nprint(*sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *GPT2], capture_output=True, text=True, env=environment(), timeout=60, check=True
    )
    loaded = set(done.stderr.split())
    assert "ranktop" in loaded
    assert not loaded & {"torch", "numpy", "textual", "rich", "typer", "click", "pydantic", "msgspec", "zmq", "yaml"}


def on_a_terminal(arguments: list[str], columns: int, **env: str) -> str:
    """Return what a process writes to a terminal of that width."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [*PLAN, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment(**env)
    ) as process:
        os.close(slave)
        seen = b""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            try:
                piece = os.read(master, 65536)
            except OSError:
                break  # the process has ended and the terminal is empty
            if not piece:
                break
            seen += piece
        assert process.wait(60) == 0
    os.close(master)
    return seen.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 150])
def test_a_terminal_is_used_as_wide_as_it_is_and_in_colour(columns: int) -> None:
    text = on_a_terminal([*GPT2, "--strategy", "ddp,zero3,tp"], columns)
    assert "\x1b[32m" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= columns
    assert bool(re.search("strategy +parameters +gradients", plain)) == (columns == 150)


def test_no_color_is_respected() -> None:
    assert "\x1b" not in on_a_terminal([*GPT2, "--strategy", "ddp"], 80, NO_COLOR="1")


def test_a_trace_reads_the_user_s_class_in_another_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(MODEL)
    more = ("--seq-len", "64", "--precision", "fp32", "--strategy", "single", "--json")
    done = run("--trace", "net:Net", "--layers", "3", "--trace-arg", "width=32", *more, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["model"]["parameters"] == 100 * 32 + 3 * (32 * 32 + 32) + 32 * 100 + 100
    single = answer["strategies"][0]
    assert single["bytes"]["activations"] > 0
    # By hand: tokens x 4 bytes of every linear layer's input and every GELU's, in three blocks.
    assert single["moments"]["forward_end"]["activations"] > 64 * 4 * 32 * 2 * 3


def test_a_trace_that_fails_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(MODEL)
    done = run("--trace", "net:Broken", "--seq-len", "64", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ranktop: --trace: ")
    assert "no such thing" in done.stderr
    assert done.stderr.count("\n") == 1
