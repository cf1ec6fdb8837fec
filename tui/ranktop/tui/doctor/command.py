"""The command: starts what takes time, makes the checks, prints the report, leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

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
        # A thread is caught in a call that does not return; the interpreter's own end might wait for it.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    return code


def check_all(environ: Mapping[str, str], job: str | None, until: float) -> tuple[list[Line], bool]:
    """Make all checks; returns their lines and whether something still hangs at the end."""
    with contextlib.ExitStack() as stack:
        nvml = _start_nvml(environ, until, stack)
        trial = _start_trial(environ, until, stack)
        return examine(GROUPS, Scene(environ=environ, until=until, job=job, nvml=nvml, trial=trial))


def _start_nvml(
    environ: Mapping[str, str], until: float, stack: contextlib.ExitStack
) -> Callable[[], dict[str, Any] | None]:
    child = Child([sys.executable, "-m", "ranktop.probes.nvml_report"], environment(environ))
    stack.callback(child.close)

    def wait() -> dict[str, Any] | None:
        if not child.wait_for(lambda: bool(child.lines), until):
            if child.ended:
                raise RuntimeError(
                    f"the process that asks NVML ended: {child.errors[-1] if child.errors else 'silently'}"
                )
            return None
        found: dict[str, Any] = json.loads(child.lines[-1])
        return found

    return wait


def _start_trial(environ: Mapping[str, str], until: float, stack: contextlib.ExitStack) -> Callable[[], Trial | None]:
    if libraries.torch_version() is None:
        return lambda: None
    run = TrialRun(environ, until)
    stack.callback(run.close)
    return run.wait


def _print(lines: list[Line], seconds: float, json_wanted: bool) -> None:
    if json_wanted:
        print(as_json(lines, seconds, version("ranktop")))
        return
    terminal_there = sys.stdout.isatty()
    width = min(max(shutil.get_terminal_size((80, 24)).columns, 20), 120)
    titles = {group.name: group.title for group in GROUPS}
    color = terminal_there and choose(None) is not MONO
    print(as_text(lines, titles, seconds, width=width, unicode=speaks_unicode(), color=color))
