"""Deterministic jobs with something odd about their GPUs."""

from __future__ import annotations

from dataclasses import replace

from fake_device import CONTEXT, h100_detail
from fake_job import GIB, FakeJob, Spec, fsdp_job

from ranktop.probes.reading import DeviceIdentity, MigInstance


def stray_job() -> FakeJob:
    """Ranks 1 to 7 have a context on rank 0's GPU, for want of a set_device."""
    job = fsdp_job()
    others = tuple(range(1, 8))
    job.contexts[0] = others
    job.specs[0] = replace(job.specs[0], other=len(others) * CONTEXT)
    return job


def mig_job() -> FakeJob:
    """Two ranks on the instances 0 and 2 of one H100, which tells the use of the whole GPU only."""
    job = fsdp_job(2)
    total = 10 * GIB
    why = "not told for a MIG instance"

    def device(rank: int) -> DeviceIdentity:
        instance = MigInstance("GPU-000000ff", 2 * rank, 7 + 2 * rank, 0, "1g.10gb")
        return DeviceIdentity(
            kind="cuda", uuid=f"MIG-{rank:08x}", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", total=total, torch_index=0,
            nvml_index=4, pci_bus_id="0000:81:00.0", mig=instance, driver="570.86.15", cuda_driver="12.8",
        )  # fmt: skip

    shard = GIB // 2
    for rank in range(2):
        job.specs[rank] = Spec(
            states=(shard, shard, 2 * shard), activations=3 * GIB, buffers=0, cache=GIB // 4, runtime=GIB // 2,
            other=0, total=total, utilization=None, power=412.0, temperature=55,
        )  # fmt: skip
        job.reading_changes[rank] = {"reasons": {"utilization": why}}
        job.detail_changes[rank] = {
            "of_parent": ("power", "power_limit", "temperature", "sm_clock", "memory_clock", "energy"),
            "memory_utilization": None, "reasons": {**h100_detail(rank).reasons, "memory_utilization": why},
        }  # fmt: skip
    job.device = device
    return job
