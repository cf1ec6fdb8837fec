"""Python, ranktop's own libraries, torch, and whether an agent can attach here."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Final

from ranktop.probes.device import chosen_by
from ranktop.tui.doctor.check import Check, Result, failed, passed, skipped, warned
from ranktop.tui.doctor.configuration import look_at_configuration
from ranktop.tui.doctor.driver import report
from ranktop.tui.doctor.scene import Scene, plural
from ranktop.tui.doctor.trial import Trial

NEWEST_PYTHON: Final = (3, 13)
OLDEST_PYTHON: Final = (3, 10)
OLDEST_TORCH: Final = (2, 4)
_NUMBERS: Final = (("RANKTOP_INTERVAL", 0.05, 3600.0, "1"), ("RANKTOP_HUB_LINGER", 0.0, float("inf"), "180"))
"""Variable, least, most, and what is used instead of a value that is neither."""


def look_at_python(scene: Scene) -> Result:
    """Tell the versions of Python and ranktop."""
    found = f"Python {platform.python_version()}, ranktop {version('ranktop')}"
    facts = {"python": platform.python_version(), "ranktop": version("ranktop"), "executable": sys.executable}
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return warned(f"{found}: not tested with Python newer than {newest}", f"use Python {newest}", **facts)
    if sys.version_info[:2] < OLDEST_PYTHON:
        return failed(f"{found}: too old", "use Python 3.10 or newer", **facts)
    return passed(found, **facts)


def look_at_libraries(scene: Scene) -> Result:
    """Hold the libraries that ranktop needs against the versions that it needs."""
    found: dict[str, str | None] = {}
    wrong: list[str] = []
    for requirement in requires("ranktop") or ():
        name, _, marker = requirement.partition(";")
        if "extra" in marker or not applies(marker):
            continue
        bare = re.split(r"[<>=!~ \[]", name.strip(), maxsplit=1)[0]
        try:
            found[bare] = version(bare)
        except PackageNotFoundError:
            found[bare] = None
        if not satisfies(found[bare], name.strip().removeprefix(bare)):
            wrong.append(name.strip())
    words = ", ".join(f"{name} {found.get(name) or 'missing'}" for name in ("msgspec", "pyzmq", "textual"))
    facts: dict[str, object] = {"libraries": found, "wrong": wrong}
    if wrong:
        needs = ", ".join(f"{name} (found: {_found(name, found)})" for name in wrong)
        return failed(f"needs {needs}", "pip install " + " ".join(f"'{name}'" for name in wrong), **facts)
    if (old := _shadow()) is not None:
        found_words = f"pynvml {old} hides nvidia-ml-py, which replaces it"
        return warned(found_words, "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py", **facts)
    return passed(words, **facts)


def applies(marker: str, python: tuple[int, int] = sys.version_info[:2]) -> bool:
    """Tell whether what some versions of Python alone need is needed on this one; other conditions count as met.

    >>> applies(" python_version < '3.11'", (3, 13)), applies(" python_version < '3.11'", (3, 10)), applies("")
    (False, True, True)
    """
    bounds = re.findall(r"python_version\s*(<|>=)\s*['\"](\d+)\.(\d+)", marker)
    return all((python < (int(a), int(b))) == (sign == "<") for sign, a, b in bounds)


def _found(requirement: str, found: dict[str, str | None]) -> str:
    bare = re.split(r"[<>=!~ \[]", requirement, maxsplit=1)[0]
    return found.get(bare) or "none"


def _shadow() -> str | None:
    """Return the version of an old pynvml package that brings a module of the same name as nvidia-ml-py's."""
    try:
        found = version("pynvml")
    except PackageNotFoundError:
        return None
    return found if _numbers(found) < (12,) else None


def satisfies(found: str | None, wanted: str) -> bool:
    """Tell whether a version is within a requirement of bounds (``>=8.2.5,<9``); others count as met.

    >>> satisfies("8.2.8", ">=8.2.5,<9"), satisfies("9.0", ">=8.2.5,<9"), satisfies(None, ">=1")
    (True, False, False)
    """
    if found is None:
        return False
    have = _numbers(found)
    for sign, bound in re.findall(r"(>=|<)\s*([0-9.]+)", wanted):
        limit = _numbers(bound)
        if (sign == ">=" and have < limit) or (sign == "<" and have >= limit):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found.group(0).split(".")) if found else ()


def look_at_variables(scene: Scene) -> Result:
    """Check the variables that an agent started here would obey."""
    found = {name: value for name, value in sorted(scene.environ.items()) if name.startswith("RANKTOP_") and value}
    wrong = _wrong_variables(found)
    facts: dict[str, object] = {"variables": found, "wrong": list(wrong)}
    if not found:
        return passed("none of ranktop's is set", **facts)
    if wrong:
        return warned("; ".join(wrong.values()), f"unset {' '.join(wrong)}", **facts)
    return passed(", ".join(f"{name}={value}" for name, value in found.items()), **facts)


def _wrong_variables(found: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with ranktop's variables, by name."""
    wrong = {}
    if found.get("RANKTOP_DISABLE", "0") != "0":
        wrong["RANKTOP_DISABLE"] = "RANKTOP_DISABLE is set: jobs started here run without an agent"
    for name, least, most, used in _NUMBERS:
        if name in found and not _is_number(found[name], least, most):
            wrong[name] = f"{name}={found[name]} is no number of seconds that can be used: {used} is"
    device = found.get("RANKTOP_DEVICE", "host").strip()
    if device != "host" and chosen_by(device) is None:
        wrong["RANKTOP_DEVICE"] = f"RANKTOP_DEVICE={device} is not understood (host, nvml:<uuid>, nvml:local_rank)"
    return wrong


def _is_number(text: str, least: float, most: float) -> bool:
    try:
        return least <= float(text) <= most
    except ValueError:
        return False


def torch_version() -> str | None:
    """Return the version of the torch in this environment without importing it; None when there is none."""
    try:
        if importlib.util.find_spec("torch") is None:
            return None
        return version("torch")
    except (PackageNotFoundError, ValueError):
        return None


def look_at_torch(scene: Scene) -> Result:
    """Tell which torch is here, what it was built for, and whether it sees a GPU."""
    trial: Trial | None = scene.trial()
    found = torch_version()
    if trial is None:
        return skipped(
            "no torch in this environment: watching needs none, a job brings its own",
            f"to check a job's environment, run there: {sys.executable.rpartition('/')[2]} -m ranktop.tui.cli doctor",
            version=None,
        )
    facts: dict[str, Any] = {"version": found, **trial.facts}
    if "error" in trial.facts:
        return failed(f"torch {found} cannot be imported: {trial.facts['error']}", "reinstall torch", **facts)
    if "version" not in trial.facts:
        if trial.code is not None:
            last = trial.said[-1] if trial.said else f"exit code {trial.code}"
            return failed(f"torch {found}: its import ended the process ({last})", "reinstall torch", **facts)
        words = f"torch {found}: not imported within {trial.seconds:.0f} s"
        return warned(words, "the first import is slow on a network file system: run again, or --wait 60", **facts)
    return _torch(str(trial.facts["version"]), trial, facts, report(scene))


def _torch(name: str, trial: Trial, facts: dict[str, Any], nvml: Mapping[str, Any]) -> Result:
    build = f"CUDA {facts['cuda']}" if facts.get("cuda") else (f"ROCm {facts['hip']}" if facts.get("hip") else "CPU")
    found = f"torch {name}, built for {build}"
    if not satisfies(name, f">={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}"):
        return failed(f"{found}: ranktop needs 2.4 or newer", "pip install 'torch>=2.4'", **facts)
    if not facts.get("distributed"):
        return warned(f"{found}, without torch.distributed: one rank only", "install a build with it", **facts)
    if "cuda_available" not in facts:
        found += f"; it was still looking for a GPU after {trial.seconds:.0f} s"
        return failed(found, "see `dmesg` for Xid and NVRM lines: CUDA hangs", **facts)
    if not facts["cuda_available"]:
        unseen = _unseen(found, facts, nvml)
        if unseen is not None:
            return unseen
    if facts["cuda_available"]:
        found += f", sees {plural(facts['cuda_devices'], 'GPU')}"
        if not facts.get("device_uuid"):
            advice = "pip install 'torch>=2.4' of a newer minor version"
            return warned(f"{found}, but does not tell their UUIDs", advice, **facts)
    found += f", NCCL {facts['nccl']}" if facts.get("nccl") else ""
    if not facts.get("flight_recorder"):
        return warned(f"{found}; no flight recorder: how far collectives have come is not told", "use a newer torch",
                      **facts)  # fmt: skip
    return passed(f"{found}, flight recorder", **facts)


def _unseen(found: str, facts: dict[str, Any], nvml: Mapping[str, Any]) -> Result | None:
    """Say why torch sees no GPU; None where there is nothing to see, or nothing to see it with."""
    there = plural(int(nvml.get("count") or 0), "GPU")
    driver = str(nvml.get("cuda_driver") or "")
    if not facts.get("cuda"):
        if not nvml.get("count") or facts.get("hip"):
            return None
        return warned(f"{found}, but {there} here", "install a torch built for CUDA: https://pytorch.org/get-started",
                      **facts)  # fmt: skip
    if driver and _numbers(driver)[:1] < _numbers(str(facts["cuda"]))[:1]:
        advice = f"update the driver, or install a torch built for CUDA {driver} or older"
        return warned(f"{found}, but the driver serves CUDA up to {driver}", advice, **facts)
    return warned(f"{found}, but it sees no GPU", "see the lines about driver and visible devices", **facts)


def look_at_agent(scene: Scene) -> Result:
    """Tell whether an agent attached to a training of two steps and was heard through its hub."""
    trial: Trial | None = scene.trial()
    if trial is None:
        return skipped("without torch there is no training to attach to", heard=None)
    facts: dict[str, object] = {
        "heard": trial.heard,
        "model": trial.model or None,
        "notes": list(trial.notes),
        "stderr": trial.said,
    }
    said = next((line for line in trial.said if line.startswith("ranktop:")), "")
    if trial.heard is None:
        if "version" not in trial.facts and trial.code is None and not said:
            return skipped(f"torch was not imported within {trial.seconds:.0f} s: nothing to attach to", **facts)
        why = said.removeprefix("ranktop: ") or (trial.said[-1] if trial.said else "no word from it")
        return failed(f"an agent was started and not heard within {trial.seconds:.0f} s: {why}",
                      "see the lines about the run directory, and RANKTOP_RUN_DIR", **facts)  # fmt: skip
    if not trial.model and "trained" not in trial.facts:
        found = f"an agent on this machine was heard in {trial.heard:.1f} s; the trial ended before it had a model"
        return passed(found, **facts)
    if not trial.model:
        return warned(f"an agent on this machine was heard in {trial.heard:.1f} s, but it saw no model",
                      "please report this line with the version of torch", **facts)  # fmt: skip
    return passed(f"an agent on this machine was heard in {trial.heard:.1f} s and saw its model", **facts)


CHECKS = (
    Check("python.version", "Python", look_at_python),
    Check("python.libraries", "libraries", look_at_libraries),
    Check("python.variables", "variables", look_at_variables),
    Check("python.configuration", "ranktop.toml", look_at_configuration),
    Check("python.torch", "torch", look_at_torch),
    Check("python.agent", "agent", look_at_agent),
)
