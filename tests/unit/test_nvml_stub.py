"""The stand-in library itself: pynvml reads back what the file says, and what a driver would not forgive aborts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from nvml_stub.build import NvmlStub, build_library
from nvml_stub.hardware import GIB, device, device_uuid, mig, mig_uuid

pytest_plugins = ["nvml_stub.fixtures"]


def run(stub: NvmlStub, code: str) -> subprocess.CompletedProcess[str]:
    program = "import ctypes, json, pynvml as p\ndef lib(name): return p._nvmlGetFunctionPointer(name)\n" + code
    return subprocess.run(
        [sys.executable, "-c", program], env=stub.environment(), capture_output=True, text=True, timeout=30
    )


def answer(stub: NvmlStub, code: str) -> Any:
    done = run(stub, "p.nvmlInit()\nh = p.nvmlDeviceGetHandleByIndex(0)\n" + code)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


READ_BACK = r"""
rates, memory, first = p.nvmlDeviceGetUtilizationRates(h), p.nvmlDeviceGetMemoryInfo(h, p.nvmlMemory_v2), p.nvmlDeviceGetMemoryInfo(h)
fields = p.nvmlDeviceGetFieldValues(h, [82, 83, (161, 14), (165, 14), (163, 18), 230, 7])
processes = p.nvmlDeviceGetComputeRunningProcesses_v3(h)
a, b = p.nvmlGpmSampleAlloc(), p.nvmlGpmSampleAlloc()
for sample in (a, b): p.nvmlGpmSampleGet(h, sample)
gpm = p.c_nvmlGpmMetricsGet_t(version=1, numMetrics=3, sample1=a, sample2=b)
for i, metric in enumerate((2, 10, 4)): gpm.metrics[i].metricId = metric
p.nvmlGpmMetricsGet(gpm)
pci = p.nvmlDeviceGetPciInfo(h)
print(json.dumps({
    "rates": [rates.gpu, rates.memory],
    "memory": [memory.total, memory.reserved, memory.free, memory.used],
    "first": [first.total, first.free, first.used],
    "fields": [[f.fieldId, f.scopeId, f.nvmlReturn, f.value.uiVal if f.valueType == 1 else f.value.ullVal] for f in fields if not f.nvmlReturn],
    "refused": [[f.fieldId, f.nvmlReturn] for f in fields if f.nvmlReturn],
    "processes": [[q.pid, q.usedGpuMemory, q.gpuInstanceId] for q in processes],
    "gpm": [[m.nvmlReturn, m.value] for m in gpm.metrics[:3]],
    "pci": [pci.domain, pci.bus, pci.busId, pci.busIdLegacy],
    "temperature": [p.nvmlDeviceGetTemperature(h, 0), p.nvmlDeviceGetTemperatureV(h, 0)],
    "clocks": [p.nvmlDeviceGetClockInfo(h, kind) for kind in range(4)],
    "limits": p.nvmlDeviceGetPowerManagementLimitConstraints(h),
    "rows": p.nvmlDeviceGetRemappedRows(h),
    "ecc": [p.nvmlDeviceGetTotalEccErrors(h, kind, counter) for kind in (0, 1) for counter in (0, 1)],
    "versions": [p.nvmlSystemGetDriverVersion(), p.nvmlSystemGetCudaDriverVersion_v2(), p.nvmlSystemGetNVMLVersion()],
}))
"""  # noqa: E501


def test_pynvml_reads_back_what_the_file_says(nvml_stub: NvmlStub) -> None:
    settings = device(
        0, util=51, memutil=22, procs="12:100:3:4,4000000:200", pci="00000001:81:00.0", temp=61, mem_temp=74,
        energy=1 << 40, graphics=1, sm=2, mem=3, video=4, limit_min=5, limit_max=6, nvlink14_replay=7, nvlink14_state=0,
        remap_corrected=1, remap_uncorrected=2, remap_failed=1, recovery=2, gpm2=12.5, gpm10=0.25,
        ecc_volatile_corrected=3, ecc_aggregate_corrected=4, ecc_volatile_uncorrected=5, ecc_aggregate_uncorrected=6,
        total=80 * GIB, reserved=1, free=2, used=3,
    )  # fmt: skip
    nvml_stub.devices(settings)
    nvml_stub.update({"driver": "999.1", "cuda": 13010, "nvml": "13.999.1"})
    assert answer(nvml_stub, READ_BACK) == {
        "rates": [51, 22],
        "memory": [80 * GIB, 1, 2, 3],
        "first": [80 * GIB, 2, 4],
        "fields": [[82, 0, 0, 74], [83, 0, 0, 1 << 40], [161, 14, 0, 7], [165, 14, 0, 0], [230, 0, 0, 2]],
        "refused": [[163, 2], [7, 3]],
        "processes": [[12, 100, 3], [4000000, 200, 0xFFFFFFFF]],
        "gpm": [[0, 12.5], [0, 0.25], [3, -1.0]],
        "pci": [1, 0x81, "00000001:81:00.0", "0001:81:00.0"],
        "temperature": [61, 61],
        "clocks": [1, 2, 3, 4],
        "limits": [5, 6],
        "rows": [1, 2, 0, 1],
        "ecc": [3, 4, 5, 6],
        "versions": ["999.1", 13010, "13.999.1"],
    }


MIG = """
def code(call):
    try:
        return call()
    except p.NVMLError as error:
        return f"error {error.value}"
found = [code(lambda: p.nvmlDeviceGetUUID(p.nvmlDeviceGetMigDeviceHandleByIndex(h, i))) for i in range(8)]
one = p.nvmlDeviceGetMigDeviceHandleByIndex(h, 2)
parent = p.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(one)
print(json.dumps([found, p.nvmlDeviceGetCount(), p.nvmlDeviceGetMaxMigDeviceCount(h), p.nvmlDeviceGetMigMode(h),
    p.nvmlDeviceGetUUID(parent), p.nvmlDeviceGetGpuInstanceId(one), p.nvmlDeviceGetIndex(one),
    code(lambda: p.nvmlDeviceGetUtilizationRates(one)), code(lambda: p.nvmlDeviceGetPowerUsage(one)),
    code(lambda: p.nvmlDeviceGetUtilizationRates(h))]))
"""


def test_indexes_of_mig_instances_have_gaps(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(*mig(0, 1))
    found, *rest = answer(nvml_stub, MIG)
    gap = "error 6"
    assert found == [mig_uuid(1), gap, mig_uuid(2), gap, gap, mig_uuid(3), gap, "error 2"]
    assert rest == [1, 7, [1, 1], device_uuid(0), 9, 2, "error 3", "error 2", "error 3"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("p.nvmlDeviceGetIndex(p.c_nvmlDevice_t())", "a NULL handle"),
        ("p.nvmlDeviceGetIndex(ctypes.byref(ctypes.c_int(3)))", "not given out"),
        ("p.nvmlShutdown(); p.nvmlDeviceGetIndex(h)", "a call after nvmlShutdown"),
        ("p.nvmlShutdown(); p.nvmlInit(); p.nvmlDeviceGetIndex(h)", "not given out since nvmlInit"),
        ("p.nvmlShutdown(); p.nvmlShutdown()", "without nvmlInit"),
        ("s = p.nvmlGpmSampleAlloc(); p.nvmlGpmSampleGet(h, p.c_nvmlGpmSample_t())", "GPM sample"),
        (
            "import threading, time\n"
            "threading.Thread(target=p.nvmlDeviceGetName, args=(h,), daemon=True).start()\n"
            "time.sleep(0.2); p.nvmlShutdown()",
            "during a call",
        ),
    ],
)
def test_what_a_driver_may_crash_of_aborts(nvml_stub: NvmlStub, code: str, words: str) -> None:
    nvml_stub.devices(device(0))
    nvml_stub.update({"d0.nvmlDeviceGetName.sleep": "forever"})
    done = run(nvml_stub, "p.nvmlInit()\nh = p.nvmlDeviceGetHandleByIndex(0)\n" + code)
    assert done.returncode < 0
    assert words in done.stderr


CODES = """
def code(call):
    try:
        call()
        return 0
    except p.NVMLError as error:
        return error.value
memory = p.c_nvmlMemory_v2_t(version=0x01000028)
wrong = [lib("nvmlDeviceGetMemoryInfo_v2")(h, ctypes.byref(memory)),
         lib("nvmlGpmQueryDeviceSupport")(h, ctypes.byref(p.c_nvmlGpmSupport_t(version=2)))]
print(json.dumps([wrong, [code(lambda: p.nvmlDeviceGetIndex(h)) for _ in range(4)],
    [code(lambda: p.nvmlDeviceGetName(h)) for _ in range(4)], code(lambda: p.nvmlDeviceGetPersistenceMode(h)),
    code(lambda: p.nvmlSystemGetDriverVersion()), code(lambda: p.nvmlDeviceGetHandleByIndex(1))]))
"""


def test_codes_are_given_as_told(nvml_stub: NvmlStub) -> None:
    nvml_stub.devices(device(0), device(1))
    nvml_stub.update(
        {
            "d0.nvmlDeviceGetIndex.lost_after": 2,
            "d0.nvmlDeviceGetName.ret": "19 after 3",
            "d0.nvmlDeviceGetPersistenceMode.ret": 4242,
            "nvmlSystemGetDriverVersion.ret": 999,
            "d1.*.ret": 15,
        }
    )
    assert answer(nvml_stub, CODES) == [[25, 25], [0, 0, 15, 15], [0, 0, 0, 19], 4242, 999, 15]


def test_a_function_that_is_left_out_is_missing(nvml_stub: NvmlStub, nvml_library: Any, tmp_path: Any) -> None:
    nvml_stub.devices(device(0))
    nvml_stub.library = build_library(tmp_path / "old", without=("nvmlDeviceGetMemoryInfo_v2",))
    code = """
try:
    p.nvmlDeviceGetMemoryInfo(h, p.nvmlMemory_v2)
except p.NVMLError as error:
    print(json.dumps([error.value, p.nvmlDeviceGetMemoryInfo(h).total]))
"""
    assert answer(nvml_stub, code) == [13, 80 * GIB]
