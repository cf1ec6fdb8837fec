"""Deterministic jobs with something odd about their GPUs."""

from __future__ import annotations

from dataclasses import replace

from fake_device import CONTEXT, h100_detail
from fake_findings import all_kinds, oom, over_its_peers, strays
from fake_job import GIB, MIB, FakeJob, Spec, fsdp_job
from msgspec import structs

from ranktop.probes.reading import AllocatorReading, Collectives, DeviceIdentity, GroupPosition, MigInstance
from ranktop.wire.schema import Box, Call, Card, End, Stack


def stray_job() -> FakeJob:
    """Ranks 1 to 7 have a context on rank 0's GPU, for want of a set_device."""
    job = fsdp_job()
    others = tuple(range(1, 8))
    job.contexts[0] = others
    job.specs[0] = replace(job.specs[0], other=len(others) * CONTEXT)
    job.findings = (strays(0, others), *job.findings)
    return job


def oom_job() -> FakeJob:
    """Rank 3 runs out of memory in the forward of its step 1,208; its peers are told to go."""
    job = fsdp_job()
    held = job.memory(3, "backward_start")
    job.boxes[3] = Box(
        rank=3, error="OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 GiB. GPU 3 has a total capacity "
        "of 79.65 GiB of which 19.31 GiB is free.", step=1207, phase="forward", asked=22 * GIB, free=held.free,
        limit=held.total, memory=held,
        allocator=AllocatorReading(
            allocated=58 * GIB, reserved=60 * GIB, inactive_split=310 * MIB, retries=2, ooms=1, backend="native",
            largest_free=int(1.2 * GIB),
        ),
        collectives=Collectives((GroupPosition("0", "default", 8, 272_895, 272_894),)),
        inputs=("int64 [1, 4096]", "int64 [1, 4096]"),
        calls=(
            Call("train.py", 212, "main"), Call("train.py", 148, "train_step"),
            Call("torch/nn/modules/module.py", 1773, "_wrapped_call_impl"),
            Call("transformers/models/llama/modeling_llama.py", 842, "forward"),
            Call("torch/nn/functional.py", 3479, "cross_entropy"),
        ),
    )  # fmt: skip
    job.ends[3] = End(rank=3, how="exception", code=1, detail="OutOfMemoryError: CUDA out of memory")
    job.findings = (oom(3),)
    return job


def hung_job() -> FakeJob:
    """Everybody waits for rank 5, which is in its data loader."""
    job = fsdp_job()
    job.stacks[5] = Stack(
        rank=5, step=10_000_000, waited=31.0,
        calls=(
            Call("train.py", 212, "main"), Call("train.py", 131, "train_step"),
            Call("torch/utils/data/dataloader.py", 734, "__next__"), Call("data/loader.py", 88, "read_shard"),
        ),
    )  # fmt: skip
    job.findings = all_kinds()
    return job


def staged_job(stages: int = 4, tensor: int = 2, replicas: int = 4) -> FakeJob:
    """A job of pipeline stages and tensor-parallel ranks; the first stage holds more."""
    ranks = stages * tensor * replicas
    job = fsdp_job(ranks)
    card = job.card

    def placed(rank: int) -> Card:
        plain = card(rank)
        assert plain.plan is not None
        layout = replace(
            plain.plan.layout, shard=1, replicate=replicas, tensor=tensor, pipeline=stages, tensor_rank=rank % tensor,
            pipeline_rank=rank // (tensor * replicas),
        )  # fmt: skip
        return structs.replace(plain, plan=replace(plain.plan, layout=layout))

    for rank in range(ranks):
        job.specs[rank] = replace(
            job.specs[rank], activations=(24 - 4 * (rank // (tensor * replicas))) * GIB + (8 * GIB if rank == 13 else 0)
        )
    job.findings = (over_its_peers(13, "activations", 28 * GIB, 20 * GIB, range(8, 16)),)
    object.__setattr__(job, "card", placed)
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
