"""One optimizer step of one rank: the numbers that every rule of this package asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ranktop.budget.held import gradient_itemsize
from ranktop.budget.inventory import Inventory, Kind
from ranktop.budget.model import Model
from ranktop.budget.models.section import Section
from ranktop.budget.models.stages import chunks_of, on_stage
from ranktop.budget.models.tensors import sections
from ranktop.budget.plan import Plan
from ranktop.budget.terms import DTYPE_BYTES


@dataclass(frozen=True)
class Step:
    """An inventory and a plan, with what follows from them."""

    inventory: Inventory
    plan: Plan
    model: Model | None = None

    @cached_property
    def kinds(self) -> list[tuple[Kind, int]]:
        """Distinct parameters with their numbers, in the order of the inventory."""
        times = Counter(self.inventory.order)
        return [(self.inventory.kinds[index], count) for index, count in times.items()]

    @property
    def micro_steps(self) -> int:
        """Forward and backward passes per optimizer step."""
        if self.plan.pipeline is not None:
            return max(1, self.plan.pipeline.micro_batches)
        return max(1, self.plan.batch.accumulation or 1)

    @property
    def reduces_once(self) -> bool:
        """Gradients wait for the last micro-batch (``no_sync``, ``set_requires_gradient_sync(False)``)."""
        return bool(self.plan.unsharded_gradients_at)

    @property
    def experts_inside(self) -> bool:
        """Expert parallel divides the data-parallel ranks instead of multiplying them."""
        layout = self.plan.layout
        return layout.data * layout.tensor * layout.pipeline * layout.context == layout.world_size

    @property
    def replicas(self) -> int:
        """Ranks that hold the same of what is not an expert and see other samples or other tokens."""
        layout = self.plan.layout
        return layout.replicate * layout.context * (1 if self.experts_inside else layout.expert)

    def gradient_item(self, kind: Kind) -> int:
        """Bytes per element of a gradient; Megatron accumulates and reduces in fp32."""
        if self.plan.stack == "megatron":
            return DTYPE_BYTES[self.plan.precision.gradients or "float32"]
        return gradient_itemsize(kind, self.plan)

    def gradient_bytes(self) -> int:
        """Bytes of the gradients of every trainable parameter, whole."""
        return sum(k.numel * count * self.gradient_item(k) for k, count in self.kinds if k.trainable)

    def expert_gradient_bytes(self) -> int:
        """Bytes of the routed experts' gradients on this rank; 0 without expert parallel."""
        if self.plan.layout.expert == 1:
            return 0
        item = max((self.gradient_item(kind) for kind, _ in self.kinds), default=0)
        return self.expert_numel() * item

    def parameter_bytes(self) -> int:
        """Bytes of all parameters, whole."""
        return sum(k.numel * count * k.itemsize for k, count in self.kinds)

    @property
    def compute_item(self) -> int:
        """Bytes per element of what matrices give out."""
        precision = self.plan.precision
        return self._floating(precision.compute or precision.autocast or precision.parameters)

    @property
    def stream_item(self) -> int:
        """Bytes per element of the residual stream: under autocast it keeps the parameters' dtype."""
        return self._floating(self.plan.precision.compute or self.plan.precision.parameters)

    @staticmethod
    def _floating(dtype: str) -> int:
        return max(2, DTYPE_BYTES[dtype])

    @property
    def tokens(self) -> int | None:
        """Tokens of one micro-batch on this rank, after context splitting; None when the batch is not known."""
        batch = self.plan.batch
        if not batch.micro_batch or not batch.sequence_length:
            return None
        return batch.micro_batch * -(-batch.sequence_length // self.plan.layout.context)

    @cached_property
    def sections(self) -> list[list[Section]]:
        """What each of this rank's pipeline chunks holds of the model; empty without a model."""
        if self.model is None or not self.model.family:
            return []
        return on_stage(sections(self.model), self.model.tied, self.plan)

    @property
    def layers(self) -> int:
        """Blocks that this rank runs for one micro-batch, over all its chunks."""
        return sum(part.count for chunk in self.sections for part in chunk if part.first is not None)

    @property
    def row_parallel(self) -> int:
        """Row-parallel matrices that this rank runs for one micro-batch: behind each attention and behind the MLP."""
        return sum(
            part.count * (1 + sum(tensor.role == "o" and len(tensor.shape) > 1 for tensor in part.tensors))
            for chunk in self.sections
            for part in chunk
            if part.first is not None
        )

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether the embeddings and whether the output head lie on this rank."""
        chunks, total = chunks_of(self.plan)
        return 0 in chunks, total - 1 in chunks

    def expert_numel(self) -> int:
        """Elements of the routed experts' parameters on this rank; 0 without a model."""
        layout = self.plan.layout
        total = 0
        for chunk in self.sections:
            for part in chunk:
                for tensor in part.tensors:
                    if tensor.expert:
                        split = layout.tensor if tensor.split is not None else 1
                        total += part.count * tensor.numel // (layout.expert * split)
        return total

    @property
    def expert_layers(self) -> int:
        """Blocks with routed experts that this rank runs for one micro-batch."""
        return sum(
            part.count
            for chunk in self.sections
            for part in chunk
            if part.first is not None and any(tensor.expert for tensor in part.tensors)
        )


def closed_at(sizes: Iterable[int], limit: int, first: int | None = None) -> int:
    """Count buckets that are closed by the tensor that brings them to ``limit`` (the first one to ``first``)."""
    buckets = filled = 0
    open_limit = limit if first is None else first
    for size in sizes:
        filled += size
        if filled >= open_limit:
            buckets, filled, open_limit = buckets + 1, 0, limit
    return buckets + (filled > 0)


def closed_before(sizes: Iterable[int], limit: int) -> int:
    """Count buckets that are closed before the tensor that would bring them beyond ``limit``."""
    buckets = filled = 0
    for size in sizes:
        if filled and filled + size > limit:
            buckets, filled = buckets + 1, 0
        filled += size
    return buckets + (filled > 0)
