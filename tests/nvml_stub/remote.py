"""Steers a process that reads devices over the stand-in library."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvml_stub.build import NvmlStub

PROMPT = {"gap": 0.0, "settle": 5.0, "retry": 0.02}
"""Options with which every ``read`` makes a whole round of calls and waits for it."""


class Client:
    """A process that runs client.py over a stub."""

    def __init__(self, stub: NvmlStub, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("client.py"))],
            env={**stub.environment(), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._probes = 0

    def tell(self, do: str, **order: Any) -> dict[str, Any]:
        """Let the process do one thing; returns its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the client ended: {self.end()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, *uuids: str, **options: Any) -> int:
        """Open a device by its names; returns the number to ask for it."""
        self.tell("open", uuids=uuids, options=options)
        self._probes += 1
        return self._probes - 1

    def reopen(self, probe: int, *uuids: str, **options: Any) -> None:
        """Put a new probe in the place of one that is closed."""
        self.tell("reopen", probe=probe, uuids=uuids, options=options)

    def read(self, probe: int) -> dict[str, Any]:
        """Return a reading as a dictionary."""
        result: dict[str, Any] = self.tell("read", probe=probe)["result"]
        return result

    def told(self, probe: int) -> dict[str, dict[str, Any]]:
        """Return the reading, the detail (empty while there is none) and the identity as dictionaries."""
        result: dict[str, dict[str, Any]] = self.tell("told", probe=probe)["result"]
        return result

    def detail(self, probe: int) -> dict[str, Any]:
        """Return the detail as a dictionary, empty while there is none."""
        return self.told(probe)["detail"]

    def identity(self, probe: int) -> dict[str, Any]:
        """Return the device's identity as a dictionary."""
        return self.told(probe)["identity"]

    def whole(self, *uuids: str) -> dict[str, dict[str, Any]]:
        """Open a device and return what it tells once it has been asked everything."""
        probe = self.open(*uuids, **PROMPT)
        self.until(probe, lambda reading: bool(reading["state"] == "ok"))
        self.remember()
        seen = self.watch(probe, fresh=True)
        assert seen["met"], seen["told"]
        return dict(seen["told"])

    def remember(self) -> list[dict[str, dict[str, Any]]]:
        """Have the process keep what all probes say now, for ``watch``; returns it."""
        result: list[dict[str, dict[str, Any]]] = self.tell("remember")["result"]
        return result

    def watch(self, probe: int, **condition: Any) -> dict[str, Any]:
        """Read a probe until a condition is met and the others once: see client.py."""
        result: dict[str, Any] = self.tell("watch", probe=probe, **condition)["result"]
        return result

    def threads(self) -> int:
        """Return the number of the process's threads."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def until(self, probe: int, condition: Callable[[dict[str, Any]], bool], seconds: float = 10.0) -> dict[str, Any]:
        """Read until a reading meets the condition and return it; fails after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            reading = self.read(probe)
            if condition(reading):
                return reading
            assert time.monotonic() < deadline, reading
            time.sleep(0.01)

    def end(self) -> tuple[int, float, str]:
        """Close the input and wait; returns (exit code, seconds until the end, error output)."""
        started = time.monotonic()
        try:
            _, errors = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
            errors += "\nkilled: it did not end"
        return self.process.returncode, time.monotonic() - started, errors


def value_of(told: dict[str, dict[str, Any]], name: str) -> Any:
    """Return a field of the reading or the detail."""
    return told["reading"][name] if name in told["reading"] else told["detail"][name]


def reason_of(told: dict[str, dict[str, Any]], name: str) -> str:
    """Return why a field of the reading or the detail is unknown; empty when nobody says."""
    part = "reading" if name in told["reading"] else "detail"
    return str(told[part]["reasons"].get(name, ""))
