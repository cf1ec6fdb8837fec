"""A process that reads devices over the stand-in library, told line by line what to do and answering in JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from ranktop.probes.device import open_device
from ranktop.probes.nvml import NvmlDevice, Target
from ranktop.probes.reading import DeviceProbe


def main() -> None:
    """Serve until the input ends; then end as a script does, waiting for nothing."""
    probes: list[DeviceProbe] = []
    for line in sys.stdin:
        answer = serve(probes, json.loads(line))
        print(json.dumps(answer), flush=True)


def serve(probes: list[DeviceProbe], order: dict[str, Any]) -> dict[str, Any]:
    """Do one thing and return what came of it, with the seconds that it took."""
    started = time.monotonic()
    result: dict[str, Any] = {}
    if order["do"] == "open":
        target = Target(uuids=tuple(order["uuids"]))
        probes.append(NvmlDevice(lambda: target, **order.get("options", {})))
    elif order["do"] == "open_device":
        probes.append(open_device(None))
    elif order["do"] == "read":
        result = asdict(probes[order["probe"]].read())
    elif order["do"] == "detail":
        detail = probes[order["probe"]].detail()
        result = {} if detail is None else asdict(detail)
    elif order["do"] == "identity":
        result = asdict(probes[order["probe"]].identity())
    elif order["do"] == "close":
        probes[order["probe"]].close()
    return {"result": result, "seconds": time.monotonic() - started}


if __name__ == "__main__":
    main()
