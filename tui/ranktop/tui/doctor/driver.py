"""The driver: its library, what initialising it gives, its versions, its device files."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from typing import Any

from ranktop.tui.doctor.check import Check, Result, failed, passed, skipped, warned
from ranktop.tui.doctor.container import runtimes
from ranktop.tui.doctor.scene import Scene, plural
from ranktop.tui.doctor.signs import Signs, signs

_SLOW_INIT = 2.0
"""Seconds from which initialising is worth a word."""


def report(scene: Scene) -> dict[str, Any]:
    """Return what NVML's own process said; an empty report when it did not."""
    with contextlib.suppress(Exception):  # the line about the library tells of it
        return scene.nvml() or {}
    return {}


def look_at_library(scene: Scene) -> Result:
    """Tell which libnvidia-ml.so.1 is used, or why none is."""
    said, seen = scene.nvml(), signs(scene)
    if not said:
        return failed(
            "the process that asks NVML did not answer: the driver hangs",
            "see `dmesg` for Xid and NVRM lines",
            path=None,
        )
    library = said["library"]
    if not library["error"]:
        version = f" ({library['version']})" if library["version"] else ""
        return passed(f"{library['path']}{version}", **library)
    return _no_library(scene, library, seen)


def _no_library(scene: Scene, library: dict[str, Any], seen: Signs) -> Result:
    inside = bool(runtimes(scene))
    start = "start the container with the NVIDIA runtime (docker: --gpus all, apptainer: --nv)"
    if library["path"] and library["size"] == 0:
        found = f"{library['path']} is an empty file, a placeholder that a container runtime left"
        advice = start if inside else "remove it, or reinstall the driver"
    elif library["path"]:
        found = f"{library['path']} cannot be loaded: {library['error']}"
        advice = "reinstall the driver's libraries for this machine's architecture"
    elif library["elsewhere"]:
        folder = os.path.dirname(library["elsewhere"])
        found = f"{library['elsewhere']} is there, but the loader does not find it"
        advice = f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH"
    elif "pynvml" in library["error"]:
        found, advice = library["error"], "pip install nvidia-ml-py"
    elif not seen.any:
        return skipped("no NVIDIA GPU and no driver on this machine: jobs here are CPU jobs", **library)
    elif seen.driver:
        found = "the driver is here, its library libnvidia-ml.so.1 is not"
        advice = start if inside else "install the driver's user-space libraries of the same version"
    else:
        found = f"{plural(len(seen.pci), 'NVIDIA GPU')} on the PCI bus, but no driver: jobs here are CPU jobs"
        advice = start if inside else "install the NVIDIA driver"
    return (failed if seen.driver else warned)(found, advice, **library)


def look_at_start(scene: Scene) -> Result | list[Result]:
    """Tell what nvmlInit gave, in words and with the cure."""
    init = report(scene).get("init") or {"state": "no library"}
    if init["state"] == "no library":
        return []
    if init["state"] == "no answer":
        found = f"no answer for {init['seconds']:.0f} s ({init['calling']})"
        return failed(found, "see `dmesg` for Xid and NVRM lines; a reboot frees a driver that hangs", **init)
    if init["state"] == "failed":
        errors = report(scene)["errors"]
        error = errors.get("init") or next(iter(errors.values()))
        meaning, _, cure = str(error["words"]).partition("; ")
        return failed(
            meaning, init_cure(scene, error["code"]) or cure or "see `dmesg` for NVRM lines", **{**init, **error}
        )
    seconds = init["seconds"]
    if seconds > _SLOW_INIT:
        return warned(
            f"initialised in {seconds:.1f} s", "nvidia-smi -pm 1 (persistence mode) keeps the devices ready", **init
        )
    return passed(f"initialised in {max(seconds, 0.01):.2f} s", **init)


def init_cure(scene: Scene, code: int | None) -> str:
    """Return what helps against a failed nvmlInit on this machine; empty when nothing particular does."""
    inside = bool(runtimes(scene))
    if code == 18:
        if inside:
            return "the host's driver was updated: restart the container"
        return "the driver was updated while its module was loaded: reboot, or reload the nvidia kernel modules"
    if code == 9:
        return "load the kernel module: sudo modprobe nvidia" + (" on the host" if inside else "")
    if code == 999 and inside:
        return "the container lost its devices (after `systemctl daemon-reload` on the host, say): restart it"
    if code == 999:
        return "see `dmesg` for NVRM and Xid lines; if nvidia-smi fails too, reboot"
    if code == 4:
        return "the device files may not be opened: see the line about them"
    return ""


def look_at_versions(scene: Scene) -> Result | list[Result]:
    """Compare the kernel module's version with the library's."""
    said, seen = report(scene), signs(scene)
    library = (said.get("library") or {}).get("version")
    facts = {
        "driver": said.get("driver"),
        "nvml": said.get("nvml"),
        "cuda_driver": said.get("cuda_driver"),
        "kernel_module": seen.module,
        "library": library,
    }
    if not said or (not seen.module_loaded and not said.get("driver")):
        return []
    ours = library or said.get("driver")
    if seen.module and ours and seen.module != ours:
        return failed(
            f"kernel module {seen.module}, library {ours}: they must be the same",
            init_cure(scene, 18),
            **facts,
        )
    parts = [f"driver {said.get('driver') or seen.module or 'unknown'}"]
    parts += [f"serves CUDA up to {said['cuda_driver']}"] if said.get("cuda_driver") else []
    parts += [f"kernel module {seen.module}"] if seen.module else []
    return passed(", ".join(parts), **facts)


def look_at_nodes(scene: Scene) -> Result | list[Result]:
    """Tell whether the device files are there and may be opened."""
    seen = signs(scene)
    if seen.wsl:
        return passed("WSL: /dev/dxg serves the GPU", nodes={"dxg": None})
    if not seen.driver:
        return []
    inside = bool(runtimes(scene))
    problems = {name: problem for name in seen.nodes if (problem := _refused(scene, name))}
    facts = {"nodes": {name: problems.get(name) for name in seen.nodes}}
    if "nvidiactl" not in seen.nodes:
        advice = "start the container with its GPUs (docker: --gpus all)" if inside else "sudo nvidia-modprobe"
        return failed("the kernel module is loaded, but /dev/nvidiactl is missing", advice, **facts)
    if problems:
        name, problem = next(iter(problems.items()))
        more = f" and {plural(len(problems) - 1, 'other')}" if len(problems) > 1 else ""
        return failed(f"/dev/{name}{more}: {problem}", _permit(scene, name, problem, inside), **facts)
    if "nvidia-uvm" not in seen.nodes:
        advice = "give the container /dev/nvidia-uvm" if inside else "sudo nvidia-modprobe -u -c=0"
        return failed("/dev/nvidia-uvm is missing: CUDA cannot start without it", advice, **facts)
    count = sum(name[6:].isdigit() for name in seen.nodes)
    return passed(f"{plural(count, 'device')} and nvidiactl, nvidia-uvm: may be opened", **facts)


def _refused(scene: Scene, name: str) -> str | None:
    """Say why a device file may not be opened; None when it may."""
    path = scene.path(f"/dev/{name}")
    status = os.stat(path)
    if not os.access(path, os.R_OK | os.W_OK):
        return f"no permission (mode {stat.S_IMODE(status.st_mode):04o}, {_owner(status)})"
    if name == "nvidiactl":
        # The permissions of the file say nothing of a container's device cgroup. The other files wake a device up.
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except PermissionError:
            return "blocked by the container's device cgroup"
        except OSError as error:
            return f"cannot be opened: {error.strerror}"
    return None


def _owner(status: os.stat_result) -> str:
    try:
        user = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        user = str(status.st_uid)
    return f"{user}:{_group(status.st_gid)}"


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _permit(scene: Scene, name: str, problem: str, inside: bool) -> str:
    if "cgroup" in problem:
        return "restart the container; it lost or never had the devices"
    if inside:
        return "give the container its GPUs (docker: --gpus all), or run as a user that may open them"
    group = os.stat(scene.path(f"/dev/{name}")).st_gid
    return f"sudo usermod -aG {_group(group)} $USER and log in again" if group else f"sudo chmod 666 /dev/{name}"


CHECKS = (
    Check("driver.library", "library", look_at_library),
    Check("driver.init", "start", look_at_start),
    Check("driver.versions", "versions", look_at_versions),
    Check("driver.nodes", "device files", look_at_nodes),
)
