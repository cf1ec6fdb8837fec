"""What of the checks on a GPU can run without one."""

from __future__ import annotations

from pathlib import Path

import gpu_allocator_checks as allocators
import gpu_cost_checks as cost
import gpu_device_checks as devices
import gpu_job_checks as jobs
import nvidia_smi
import nvidia_smi_samples as samples
import torch
from gpu_table import HERE, Check, Group

from ranktop.probes.visible import resolve

LISTED = [
    (0, "NVIDIA A100-SXM4-40GB", [("1g.5gb", 0, "MIG-c6d4"), ("1c.3g.20gb", 1, "MIG-cba6")]),
    (1, "NVIDIA H100 80GB HBM3", []),
]


def nvidia_smi_text() -> list[Check]:
    """Read text of nvidia-smi's shape."""
    gpus, log = nvidia_smi.listing(samples.LISTING), nvidia_smi.query(samples.QUERY)
    first, second = log.all("GPU")
    memory = [
        nvidia_smi.mebibytes(second.find("FB Memory Usage", name)) for name in ("Total", "Reserved", "Used", "Free")
    ]
    slices = [
        (mig.find("Index"), mig.find("GPU Instance ID"), mig.find("Compute Instance ID"))
        for mig in first.all("MIG Device")
    ]
    pids = [(part.value, part.find("Used GPU Memory")) for part in processes(second)]
    rows = nvidia_smi.rows(samples.PROCESS_ROWS, "pid", "uuid", "used_memory")
    listed = [(gpu.index, gpu.name, [(mig.profile, mig.index, mig.uuid[:8]) for mig in gpu.mig]) for gpu in gpus]
    versions = log.find("Driver Version"), log.find("CUDA Version")
    buses = [devices.bus(part.value) for part in (first, second)]
    return [
        Check("-L", listed == LISTED, str(listed)),
        Check("-q: versions", versions == ("570.86.15", "12.8"), str(versions)),
        Check("-q: bus ids", buses == [(0, 7, 0, 0), (0, 0x81, 0, 0)], str(buses)),
        Check("-q: memory", memory == [81559, 551, 1187, 79821], str(memory)),
        Check("-q: MIG", slices == [("0", "7", "0"), ("1", "2", "1")], str(slices)),
        Check("-q: processes", pids == [("4711", "1178 MiB"), ("4712", "N/A")], str(pids)),
        Check("--query", [nvidia_smi.mebibytes(row["used_memory"]) for row in rows] == [1178, None], str(rows)),
    ]


def processes(gpu: nvidia_smi.Section) -> list[nvidia_smi.Section]:
    """Return the processes of a GPU; what belongs to each is indented below its id."""
    return [part for section in gpu.all("Processes") for part in section.all("Process ID")]


def what_cuda_would_show() -> list[Check]:
    """Resolve every list that a GPU's host would be asked for."""
    found = jobs.seen_by_nvml(nvidia_smi.listing(samples.LISTING), nvidia_smi.query(samples.QUERY))
    values = jobs.lists_to_try(found)
    resolved = {value: resolve(value, "PCI_BUS_ID", found) for value in values}
    legacy = resolved[f"MIG-{found[0].uuid}/7/0"].devices
    right = [entry.uuid for entry in legacy] == [found[0].mig[0]] and legacy[0].certain
    return [Check("visible devices", right, f"{len(values)} lists; {legacy}")]


def counters() -> list[Check]:
    """Compare a made-up reading with made-up statistics: what agrees passes, one byte of difference does not."""
    stats = {key: 100 + place for place, key in enumerate(allocators.KEYS.values())}
    reading = {**dict(zip(allocators.KEYS, stats.values(), strict=True)), "backend": "native", "expandable": False}
    blocks = [((0, 0), "inactive", 7), ((0, 0), "active_allocated", 9), ((0, 3), "inactive", 50)]
    answer = {
        "reading": {**reading, "largest_free": 7, "reasons": {}},
        "stats": stats,
        "backend": "native",
        "quick": (100, 101),
        "allocated": 100,
        "reserved": 101,
        "quick_seconds": 1e-5,
        "read_seconds": (2e-3, 1e-4),
        "blocks": blocks,
    }
    agree = [*allocators.counters("native", answer), allocators.largest_free("native", answer)]
    wrong = {**answer, "reading": {**reading, "active": 99, "largest_free": 50, "reasons": {}}}
    differ = [allocators.counters("native", wrong)[0], allocators.largest_free("native", wrong)]
    return [
        Check("counters that agree", all(check.passed for check in agree), str([check.name for check in agree])),
        Check("counters that differ", not any(check.passed for check in differ), differ[0].detail),
    ]


def programs() -> list[Check]:
    """Compile what only a GPU's host runs."""
    sources = {path.name: path.read_text() for path in sorted(Path(HERE).glob("*_program.py"))}
    for name, source in {**sources, "STRAY": devices.STRAY, "TRAIN": jobs.TRAIN, "STATUS": jobs.STATUS}.items():
        compile(source, name, "exec")
    return [Check("programs compile", len(sources) == 3, ", ".join(sources))]


def counted_calls() -> list[Check]:
    """Count calls into the NVML library where there is one; without it pynvml fails before it calls."""
    import pynvml

    with cost.Calls().counted() as calls:
        try:
            pynvml.nvmlInit()
            pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            return [Check("calls are counted", None, f"NVML: {error}")]
    names = set(calls.seconds)
    return [Check("calls are counted", {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2"} <= names, str(names))]


def groups() -> list[tuple[str, Group]]:
    """Return the groups of checks."""
    cpu = torch.device("cpu")
    return [
        ("nvidia-smi", nvidia_smi_text),
        ("what CUDA shows", what_cuda_would_show),
        ("counters", counters),
        ("programs", programs),
        ("calls to the driver", counted_calls),
        ("strategies", lambda: jobs.strategies("cpu")),
        ("status", lambda: jobs.whole_pipe(None)),
        ("overhead", lambda: cost.overhead(cpu, pairs=1, block=5, warm_up=0.1, ms=2.0, judged=False)),
    ]
