"""What one scrape says, in the making: samples by metric, as ``prometheus_client`` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from ranktop.tui.prometheus.families import FAMILIES, Family
from ranktop.tui.prometheus.tally import Sum

Labels = Mapping[str, str]


class Sheet:
    """Samples by metric. Unknown is left out, never 0."""

    def __init__(self) -> None:
        self._samples: dict[str, list[Sample]] = {}

    def put(self, name: str, who: Labels, value: float | None, /, **more: str) -> None:
        """Say a gauge, a counter or an info (value 1). Nothing is said of None; a counter below 0 is nobody's."""
        if value is None:
            return
        family = FAMILIES[name]
        if family.kind == "counter" and value < 0:
            return
        labels = {**who, **more} if more else who
        self._of(family).append(Sample(name, labels, float(value)))

    def put_sum(self, name: str, who: Labels, total: Sum, /, **more: str) -> None:
        """Say a summary without quantiles."""
        labels = {**who, **more} if more else who
        samples = self._of(FAMILIES[name])
        samples.append(Sample(f"{name}_count", labels, float(total.count)))
        samples.append(Sample(f"{name}_sum", labels, total.seconds))

    def _of(self, family: Family) -> list[Sample]:
        found = self._samples.get(family.name)
        if found is None:
            found = self._samples[family.name] = []
        return found

    def metrics(self) -> Iterator[Metric]:
        """Give the metrics that have samples, in their order."""
        for name, family in FAMILIES.items():
            samples = self._samples.get(name)
            if samples:
                metric = Metric(family.base, family.help, family.kind, family.unit)
                metric.samples = samples
                yield metric
