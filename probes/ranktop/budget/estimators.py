"""What other tools and rules of thumb say about memory; docs/planning.md tells where they are wrong.

They are not used for any budget: they stand beside it, for people who know these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """What DeepSpeed's own estimators print for model states, in bytes."""

    gpu: int
    """Per GPU."""
    cpu: int
    """Per node."""

    @property
    def printed(self) -> tuple[float, float]:
        """CPU and GPU as DeepSpeed prints them: GiB, which it calls GB, to two decimals."""
        return round(self.cpu / 2**30, 2), round(self.gpu / 2**30, 2)


def deepspeed_zero2(
    params: int, gpus_per_node: int = 1, nodes: int = 1, *, offload: bool = True, buffer_factor: float = 1.5
) -> Estimate:
    """Return ``estimate_zero2_model_states_mem_needs`` (deepspeed/runtime/zero/stage_1_and_2.py).

    16-bit weights whole on every GPU; 18 bytes a parameter over all GPUs, or with offload on the host.
    """
    gpus = gpus_per_node * nodes
    if offload:
        return Estimate(2 * params, int(params * max(4 * gpus, 16) * buffer_factor))
    return Estimate(2 * params + int(18 * params / gpus), int(params * 4 * gpus_per_node * buffer_factor))


def deepspeed_zero3(
    params: int,
    largest_layer: int,
    gpus_per_node: int = 1,
    nodes: int = 1,
    *,
    offload_optimizer: bool = True,
    offload_parameters: bool = True,
    zero_init: bool = True,
    buffer_factor: float = 1.5,
) -> Estimate:
    """Return ``estimate_zero3_model_states_mem_needs`` (deepspeed/runtime/zero/stage3.py).

    ``largest_layer``: parameters of the largest layer, which is gathered whole. Parameters are offloaded only
    together with the optimizer.
    """
    layer = 4 * largest_layer
    share = 1 / nodes
    whole = 4 * gpus_per_node
    if not offload_optimizer:
        host = largest_layer * whole if zero_init else params * whole
        return Estimate(layer + int(18 * params / (gpus_per_node * nodes)), int(host * buffer_factor))
    per_param = 18 if offload_parameters else 16
    on_host = params * (per_param * share if zero_init else max(whole, per_param * share)) * buffer_factor
    own = 0 if offload_parameters else int(2 * params / (gpus_per_node * nodes))
    return Estimate(layer + own, int(on_host))


def bucket_rule(reduce_bucket_size: int, allgather_bucket_size: int, itemsize: int = 2) -> float:
    """Return the 4.5x rule for ``overlap_comm`` in bytes (transformers docs/source/en/deepspeed.md)."""
    return 4.5 * itemsize * (reduce_bucket_size + allgather_bucket_size)
