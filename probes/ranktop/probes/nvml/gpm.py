"""GPM: how busy the parts of a GPU (or MIG instance) were between two samples. Asked only with ``RANKTOP_GPM=1``."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any, Final

from ranktop.probes.nvml.codes import Absent, explain
from ranktop.probes.nvml.getter import Getter, Subject, Values

_METRICS: Final = {2: "gpm_sm", 3: "gpm_occupancy", 5: "gpm_tensor", 10: "gpm_dram"}
"""Number -> field: ``NVML_GPM_METRIC_SM_UTIL``, ``SM_OCCUPANCY``, ``ANY_TENSOR_UTIL`` and ``DRAM_BW_UTIL``, percent."""

OFF: Final = "asked only with RANKTOP_GPM=1: sampling may disturb a profiler"


def wanted() -> bool:
    """Return whether a person has asked for it."""
    return os.environ.get("RANKTOP_GPM", "").strip() not in ("", "0")


def free_samples(subject: Subject) -> None:
    """Give the samples back; to be called before NVML is shut down."""
    samples, subject.samples = subject.samples, []
    with contextlib.suppress(Exception):
        for sample in samples:
            subject.nvml.nvmlGpmSampleFree(sample)


def _ask(subject: Subject) -> Values:
    nvml, samples = subject.nvml, subject.samples
    if not samples and not nvml.nvmlGpmQueryDeviceSupport(subject.gpu()).isSupportedDevice:
        raise Absent("not supported by this device (GPM)")
    if len(samples) < 2:
        newer = nvml.nvmlGpmSampleAlloc()
        try:
            _sample(subject, newer)
        except Exception:
            nvml.nvmlGpmSampleFree(newer)
            raise
        samples.append(newer)
        if len(samples) == 1:
            raise Absent("takes two samples")
    else:
        _sample(subject, samples[0])
        samples.reverse()
    return _metrics(nvml, *samples)


def _sample(subject: Subject, sample: Any) -> None:
    if not subject.mig:
        subject.nvml.nvmlGpmSampleGet(subject.handle, sample)
    elif subject.gpu_instance is None:
        raise Absent("the driver does not tell which instance this is")
    else:
        subject.nvml.nvmlGpmMigSampleGet(subject.gpu(), subject.gpu_instance, sample)


def _metrics(nvml: Any, older: Any, newer: Any) -> Values:
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version = nvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(_METRICS)
    request.sample1, request.sample2 = older, newer
    for place, number in enumerate(_METRICS):
        request.metrics[place].metricId = number
    nvml.nvmlGpmMetricsGet(request)
    values: Values = {}
    for place, name in enumerate(_METRICS.values()):
        metric = request.metrics[place]
        value = float(metric.value)
        if metric.nvmlReturn:
            values[name] = Absent(explain(nvml.NVMLError(int(metric.nvmlReturn))))
        elif not math.isfinite(value) or not 0 <= value <= 100.5:
            values[name] = Absent(f"the driver says {value:g} %")
        else:
            values[name] = min(100.0, value)
    return values


GPM: Final = Getter("nvmlGpmMetricsGet", tuple(_METRICS.values()), _ask, calls=3, of_whole=False)
