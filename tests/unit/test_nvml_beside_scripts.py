"""The agent's use of NVML and of standard error beside scripts that use, break or replace the same things."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_stub.build import NvmlStub
from nvml_stub.hardware import device, device_uuid
from nvml_stub.remote import PROMPT, Client

from ranktop.probes.nvml.codes import Absent
from ranktop.probes.nvml.getter import Subject
from ranktop.probes.nvml.library import Library
from ranktop.probes.nvml.processes import Entry, _of_instance

pytest_plugins = ["nvml_stub.fixtures"]
Start = Callable[..., Client]


def test_a_part_in_nvml_that_a_script_took_away_is_not_taken_from_the_script(
    nvml_stub: NvmlStub, nvml_client: Start
) -> None:
    """After one shutdown too many the driver says 1: whoever initialises it then must not be shut down by us."""
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, lambda r: r["state"] == "ok")
    nvml_stub.update({"d0.*.ret": 1})
    client.until(probe, lambda r: r["state"] == "unavailable")
    nvml_stub.update({"d0.*.ret": None})
    client.until(probe, lambda r: r["state"] == "ok")
    counts = nvml_stub.counts()
    assert counts["nvmlShutdown"] == 0
    assert counts["nvmlInitWithFlags"] >= 2, "it is initialised anew"


SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from ranktop.probes.nvml import library
nvml = library.Library(time.monotonic)
nvml.start()
assert "pynvml" not in sys.modules, "the script's own is loaded"
print(nvml.nvmlDeviceGetCount())
module = library.own_pynvml()
module.libLoadLock.acquire()  # as the agent's thread does while it looks a function up
library._loading.acquire()
child = os.fork()
if child == 0:
    fresh = library.own_pynvml()
    os._exit(0 if fresh is not module and not fresh.libLoadLock.locked() else 1)
print(os.waitpid(child, 0)[1])
"""


def test_a_scripts_own_pynvml_is_left_alone_and_a_fork_inherits_no_lock(nvml_stub: NvmlStub, tmp_path: Path) -> None:
    nvml_stub.devices(device(0), device(1))
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "pynvml.py").write_text("raise SystemExit('executed')")
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env=nvml_stub.environment(), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["2", "0"], "")


def test_ecc_that_is_off_is_why_no_errors_are_counted(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    counters = [f"ecc_{kind}" for kind in ("volatile_corrected", "volatile_uncorrected")]
    counters += [f"ecc_{kind}" for kind in ("aggregate_corrected", "aggregate_uncorrected")]
    nvml_stub.devices(device(0, ecc=0, **dict.fromkeys(counters)))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), **PROMPT)
    client.until(probe, lambda r: r["state"] == "ok" and client.detail(probe).get("ecc_enabled") is False)
    reasons = client.detail(probe)["reasons"]
    for name in ("ecc_corrected", "ecc_uncorrected", "ecc_aggregate_corrected", "ecc_aggregate_uncorrected"):
        assert "ECC is off" in reasons[name]


def test_a_driver_whose_calls_all_take_long_is_named(nvml_stub: NvmlStub, nvml_client: Start) -> None:
    """No call exceeds its deadline, and still nothing whole comes for many of them."""
    nvml_stub.devices(device(0))
    client = nvml_client(nvml_stub)
    probe = client.open(device_uuid(0), deadline=0.4, gap=0.02, settle=0.01, retry=0.02)
    client.until(probe, lambda r: r["state"] == "ok" and bool(client.detail(probe)))
    nvml_stub.update({"d0.*.sleep": 0.15})
    reading = client.until(probe, lambda r: r["state"] == "no answer")
    assert "the driver is slow" in reading["reasons"]["device"]
    assert "nvml" in reading["reasons"]["device"]
    assert reading["used"] is not None
    nvml_stub.update({"d0.*.sleep": None})
    client.until(probe, lambda r: r["state"] == "ok" and "device" not in r["reasons"])


def test_processes_of_the_whole_gpu_that_name_no_instance_are_not_none_of_this_one() -> None:
    subject = Subject(Library(lambda: 0.0), None, None, mig=True, gpu_instance=1, compute_instance=0)
    with pytest.raises(Absent, match="does not tell which"):
        _of_instance(subject, [Entry(17, 5), Entry(18, 6)])
    assert _of_instance(subject, []) == []
    assert _of_instance(subject, [Entry(17, 5, 1, 0), Entry(18, 6, 2, 0)]) == [Entry(17, 5, 1, 0)]


SAYING = """
import os, threading
from ranktop.agent.say import say
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 65536)
except BlockingIOError:
    pass
os.set_blocking(2, True)
thread = threading.Thread(target=say, args=("nobody reads this",), daemon=True)
thread.start()
thread.join(2)
os._exit(8 if thread.is_alive() else 7)
"""


def test_a_line_that_nobody_reads_holds_up_no_thread() -> None:
    process = subprocess.Popen([sys.executable, "-c", SAYING], stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process.stderr:
        assert process.wait(20) == 7
