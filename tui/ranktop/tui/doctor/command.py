"""The command: starts what takes time, makes the checks, prints the report, leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from ranktop.probes.nvml_report import DEVICE_SECONDS, INIT_SECONDS
from ranktop.tui.doctor import (
    container,
    driver,
    gpus,
    jobs,
    libraries,
    limits,
    network,
    run_directory,
    terminal,
    visible,
)
from ranktop.tui.doctor.check import Line
from ranktop.tui.doctor.child import Child, environment
from ranktop.tui.doctor.examination import Group, examine
from ranktop.tui.doctor.report import as_json, as_text, exit_code
from ranktop.tui.doctor.scene import Scene
from ranktop.tui.doctor.trial import Trial, TrialRun
from ranktop.tui.theme import MONO, choose, speaks_unicode

WAIT: Final = 9.0
"""Seconds after which the report is printed, whatever hangs."""

Closing = list[Callable[[], bool]]
"""How to end what was started; each tells whether it is dead."""

GROUPS: Final = (
    Group("driver", "driver and devices", (*driver.CHECKS, *gpus.CHECKS)),
    Group("visible", "visible devices", visible.CHECKS),
    Group("container", "container and limits", (*container.CHECKS, *limits.CHECKS)),
    Group("run", "run directory", run_directory.CHECKS),
    Group("jobs", "jobs", jobs.CHECKS),
    Group("terminal", "terminal", terminal.CHECKS),
    Group("python", "python and torch", libraries.CHECKS),
    Group("network", "network", network.CHECKS),
)


def doctor(job: str | None, *, json_wanted: bool, wait: float = WAIT) -> int:
    """Check this machine and its jobs, print the report and return the exit code: 1 when a check fails, else 0."""
    started = time.monotonic()
    lines, hangs = check_all(dict(os.environ), job, started + wait)
    seconds = time.monotonic() - started
    _print(lines, seconds, json_wanted)
    code = exit_code(lines)
    if hangs:
        # A thread or a process is caught in a call that does not return; the interpreter's own end might wait for it.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    return code


def check_all(environ: Mapping[str, str], job: str | None, until: float) -> tuple[list[Line], bool]:
    """Make all checks; returns their lines and whether something still hangs at the end."""
    closing: Closing = []
    alive = []
    try:
        nvml = _start_nvml(environ, until, closing)
        trial = _start_trial(environ, until, closing)
        lines, hangs = examine(GROUPS, Scene(environ=environ, until=until, job=job, nvml=nvml, trial=trial))
    finally:
        alive = [close for close in closing if not close()]
    return lines, hangs or bool(alive)


def _start_nvml(environ: Mapping[str, str], until: float, closing: Closing) -> Callable[[], dict[str, Any] | None]:
    try:
        # Short of time it still gives its report, and says what hangs.
        left = until - time.monotonic()
        deadlines = min(INIT_SECONDS, 0.5 * left), min(DEVICE_SECONDS, 0.3 * left)
        command = [sys.executable, "-m", "ranktop.probes.nvml_report", *(f"{seconds:.2f}" for seconds in deadlines)]
        child = Child(command, environment(environ))
    except Exception as error:  # told on the lines of those who ask
        return partial(_refuse, error)
    closing.append(child.close)

    def said() -> str | None:
        return next((line for line in child.lines if line.startswith('{"schema"')), None)

    def wait() -> dict[str, Any] | None:
        child.wait_for(lambda: said() is not None, until)
        line = said()
        if line is None and child.ended:
            last = child.errors[-1] if child.errors else f"exit code {child.code()}"
            raise RuntimeError(f"the process that asks NVML ended: {last}")
        found: dict[str, Any] | None = json.loads(line) if line is not None else None
        return found

    return wait


def _start_trial(environ: Mapping[str, str], until: float, closing: Closing) -> Callable[[], Trial | None]:
    try:
        if libraries.torch_version() is None:
            return lambda: None
        run = TrialRun(environ, until)
    except Exception as error:
        return partial(_refuse, error)
    closing.append(run.close)
    return run.wait


def _refuse(error: Exception) -> None:
    raise error


def _print(lines: list[Line], seconds: float, json_wanted: bool) -> None:
    if json_wanted:
        print(as_json(lines, seconds, version("ranktop")))
        return
    if sys.stdout is None:  # closed: the exit code is all that is wanted
        return
    encoding = sys.stdout.encoding or "ascii"
    color = sys.stdout.isatty() and choose(None) is not MONO
    text = as_text(
        lines,
        {group.name: group.title for group in GROUPS},
        seconds,
        width=min(max(shutil.get_terminal_size((80, 24)).columns, 20), 120),
        unicode=speaks_unicode() and "utf" in encoding.lower(),
        color=color,
    )
    print(text.encode(encoding, "replace").decode(encoding))
