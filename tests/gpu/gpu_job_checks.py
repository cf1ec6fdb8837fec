"""Jobs: which devices they see, what is measured of their tensors under DDP and FSDP2, and one through to status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nvidia_smi
import torch
from gpu_table import Check, in_a_process, last_lines

from ranktop.probes.visible import Seen, resolve

TRAIN = """
import time, torch
from torch import nn
device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
until = time.monotonic() + 60
while time.monotonic() < until:
    model(torch.randn(8, 512, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""
STATUS = "import sys; from ranktop.tui.cli import main; sys.argv = ['ranktop', 'status', '--json']; main()"


def seen_by_nvml(gpus: list[nvidia_smi.ListedGpu], log: nvidia_smi.Section) -> list[Seen]:
    """Return what nvidia-smi lists, as ``resolve`` takes it."""
    sections = {part.find("GPU UUID"): part for part in log.all("GPU")}
    found = []
    for gpu in gpus:
        section = sections[gpu.uuid]
        ids = tuple(
            (nvidia_smi.mebibytes(mig.find("GPU Instance ID")), nvidia_smi.mebibytes(mig.find("Compute Instance ID")))
            for mig in section.all("MIG Device")
        )
        slices = tuple(mig.uuid for mig in gpu.mig)
        mode = section.find("MIG Mode", "Current") == "Enabled"
        found.append(Seen(gpu.index, gpu.uuid, section.value, gpu.name, slices, ids, mode))
    return found


def lists_to_try(devices: list[Seen]) -> list[str | None]:
    """Return values of CUDA_VISIBLE_DEVICES that mean something on this host, and some that mean nothing."""
    first = devices[0].uuid
    values: list[str | None] = [
        None,
        "",
        "0",
        "-1",
        "0,-1",
        "99",
        "0,99,0",
        "0,0",
        " 0 ",
        "0,",
        ",0",
        "NoDevFiles",
        "0x0",
        "0gpu",
    ]
    values += [first, first[:12], "GPU-", f"{first},{first}", f"0,{first}", f" {first}", first.upper()]
    if len(devices) > 1:
        values += ["1,0", "1", f"{devices[1].uuid},{first}", f"1,{first}"]
    for device in devices:
        values += device.mig[:2]
        values += [f"MIG-{device.uuid}/{gi}/{ci}" for gi, ci in device.instances[:1]]
    return values


def visible_devices() -> list[Check]:
    """Compare ``resolve`` with the UUIDs that CUDA itself gives; where it says it can't know, only tell."""
    devices = seen_by_nvml(nvidia_smi.listing(nvidia_smi.ask("-L")), nvidia_smi.query(nvidia_smi.ask("-q")))
    checks = []
    for order in ("PCI_BUS_ID", "FASTEST_FIRST"):
        for value in lists_to_try(devices):
            environment = {key: text for key, text in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
            environment["CUDA_DEVICE_ORDER"] = order
            if value is not None:
                environment["CUDA_VISIBLE_DEVICES"] = value
            run = subprocess.run(
                [sys.executable, "cuda_driver_program.py"],
                env=environment,
                cwd=Path(__file__).parent,
                capture_output=True,
                text=True,
                timeout=60,
            )
            wanted = json.loads(run.stdout)["uuids"] if run.returncode == 0 else [run.stderr.strip()[-80:]]
            mine = resolve(value, order, devices)
            same = [entry.uuid.split("-", 1)[1] for entry in mine.devices] == wanted
            certain = all(entry.certain for entry in mine.devices)
            detail = f"CUDA {wanted}, certain {certain}, {'; '.join(mine.notes)}"
            checks.append(
                Check(f"visible: {value!r} {order[:3]}", same if certain else None, ("" if same else "OTHER ") + detail)
            )
    return checks


def strategy(name: str, backend: str, world: int, device: str) -> list[Check]:
    """Compare the probe's bytes with the tensors' storages and with arithmetic."""
    title = f"{name}, {backend}, world {world}"
    done = in_a_process(["gpu_job_program.py", name, backend, str(world), device])
    if done.returncode:
        return [Check(title, False, last_lines(done, 2))]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    measured = {part: answer["resident"][part] for part in answer["live"]}
    same = measured == answer["live"]
    size = answer["arithmetic"]
    # AdamW's two moments, and a step counter of 4 bytes a tensor where it lives on this device.
    right = measured["parameters"] == measured["gradients"] == size and 0 <= measured["optimizer"] - 2 * size <= 4 * 8
    allocated = answer["allocator"][0]
    fits = allocated is not None and allocated >= sum(measured.values())
    return [
        Check(
            title,
            same and right and fits,
            f"{measured}, counted {answer['live']}, arithmetic {size}, allocated {allocated}",
        )
    ]


def strategies(device: str) -> list[Check]:
    """DDP and FSDP2, alone and as rank 0 of eight."""
    backend = "nccl" if device.startswith("cuda") else "gloo"
    cases = [("ddp", backend, 1), ("fsdp2", backend, 1), ("ddp", "fake", 8), ("fsdp2", "fake", 8)]
    return [check for name, group, world in cases for check in strategy(name, group, world, device)]


def whole_pipe(uuid: str | None) -> list[Check]:
    """Run a script unchanged under the agent and ask ``ranktop status --json``; ``uuid`` None: a CPU job."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(TRAIN)
        environment = {**os.environ, "RANKTOP_RUN_DIR": str(Path(folder) / "run"), "RANKTOP_HUB_LINGER": "1"}
        environment["RANKTOP_STATE_DIR"] = str(Path(folder) / "state")
        job = subprocess.Popen(
            [sys.executable, "-m", "ranktop.agent", "train.py"], cwd=folder, env=environment, stderr=subprocess.DEVNULL
        )
        try:
            rank = until_steps(environment)
        finally:
            job.terminate()
            job.wait(30)
    if rank is None:
        return [Check("status --json", False, "no rank with a finished step in 45 s")]
    device, allocator, memory = rank["device"] or {}, rank["allocator"] or {}, rank["now"]
    shown = {key: value for key, value in device.items() if value is not None}
    same = device.get("kind") == ("host" if uuid is None else "cuda") and device.get("uuid") == uuid
    backend = "malloc" if uuid is None else torch.cuda.get_allocator_backend()
    parts = [value for name, value in memory.items() if name != "total" and isinstance(value, int)]
    adds_up = memory.get("total") is not None and sum(parts) == memory["total"]
    return [
        Check("status --json: the device", same, str(shown)[:600]),
        Check("status --json: the allocator", backend == allocator.get("backend"), str(allocator.get("backend"))),
        Check("status --json: adds up", adds_up, str(memory)),
    ]


def until_steps(environment: dict[str, str], seconds: float = 45.0) -> dict[str, Any] | None:
    """Return the first rank once it has finished steps and its device has answered."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run = subprocess.run(
            [sys.executable, "-c", STATUS], env=environment, capture_output=True, text=True, timeout=60
        )
        try:
            ranks = json.loads(run.stdout)["jobs"][0]["ranks"]
        except (ValueError, KeyError, IndexError, TypeError):
            ranks = []
        if ranks and (ranks[0]["step"] or {}).get("index") and (ranks[0]["now"] or {}).get("total"):
            first: dict[str, Any] = ranks[0]
            return first
        time.sleep(0.5)
    return None


def local_uuid() -> str:
    """Return the UUID of ``cuda:0`` as NVML prints it."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"
