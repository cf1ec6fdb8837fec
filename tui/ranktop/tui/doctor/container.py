"""Containers: which kind, whose process ids, how much memory the kernel lets this one have."""

from __future__ import annotations

import re
from typing import Final

from ranktop.probes.cgroup import MemoryGroups
from ranktop.tui.doctor.check import Check, Result, passed, skipped, warned
from ranktop.tui.doctor.scene import Scene, size
from ranktop.tui.doctor.signs import signs

_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The kernel's own (include/linux/proc_ns.h, PROC_PID_INIT_INO); every other belongs to a container."""

_ENV: Final = (
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "apptainer"),
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
)
_FILES: Final = (
    ("/.singularity.d", "apptainer"),
    ("/run/.containerenv", "podman"),
    ("/.dockerenv", "docker"),
    ("/var/run/secrets/kubernetes.io", "kubernetes"),
)
_CGROUPS: Final = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("/docker", "docker"),
    ("containerd", "containerd"),
    ("/lxc", "lxc"),
)
_ROOTS: Final = (("enroot", "enroot"), ("pyxis", "enroot"), ("/docker/", "docker"), ("/containers/storage", "podman"))
"""Where the root folder is mounted from (proc(5), mountinfo)."""
_NEARLY: Final = 0.9


def runtimes(scene: Scene) -> list[str]:
    """Return the kinds of container around this process, none outside one."""
    found = [kind for name, kind in _ENV if scene.environ.get(name)]
    found += [kind for name, kind in _FILES if scene.exists(name)]
    # A cgroup namespace shows "/" to a process inside; without one the path names the runtime.
    groups = scene.text("/proc/self/cgroup") or ""
    found += [kind for word, kind in _CGROUPS if word in groups]
    found += [kind for word, kind in _ROOTS if word in _root_mount(scene)]
    named = scene.environ.get("container", "")
    if named and not found and re.fullmatch(r"[a-z][a-z-]{1,20}", named):
        found.append("container" if named == "oci" else named)
    return list(dict.fromkeys(found))


def _root_mount(scene: Scene) -> str:
    for line in (scene.text("/proc/self/mountinfo") or "").splitlines():
        words = line.split()
        if len(words) > 4 and words[4] == "/":
            return line
    return ""


def look_at_runtime(scene: Scene) -> Result:
    """Tell the kind of container."""
    found = runtimes(scene)
    return passed(f"inside one ({', '.join(found)})" if found else "not inside one", runtimes=found)


def look_at_pids(scene: Scene) -> Result:
    """Tell whose process ids this process sees: the driver lists the host's."""
    try:
        namespace: str | None = str(scene.path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = None
    ids = _own_ids(scene)
    facts = {"namespace": namespace, "ids": ids}
    own = namespace is not None and namespace != _FIRST_PID_NAMESPACE
    if namespace is None:
        return skipped("the system does not tell the namespace of process ids", **facts, own=None)
    if not own:
        return passed("the host's: those that the driver lists are the same", **facts, own=False)
    if not signs(scene).driver:
        return passed("the container's own", **facts, own=True)
    return warned(
        "the container's own, the driver lists the host's: a rank can be told from others only while alone on its GPU",
        "start the container with the host's ids (docker: --pid=host, kubernetes: hostPID) to tell each process",
        **facts,
        own=True,
    )


def _own_ids(scene: Scene) -> list[int]:
    for line in (scene.text("/proc/self/status") or "").splitlines():
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return []


def look_at_memory(scene: Scene) -> Result:
    """Tell the kernel's limit of memory for this process's cgroup against the machine's RAM."""
    ram = memory_field(scene, "MemTotal")
    limit, used = memory_limit(scene)
    facts = {"limit": limit, "used": used, "ram": ram}
    if limit is None or (ram is not None and limit >= ram):
        return passed("no limit below the machine's RAM", **{**facts, "limit": None})
    of = f" of the machine's {size(ram)}" if ram else ""
    if used is None:
        return passed(f"at most {size(limit)}{of}", **facts)
    found = f"{size(used)} used of at most {size(limit)}{of}"
    if used > _NEARLY * limit:
        return warned(found, "the kernel kills at the limit: ask for more (docker --memory, sbatch --mem)", **facts)
    return passed(found, **facts)


def memory_limit(scene: Scene) -> tuple[int | None, int | None]:
    """Return the tightest limit above this process and what is used under it, in bytes; cgroup v2 or v1."""
    found = MemoryGroups(scene.text).tightest()
    return (None, None) if found is None else (found.limit, found.used)


def memory_field(scene: Scene, name: str) -> int | None:
    """Return a field of /proc/meminfo in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", scene.text("/proc/meminfo") or "", re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


CHECKS = (
    Check("container.runtime", "container", look_at_runtime),
    Check("container.pids", "process ids", look_at_pids),
    Check("container.memory", "memory limit", look_at_memory),
)
