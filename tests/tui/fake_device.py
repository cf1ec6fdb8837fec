"""What an H100 and an allocator say in tests and pictures."""

from __future__ import annotations

from ranktop.probes.reading import DeviceDetail, NvLink

MIB = 1024**2
CONTEXT = 520 * MIB
"""What a context without tensors takes on an H100."""

HOST_ALLOCATOR = dict.fromkeys(
    ("peak_allocated", "inactive_split", "retries", "ooms", "active", "requested", "segments", "largest_free"),
    "malloc does not count it",
)

H100_AGES: dict[str, float] = {"energy": 1.5, "pcie_tx": 0.5, "pcie_rx": 0.5, "ecc_corrected": 3.0}


def h100_detail(rank: int) -> DeviceDetail:
    """What a sound H100 SXM says more seldom."""
    return DeviceDetail(
        memory_utilization=41 + rank % 5, performance_state=0, memory_temperature=68 + rank % 4,
        temperature_slowdown=87, temperature_shutdown=92, temperature_max=85, temperature_memory_max=95,
        power_min_limit=200.0, power_max_limit=700.0, power_default_limit=700.0, max_sm_clock=1980,
        max_memory_clock=2619, energy=1.62e9 + 1e6 * rank, persistence=True, compute_mode="default",
        pcie_generation=5, pcie_max_generation=5, pcie_width=16, pcie_max_width=16, pcie_tx=1_240_000_000,
        pcie_rx=310_000_000, pcie_replays=0,
        nvlinks=tuple(NvLink(link, up=True, replay=0, recovery=0, crc=0) for link in range(18)),
        ecc_enabled=True, ecc_corrected=0, ecc_uncorrected=0, ecc_aggregate_corrected=2, ecc_aggregate_uncorrected=0,
        remapped_corrected=0, remapped_uncorrected=0, remap_pending=False, remap_failed=False, recovery="none",
        graphics_processes=(), mps_processes=(), ages=H100_AGES,
        reasons={
            "fan": "not supported by this device",
            **dict.fromkeys(("gpm_sm", "gpm_occupancy", "gpm_tensor", "gpm_dram"), "off; RANKTOP_GPM=1 turns it on"),
        },
    )  # fmt: skip
