"""A real Prometheus server scrapes a (simulated) job and answers what the Grafana dashboard asks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_dashboard import VARIABLES, questions
from jobs import wait_until

from ranktop.tui.simulate import MODULE, Wish, publishing
from ranktop.wire.endpoints import find_jobs, job_directory, run_directory

MISSING = [program for program in ("prometheus", "promtool") if shutil.which(program) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (Debian's package prometheus)"),
    pytest.mark.usefixtures("run_directory"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "prometheus.md").read_text()
BLOCKS = re.findall(r"```(sh|yaml)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.split("  #")[0].strip() for line in BLOCKS[0][1].splitlines()]
CONFIG, ALERTS = (text for language, text in BLOCKS if language == "yaml")
SERVER = "127.0.0.1:9461"
EXPORTER = [sys.executable, "-m", "ranktop.tui.cli"]

MAY_BE_EMPTY = re.compile(
    r"ranktop_progress_|allocator_retries_total|ranktop_memory_tolerance_bytes|device_throttled|severity=\"critical\""
)
"""Of a job that goes well nothing may be found."""


@contextlib.contextmanager
def simulated(directory: Path) -> Iterator[None]:
    """A simulated job of four ranks, one of which holds too much."""
    run_directory(create=True)
    wish = Wish(ranks=4, local=4, faults=("activations:rank=2",))
    arguments = wish.arguments("sim0")
    told = subprocess.run(
        [sys.executable, "-m", MODULE, *arguments, "--explain"], capture_output=True, text=True, check=True
    )
    with publishing(arguments, wish, json.loads(told.stdout), job_directory("sim0")):
        yield


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def answers(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        with contextlib.suppress(OSError):
            return bool(get(url))
        return False

    return ask


def ask(question: str) -> list[dict[str, Any]]:
    """What the server answers to a question of the dashboard; fails when it does not understand it."""
    for name, value in {"$job": "sim0", "$rank": ".*", "$__rate_interval": "8s"}.items():
        question = question.replace(name, value)
    words = urllib.parse.urlencode({"query": question})
    answer = json.loads(get(f"http://{SERVER}/api/v1/query?{words}"))
    assert answer["status"] == "success"
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def ended(process: subprocess.Popen[bytes], number: signal.Signals) -> tuple[int, float]:
    """Exit code after a signal, and the seconds until then."""
    began = time.monotonic()
    process.send_signal(number)
    return process.wait(10), time.monotonic() - began


def ranktop(command: str) -> list[str]:
    assert command.startswith("ranktop ")
    return [*EXPORTER, *command.split()[1:]]


def test_a_real_server_scrapes_a_job_and_answers(tmp_path: Path) -> None:
    config = yaml.safe_load(CONFIG)
    config["scrape_configs"][0]["scrape_interval"] = "1s"
    config["scrape_configs"][0]["scrape_timeout"] = "1s"
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "alerts.yml").write_text(ALERTS)
    for kind, name in (("config", "prometheus.yml"), ("rules", "alerts.yml")):
        checked = subprocess.run(["promtool", "check", kind, name], cwd=tmp_path, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr.decode()
    server = [
        "prometheus", "--config.file=prometheus.yml", f"--web.listen-address={SERVER}", "--storage.tsdb.path=data",
        "--log.level=error",
    ]  # fmt: skip
    target = "http://127.0.0.1:9400/metrics"
    with running(ranktop(COMMANDS[0]), tmp_path / "export.log") as exporter:
        with running(server, tmp_path / "server.log"):
            with simulated(tmp_path):
                wait_until(answers(target), 30)
                wait_until(answers(f"http://{SERVER}/-/ready"), 30)
                wait_until(lambda: len(ask("ranktop_memory_expected_bytes")) >= 4 * 6, 60)
                wait_until(lambda: bool(ask('ranktop_finding_active{rule="memory"} > 0')), 60)
                wait_until(lambda: bool(ask("rate(ranktop_step_duration_seconds_count[8s]) > 0")), 60)
                check_answers(tmp_path)
            wait_until(lambda: not ask("ranktop_memory_measured_bytes"), 30)
            wait_until(lambda: bool(ask("ranktop_job_up == 0")), 30)
            assert len(ask("ranktop_rank_up == 0")) == 4
            assert not ask("ranktop_steps_total")
        code, seconds = ended(exporter, signal.SIGINT)
        assert code == 130
        assert seconds < 2.0
    assert (tmp_path / "export.log").read_text() == f"ranktop: metrics at {target} (Ctrl-C ends)\n"


def check_answers(folder: Path) -> None:
    """Every question of the dashboard, the numbers of ``ranktop status``, and what promtool says."""
    [scraped] = json.loads(get(f"http://{SERVER}/api/v1/targets"))["data"]["activeTargets"]
    assert (scraped["health"], scraped["lastError"]) == ("up", "")
    for question in questions():
        found = ask(question)
        assert found or MAY_BE_EMPTY.search(question), question
    clean = subprocess.run(COMMANDS[3], shell=True, capture_output=True, text=True, check=False)
    assert (clean.returncode, clean.stdout + clean.stderr) == (0, "")
    told = subprocess.run([*EXPORTER, "status", "--json"], capture_output=True, text=True, check=True)
    rank = json.loads(told.stdout)["jobs"][0]["ranks"][1]
    states = ("parameters", "gradients", "optimizer")
    for side in ("measured", "expected"):
        found = ask(f'ranktop_memory_{side}_bytes{{rank="1",category=~"{"|".join(states)}"}}')
        by_category = {one["metric"]["category"]: float(one["value"][1]) for one in found}
        assert by_category == {name: rank[side][name] for name in states}
    # The label with which the server says where it has it from is not one of ours.
    assert {one["metric"]["job"] for one in ask("ranktop_rank_up")} == {"ranktop"}
    [info] = ask("ranktop_job_info")
    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(info["metric"].items())).replace(", ", ",")
    regex = VARIABLES["job"]["regex"].strip("/").replace("(?<", "(?P<")
    chosen = re.search(regex, f"ranktop_job_info{{{labels}}} 1 {int(time.time())}000")
    assert chosen is not None
    assert chosen.groupdict() == {"value": "sim0", "text": info["metric"]["name"]}


def test_what_it_says_when_it_cannot_or_must_wait(tmp_path: Path) -> None:
    assert COMMANDS[1].endswith("--job llama")
    with running([*ranktop(COMMANDS[1]), "--listen", "0.0.0.0:9462"], tmp_path / "a.log") as first:
        wait_until(answers("http://127.0.0.1:9462/metrics"), 30)
        taken = subprocess.run(
            [*EXPORTER, "export", "--prometheus", "--listen", "127.0.0.1:9462"], capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip
        assert (taken.returncode, taken.stdout) == (1, "")
        assert taken.stderr == (
            "ranktop: cannot listen on 127.0.0.1:9462: Address already in use; --listen names another port\n"
        )
        with running(ranktop(COMMANDS[2]), tmp_path / "b.log") as second:
            wait_until(answers("http://127.0.0.1:9500/metrics"), 30)
            assert ended(second, signal.SIGTERM)[0] == 0
        code, seconds = ended(first, signal.SIGTERM)
        assert (code, seconds < 2.0) == (0, True)
    warning, waiting, where = (tmp_path / "a.log").read_text().splitlines()
    assert "0.0.0.0:9462 can be reached from other machines" in warning
    assert waiting == "ranktop: no live job 'llama' on this machine yet; waiting for one"
    assert where == "ranktop: metrics at http://0.0.0.0:9462/metrics (Ctrl-C ends)"
    without = [sys.executable, "-c", HIDE, "export", "--prometheus"]
    missing = subprocess.run(without, capture_output=True, text=True, timeout=30, check=False, env={**os.environ})
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert "pip install 'ranktop[prometheus]'" in missing.stderr
    assert not find_jobs().jobs


HIDE = """
import sys
sys.modules["prometheus_client"] = None
from ranktop.tui.cli import main
main()
"""
