"""ZeRO-1 and ZeRO-2: each optimizer group is one flat buffer, of which every rank updates an equal part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.budget.inventory import Kind
from ranktop.budget.terms import Amount
from ranktop.budget.zero.job import IN_FORWARD, IN_STEP, Job, Layout
from ranktop.budget.zero.layout import FlatGroup, element_alignment

BF16_WRAPPER: Final = "BF16_Optimizer"
"""DeepSpeed's class for stage 1 with bf16 parameters and gradients accumulated in fp32."""


class _FlatGroups(Layout):
    """What both forms share: groups padded to twice the number of ranks."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.name = f"ZeRO-{job.options.stage}"
        self.flats: list[tuple[FlatGroup, Kind]] = [(self._flat(group), group[0]) for group in job.groups]

    def _flat(self, group: list[Kind]) -> FlatGroup:
        options = self.job.options
        plain = options.wrapper != BF16_WRAPPER
        return FlatGroup.of(
            [kind.numel for kind in group],
            self.job.ranks,
            self.job.rank,
            round_robin=options.round_robin_gradients and plain,
            aligned_to=element_alignment(group[0].itemsize, options.parameter_alignment and plain),
        )

    def parameters(self, moment: str) -> Amount:
        """Bytes of the flat groups and of the parameters that are in none."""
        flat = sum(f.size * k.itemsize for f, k in self.flats)
        loose = sum(k.numel * k.itemsize for k in self.job.loose)
        return Amount(flat + loose, self.rule(f"flat groups padded to 2 x {self.job.ranks} elements"))

    def updated(self) -> list[tuple[int, Kind]]:
        """One part of each flat group."""
        return [(f.partition, k) for f, k in self.flats]


class FlatBf16(_FlatGroups):
    """Stage 1 of a bf16 model whose gradients are accumulated in fp32 (``BF16_Optimizer``)."""

    def gradients(self, moment: str) -> Amount:
        """Bytes of the flat gradients, which are kept, and of the parameters' own."""
        job = self.job
        kept = sum(f.size * job.gradient_bytes(k) for f, k in self.flats)
        own = moment in IN_STEP or (job.accumulating and moment in IN_FORWARD)
        return Amount(
            kept + (job.whole_gradients if own else 0),
            self.rule("whole flat gradients in the accumulation dtype, kept; 16-bit ones until the step ends"),
        )


class Flat(_FlatGroups):
    """Stages 1 and 2 (``DeepSpeedZeroOptimizer``)."""

    def gradients(self, moment: str) -> Amount:
        """Bytes of what this rank keeps of the gradients: its part, or all of them while stage 1 accumulates."""
        job = self.job
        if job.options.offload_optimizer != "none":
            return self._offloaded(moment)
        if moment == "step_start":
            return Amount(0, self.rule("gradients are freed after the step"))
        if moment in IN_FORWARD:
            return self._accumulated()
        at = 0 if moment == "backward_end" else len(self.flats) - 1
        return Amount(
            sum(dict(self.storages(at)).values()),
            self.rule("this rank's part in the master weights' dtype, one optimizer group at a time"),
        )

    def _accumulated(self) -> Amount:
        """Gradients of the earlier micro-batches while the last one runs forward."""
        job = self.job
        if not job.accumulating:
            return Amount(0, self.rule("no gradients before the backward pass"))
        if job.options.stage == 1:
            return Amount(job.whole_gradients, self.rule("whole gradients until the last micro-batch"))
        if self.mixed:
            kept = sum(f.partition * job.gradient_bytes(k) for f, k in self.flats if f.touching)
            return Amount(kept, self.rule("this rank's part in the accumulation dtype"))
        return Amount(self.buffer(), self.rule("whole gradients of the parameters that touch this rank's part"))

    def _offloaded(self, moment: str) -> Amount:
        """This rank's part on the host, kept; with accumulation also whole gradients.

        Stage 1 leaves those of earlier micro-batches on the device, stage 2 sums its own up on the host.
        """
        job = self.job
        whole = job.whole_gradients if job.options.stage == 1 and job.accumulating and moment in IN_FORWARD else 0
        words = "; whole gradients of earlier micro-batches on the device" if whole else ""
        if not job.plan.host:
            return Amount(whole, self.rule(f"gradients go to the host as they are reduced{words}"))
        kept = sum(f.partition * job.master_bytes(k) for f, k in self.flats)
        begun = not (job.first_step and moment == "step_start")
        if job.options.stage == 2 and job.accumulating and begun:
            kept += self.buffer()
        return Amount(
            kept + whole, self.rule(f"this rank's part in the master weights' dtype, kept on the host{words}")
        )

    @property
    def mixed(self) -> bool:
        """Whether gradients are accumulated in another dtype than the parameters'."""
        return any(self.job.gradient_bytes(k) != k.itemsize for _, k in self.flats)

    def buffer(self) -> int:
        """Bytes of the buffer of whole gradients that touch this rank's part (``grads_in_partition``)."""
        return sum(f.whole * k.itemsize for f, k in self.flats)

    def storages(self, at: int) -> Iterator[tuple[str, int]]:
        """Storages that hold gradients while group ``at`` is updated: its own, and those of later groups.

        Gradients of the parameters that touch this rank's part are views of one buffer over all groups
        (``grads_in_partition``), which lives until the last of them is used. A gradient that is one piece and has
        the right dtype is not copied (``torch._utils._flatten_dense_tensors`` returns a view).
        """
        job = self.job
        for index, (flat, kind) in enumerate(self.flats):
            if index < at:
                continue
            if self.mixed:
                yield f"part {index}", flat.partition * job.gradient_bytes(kind)
            elif index == at and not (flat.pieces == 1 and job.ready(kind)):
                yield f"copy {index}", flat.partition * job.master_bytes(kind)
            else:
                yield f"padding {index}", flat.padding * kind.itemsize
                if flat.touching and job.options.contiguous_gradients:
                    yield "buffer", self.buffer()
                elif flat.touching:
                    yield f"own {index}", flat.whole * kind.itemsize
