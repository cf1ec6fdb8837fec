"""ZeRO-0 to ZeRO-2 inside backward: gradients, buckets and copies as the hooks of the parameters make and free them.

Source: DeepSpeed 0.19.8, ``setup_buckets``, ``reduce_independent_p_g_buckets_and_remove_grads``,
``reduce_ipg_grads``, ``average_tensor`` and ``copy_grads_in_partition`` in runtime/zero/stage_1_and_2.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ranktop.budget.activations.saved import Activations
from ranktop.budget.composition import Point, parts, saved_parts
from ranktop.budget.inventory import Kind
from ranktop.budget.terms import DTYPE_BYTES, Part
from ranktop.budget.zero.flat import BF16_WRAPPER, Flat
from ranktop.budget.zero.job import Job, Layout
from ranktop.budget.zero.layout import element_alignment, owners
from ranktop.budget.zero.progress import Progress

Pieces = tuple[tuple[str, int], ...]
"""Names and bytes."""

ENGINE_BUCKET: Final = 500_000_000
"""Elements after which the engine closes a bucket of its own (``MEMORY_OPT_ALLREDUCE_SIZE`` in engine.py)."""


def at_loss(alive: Activations, gradients: int, buffers: tuple[Part, ...] = ()) -> Point:
    """Return the point at which backward goes through the loss, before any parameter has a gradient."""
    temporaries = parts(("gradients of the logits", alive.loss_backward))
    return Point("loss, in backward", saved_parts(alive) + temporaries, buffers, gradients)


def _buckets(job: Job) -> tuple[str, int]:
    """Return the IPG buckets, allocated in full at the first hook of every backward."""
    options = job.options
    if not options.contiguous_gradients or not job.groups:
        return "", 0
    count = 2 if options.overlap_comm else 1
    twice = ", twice with overlap_comm" if count == 2 else ""
    return f"gradient buckets, reduce_bucket_size{twice}", count * options.reduce_bucket_size * job.groups[0][
        0
    ].itemsize


def between_micro_batches(job: Job) -> tuple[Part, ...]:
    """Return the buckets that stage 1 keeps from the first micro-batch on: only the last one's epilogue frees them."""
    if job.options.stage != 1 or not job.accumulating or job.options.wrapper == BF16_WRAPPER:
        return ()
    return parts(_buckets(job), seen=True)


class Backward:
    """Backward of one rank, whatever its activations: gone through once, then asked for each of them."""

    def __init__(self, job: Job, layout: Layout, kept: int, buffers: tuple[Part, ...]) -> None:
        """``kept``: bytes of the gradients that exist before it; ``buffers`` stay all the time."""
        self.job, self.kept, self.buffers = job, kept, buffers
        whole = job.options.stage == 0 or job.options.wrapper == BF16_WRAPPER
        self.walk = (_ByEngine if whole else _ByHooks)(job, layout, kept, buffers)
        self.walk.run()

    def highest(self, alive: Activations) -> Point:
        """Return the highest point."""
        loss = at_loss(alive, self.kept, self.buffers + between_micro_batches(self.job))
        found = self.walk.point(Progress(self.job, alive))
        return loss if loss.bytes >= found.bytes else found


class _Noted(NamedTuple):
    """A moment of the walk, without its activations."""

    name: str
    parameter: int
    """Index of the one at hand; -1 means after the last one."""
    gradients: int
    extra: Pieces
    adding: bool
    """A tied weight's gradient is made just then."""


class _Walk:
    """Goes through the parameters as backward does and notes what is alive beside activations."""

    def __init__(self, job: Job, layout: Layout, kept: int, buffers: tuple[Part, ...]) -> None:
        self.job, self.layout, self.kept, self.buffers = job, layout, kept, buffers
        self.gradients = kept
        self.buckets = ("", 0)
        """Name and bytes of the buckets, which the live side sees as such."""
        self.noted: list[_Noted] = []
        self.sizes: list[int] = []
        """Bytes of each of ``noted``."""

    def note(self, name: str, index: int, *extra: tuple[str, int], adding: bool = False) -> None:
        """Remember a moment; of those at one parameter that were noted in turn, the highest."""
        size = self.gradients
        for _, more in extra:
            size += more
        if self.noted and not adding:
            last = self.noted[-1]
            if last.parameter == index and not last.adding:
                if size <= self.sizes[-1]:
                    return
                self.noted.pop()
                self.sizes.pop()
        self.noted.append(_Noted(name, index, self.gradients, extra, adding))
        self.sizes.append(size)

    def point(self, progress: Progress) -> Point:
        """Return the highest moment with these activations, the first of equals."""
        activations = [*progress.sizes(), progress.ended()]
        found = [size + activations[noted.parameter] for size, noted in zip(self.sizes, self.noted, strict=True)]
        if progress.alive.tied:
            for at, noted in enumerate(self.noted):
                if noted.adding:
                    found[at] += progress.adding(noted.parameter)[1]
        at = found.index(max(found))
        name, index, gradients, extra, adding = self.noted[at]
        if adding:
            extra = (*extra, progress.adding(index))
        if index >= 0:
            alive = progress.parts(index)
        else:
            alive = parts(("inputs and other micro-batches in flight", progress.ended()))
        made = tuple(Part(what, size, seen=what == self.buckets[0]) for what, size in extra if size)
        return Point(name, alive, self.buffers + made, gradients)

    def run(self) -> None:
        """Go through backward."""
        raise NotImplementedError


class _ByEngine(_Walk):
    """The engine reduces whole gradients after backward (stage 0, BF16_Optimizer; engine.py ``allreduce_bucket``)."""

    def run(self) -> None:
        """Gradients grow; then each bucket of them is flattened, or cast to the communication dtype."""
        job = self.job
        wrapped = job.options.wrapper == BF16_WRAPPER
        for index in reversed(range(len(job.kinds))):
            if not job.updates[index]:
                continue
            if not job.accumulating:
                self.gradients += job.sizes[index]
            self.note("backward", index, adding=index == 0)
            self.note("backward", index, *self._cast(job.kinds[index], wrapped))
        self.note("end of backward, reducing", -1, self._reduction(wrapped))

    def _cast(self, kind: Kind, wrapped: bool) -> tuple[tuple[str, int], ...]:
        if not wrapped:
            return ()
        return (("a gradient cast to the accumulation dtype", kind.numel * self.job.gradient_bytes(kind)),)

    def _reduction(self, wrapped: bool) -> tuple[str, int]:
        job = self.job
        numels = [kind.numel for group in job.groups for kind in group]
        if not numels or (job.ranks == 1 and wrapped):
            return "", 0
        item = job.groups[0][0].itemsize
        if wrapped:
            dtype = job.options.communication_dtype
            size = DTYPE_BYTES[dtype] if dtype else item
            copied = 0 if size == job.gradient_bytes(job.groups[0][0]) else size * sum(numels)
            return "flat gradients in the communication dtype", copied
        elements = min(sum(numels), ENGINE_BUCKET + max(numels))
        copied = elements * item if len(numels) > 1 else 0
        return "copy of a bucket of gradients while it is reduced", copied


@dataclass
class _Bucket:
    """What waits for its reduction."""

    elements: int = 0
    members: list[tuple[int, bool]] = field(default_factory=list)
    """Index of a parameter, and whether its gradient has a storage of its own."""
    ranks: set[int] = field(default_factory=set)


class _ByHooks(_Walk):
    """Stages 1 and 2: a hook on each parameter moves its gradient into the bucket."""

    def __init__(self, job: Job, layout: Layout, kept: int, buffers: tuple[Part, ...]) -> None:
        super().__init__(job, layout, kept, buffers)
        options = job.options
        self.limit = options.reduce_bucket_size
        self.mixed = any(job.gradient_bytes(g[0]) != g[0].itemsize for g in job.groups if g)
        self.offloaded = options.offload_optimizer != "none"
        self.contiguous = options.contiguous_gradients
        self.item = job.groups[0][0].itemsize if job.groups else 0
        self.buckets = _buckets(job)
        flats = layout.flats if isinstance(layout, Flat) else Flat(job).flats
        self.partition_bytes = sum(f.partition * job.gradient_bytes(k) for f, k in flats)
        self.owners = job.once("owners", self._owners)
        self.bucket = _Bucket()
        self.delayed = 0
        """Bytes of reduced gradients that the next reduction frees."""
        self.partition = False
        """Whether the buffer of this rank's part exists."""

    def _owners(self) -> dict[int, range]:
        job = self.job
        by_group: dict[int, list[int]] = {}
        for index, (kind, updated) in enumerate(zip(job.kinds, job.updates, strict=True)):
            if updated:
                by_group.setdefault(kind.group, []).append(index)
        found: dict[int, range] = {}
        for indices in by_group.values():
            ranks = owners(
                [job.numels[i] for i in indices],
                job.ranks,
                round_robin=job.options.round_robin_gradients,
                aligned_to=element_alignment(job.kinds[indices[0]].itemsize, job.options.parameter_alignment),
            )
            found.update(zip(indices, ranks, strict=True))
        return found

    def run(self) -> None:
        """Go through backward, and through the epilogue."""
        job = self.job
        during = job.options.stage == 2 or job.options.overlap_comm
        there = job.options.stage == 1 and job.accumulating
        order = [index for index in range(len(job.kinds)) if index in self.owners]
        for index in reversed(order):
            if not there:
                self.gradients += self.job.sizes[index]
            self.note("backward", index, self.buckets, adding=index == 0)
            if during:
                self._add(index, index)
        if not during:
            for index in order:
                self._add(index, -1)
        self._reduce(-1)
        self.note("end of backward", -1, self.buckets)

    def _add(self, index: int, at: int) -> None:
        numel = self.job.numels[index]
        if self.bucket.elements + numel > self.limit:
            self._reduce(at)
        own = not self.contiguous or numel > self.limit
        if not own:
            self.gradients -= self.job.sizes[index]
        self.bucket.members.append((index, own))
        self.bucket.elements += numel
        self.bucket.ranks.update(self.owners[index])

    def _reduce(self, at: int) -> None:
        if not self.bucket.members:
            return
        if self.job.options.overlap_comm and not self.contiguous:
            self.gradients -= self.delayed
            self.delayed = 0
        mine = [(i, own) for i, own in self.bucket.members if self.job.rank in self.owners[i]]
        if self.mixed and mine:
            self._make_partition()
        copies = self._copies(bool(mine))
        self.note("a bucket of gradients is reduced", at, self.buckets, *copies)
        self._keep(mine, at)
        for index, own in self.bucket.members:
            if own and self.job.rank not in self.owners[index] and self.job.options.stage == 2:
                later = self.job.options.overlap_comm and not self.contiguous
                self.delayed += self.job.sizes[index] if later else 0
                self.gradients -= 0 if later else self.job.sizes[index]
        self.bucket = _Bucket()

    def _copies(self, mine: bool) -> list[tuple[str, int]]:
        """Flattened copy of the bucket, unless it is one piece; and its cast, when it is reduced in another dtype."""
        job, bucket = self.job, self.bucket
        elements = bucket.elements
        whole = len(bucket.members) == 1 if not self.contiguous else len(bucket.ranks) == 1
        if self.mixed and mine:
            whole = whole and len(bucket.members) == 1
        if elements > self.limit and not whole:
            part = max(job.numels[i] // len(self.owners[i]) for i, _ in bucket.members)
            elements = min(elements, self.limit + part)
        found = [("copy of the bucket while it is reduced", 0 if whole else elements * self.item)]
        dtype = job.options.communication_dtype
        if dtype and DTYPE_BYTES[dtype] != self.item:
            found.append(("copy in communication_data_type", elements * DTYPE_BYTES[dtype]))
        if self.mixed and mine:
            largest = max(self._mine(i) for i, _ in bucket.members if job.rank in self.owners[i])
            found.append(("a gradient cast to the accumulation dtype", 4 * largest))
        return found

    def _mine(self, index: int) -> int:
        """Elements of a parameter in this rank's part, at most."""
        return -(-self.job.numels[index] // len(self.owners[index]))

    def _keep(self, mine: list[tuple[int, bool]], at: int) -> None:
        """Copy this rank's gradients out of the bucket, or to the host."""
        if not mine:
            return
        if self.offloaded:
            largest = max(self._mine(i) for i, _ in mine)
            norm = ("norm of a gradient in fp64, before it goes to the host", 8 * largest)
            self.note("gradients go to the host", at, self.buckets, norm)
        elif self.contiguous and not self.mixed:
            self._make_partition()
        if self.offloaded or self.contiguous:
            self.gradients -= sum(self.job.sizes[i] for i, own in mine if own)
        self.note("a bucket of gradients has been reduced", at, self.buckets)

    def _make_partition(self) -> None:
        """Allocate what this rank keeps of the gradients: whole ones that touch its part, or the part itself."""
        if self.partition:
            return
        self.partition = True
        job = self.job
        if not self.mixed:
            self.gradients += sum(self.job.sizes[i] for i, ranks in self.owners.items() if job.rank in ranks)
        elif not job.accumulating:
            self.gradients += self.partition_bytes
