"""Prints the UUIDs of the devices that CUDA's driver shows to a process of this environment, without torch."""

from __future__ import annotations

import ctypes
import json
import uuid


def main() -> dict[str, object]:
    """Return ``{"uuids": [...]}`` in CUDA's order, bare, or ``{"error": code}`` of the call that failed."""
    cuda = ctypes.CDLL("libcuda.so.1")
    if code := cuda.cuInit(0):
        return {"error": code, "uuids": []}  # 100: no device, which is what an empty list gives.
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    ask = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)  # The second version tells a MIG instance's.
    found = []
    for ordinal in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        ask(raw, device)
        found.append(str(uuid.UUID(bytes=bytes(raw))))
    return {"uuids": found}


if __name__ == "__main__":
    print(json.dumps(main()))
