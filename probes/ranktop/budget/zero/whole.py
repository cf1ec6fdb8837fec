"""ZeRO-0, where every rank holds everything, and ZeRO-3, where every parameter is split over the ranks."""

from __future__ import annotations

from ranktop.budget.inventory import Kind
from ranktop.budget.terms import Amount
from ranktop.budget.zero.job import IN_FORWARD, IN_STEP, Job, Layout
from ranktop.budget.zero.layout import persistent, share, sub_groups


class Replicated(Layout):
    """Stage 0; 16-bit models get fp32 masters (``FP16_Optimizer`` for fused optimizers, else the unfused one)."""

    name = "ZeRO-0"

    def parameters(self, moment: str) -> Amount:
        """Bytes of all parameters."""
        return Amount(sum(k.numel * k.itemsize for k in self.job.kinds), self.rule("whole parameters"))

    def gradients(self, moment: str) -> Amount:
        """Bytes of all gradients, and in the step of their copy in the master weights' dtype."""
        job = self.job
        if moment == "step_start":
            return Amount(0, self.rule("gradients are freed after the step"))
        if moment in IN_FORWARD:
            own = job.whole_gradients if job.accumulating else 0
            return Amount(own, self.rule("whole gradients of earlier micro-batches"))
        if job.plan.precision.master is None:
            return Amount(job.whole_gradients, self.rule("whole gradients"))
        copies = sum(k.numel * job.master_bytes(k) for group in job.groups for k in group)
        if self._fused():
            return Amount(copies, self.rule("flat gradients in the master weights' dtype"))
        return Amount(
            job.whole_gradients + copies,
            self.rule("whole gradients and their copy in the master weights' dtype"),
        )

    def updated(self) -> list[tuple[int, Kind]]:
        """Whole parameters, or one flat tensor a group."""
        groups = self.job.groups
        if self._fused():
            return [(sum(k.numel for k in group), group[0]) for group in groups]
        return [(k.numel, k) for group in groups for k in group]

    def steps_at_start(self) -> bool:
        """Both 16-bit wrappers step once on zero gradients (``initialize_optimizer_states``)."""
        return self.job.plan.precision.master is not None

    def _fused(self) -> bool:
        return self.job.options.wrapper == "FP16_Optimizer"


class Partitioned(Layout):
    """Stage 3: every parameter is split evenly, padded to the number of ranks."""

    name = "ZeRO-3"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.subs: list[tuple[list[int], Kind]] = [
            (sub, group[0])
            for group in job.groups
            for sub in sub_groups([share(k.numel, job.ranks) for k in group], job.options.sub_group_size)
        ]
        self.marks = persistent(
            job.numels,
            job.options.persistence_threshold,
            job.options.model_persistence_threshold,
        )
        self.persistent = [k for k, mark in zip(job.kinds, self.marks, strict=True) if mark]
        ranks = job.ranks
        self.partitions = sum(-(-n // ranks) * (size // n) for n, size in zip(job.numels, job.sizes, strict=True) if n)
        """Bytes of the partitions of all parameters, frozen ones too."""
        self._padded = sum(share(k.numel, ranks) * ranks * k.itemsize for k in self.persistent)
        self.totals = [(sum(sub), kind) for sub, kind in self.subs]
        """Elements of each sub-group, with a kind that tells its dtype and group."""

    def parameters(self, moment: str) -> Amount:
        """Bytes of the partitions, and of the persistent parameters while they are whole.

        These are gathered after every step, padded (``_post_step``), and split again before the next
        (``_partition_all_parameters``). In the very first forward, while DeepSpeed records the order of the
        modules, they are released after each use as others are (``release_sub_module``); the second one gathers
        them, padded or not as they are fetched one by one or together (``all_gather_coalesced``).
        """
        job = self.job
        where = f"partitions padded to {job.ranks} elements"
        held = self.partitions
        if not job.parameters_on_device:
            held, where = 0, "partitions offloaded to the host"
        split = job.first_step and not (job.accumulating and moment in IN_FORWARD)
        # On one rank a partition serves as the whole, unless the only persistent parameter is gathered by itself.
        shared = job.ranks == 1 and (job.first_step or len(self.persistent) > 1)
        if moment in IN_STEP or split or shared:
            return Amount(held, self.rule(where))
        padded = self._padded
        whole = sum(k.numel * k.itemsize for k in self.persistent)
        return Amount(
            held + padded,
            self.rule(f"{where}; {len(self.persistent)} persistent parameters whole"),
            slack=padded - whole if job.first_step else 0,
        )

    def gradients(self, moment: str) -> Amount:
        """Bytes of the gradient partitions, which are kept, and of what a sub-group is updated with."""
        job = self.job
        if not job.optimizer_on_device:
            return Amount(0, self.rule("gradient partitions offloaded to the host"))
        kept = sum(n * job.gradient_bytes(k) for n, k in self.totals)
        if job.options.offload_optimizer != "none":
            kept += sum(n * job.master_bytes(k) for n, k in self.totals)
            return Amount(kept, self.rule("gradient partitions, also in the master weights' dtype, kept on the host"))
        if moment in IN_STEP and self.subs:
            sub, kind = self.subs[0 if moment == "backward_end" else -1]
            viewed = len(sub) == 1 and job.ready(kind)
            kept += 0 if viewed else sum(sub) * job.master_bytes(kind)
        return Amount(kept, self.rule("gradient partitions, kept, and in the step a copy of one sub-group's"))

    def updated(self) -> list[tuple[int, Kind]]:
        """One flat tensor a sub-group."""
        return self.totals
