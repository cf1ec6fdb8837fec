"""Memory that a process takes on a GPU beside its tensors: CUDA context, NCCL, cuBLAS workspaces.

None of it follows from the model: constants of drivers and libraries, to be replaced by what a live job shows
(NVML's bytes of the process - reserved).
"""

from __future__ import annotations

from typing import Final

from ranktop.budget.plan import Plan
from ranktop.budget.terms import Amount, Part

MIB: Final = 2**20

CONTEXT: Final = 450 * MIB
"""CUDA context with lazily loaded kernels: 400 MB (CUDA 11.7 and later), 426 MiB (13.0) reported."""

CUBLAS_WORKSPACE: Final = 32 * MIB
"""Per handle and stream on compute capability 9 to 12: aten/src/ATen/cuda/CublasHandlePool.cpp
``parseChosenWorkspaceSize``."""

CUBLAS_WORKSPACE_BEFORE: Final = (2 * 4096 + 8 * 16) * 1024
"""The same on other architectures (``:4096:2:16:8``)."""

CUBLASLT_WORKSPACE: Final = MIB
"""cublasLt's own (same file)."""

NCCL_RECEIVE: Final = 4 * MIB + 512 * 1024 + 4800 * 1024
"""Receive buffers of one channel and peer: SIMPLE, LL and LL128 (NCCL src/init.cc ``computeBuffSizes``)."""

NCCL_SEND: Final = 2 * MIB
NCCL_CHANNELS: Final = 24
"""Channels of a communicator between GPUs with NVLink."""

_ALLOCATION: Final = 2 * MIB
"""NCCL's device memory comes in pages of this size."""


def nccl(peers: int = 1, channels: int = NCCL_CHANNELS) -> int:
    """Return the bytes of one communicator with ``peers`` connected per channel.

    A ring has one; NCCL before 2.22 connects the tree's three at once too (NCCL_RUNTIME_CONNECT=0).
    Source: NCCL src/transport/p2p.cc, src/include/comm.h.
    """
    receive = -(-NCCL_RECEIVE // _ALLOCATION) * _ALLOCATION
    return channels * peers * (receive + NCCL_SEND)


def communicators(plan: Plan) -> tuple[str, ...]:
    """Return the names of the process groups that a rank communicates in, largest first."""
    layout = plan.layout
    if layout.world_size <= 1 or plan.strategy == "dp":
        return ()
    sizes = (
        ("data parallel", layout.replicate if layout.shard > 1 else layout.data),
        ("sharding", layout.shard),
        ("tensor parallel", layout.tensor),
        ("pipeline", layout.pipeline),
        ("context parallel", layout.context),
        ("expert parallel", layout.expert),
    )
    return tuple(name for name, size in sizes if size > 1) or ("world",)


def _workspaces(plan: Plan) -> int:
    if plan.stack == "megatron":
        from ranktop.budget.megatron import workspaces

        return workspaces(9).bytes or 0
    # Autograd's thread has a cuBLAS handle of its own beside the one of forward (CublasHandlePool.cpp).
    return 2 * CUBLAS_WORKSPACE + CUBLASLT_WORKSPACE


def runtime(plan: Plan) -> Amount:
    """Return what the process of one rank takes on its GPU outside of its tensors; a guess, never measured here."""
    if plan.host:
        return Amount(None, "a CPU job: what the interpreter and its libraries take is not known before it runs")
    parts = [
        Part("CUDA context and kernels (outside of the allocator)", CONTEXT),
        Part("cuBLAS workspaces (in the allocator)", _workspaces(plan), seen=False),
    ]
    if plan.strategy == "dp" and plan.layout.replicate > 1:
        parts.append(Part("NCCL of DataParallel (outside of the allocator)", nccl()))
    parts += [Part(f"NCCL, {name} (outside of the allocator)", nccl()) for name in communicators(plan)]
    total = sum(part.bytes for part in parts)
    return Amount(total, "typical sizes of context, workspaces and communicators", within=None, parts=tuple(parts))
