"""What other tools and rules of thumb say about memory, and where they are wrong.

They are not used for any budget: they stand beside it, for people who know these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


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


BYTES_PER_PARAMETER: Final[dict[str, float]] = {
    "mixed": 18.0,
    "pure-16-bit": 8.0,
    "lora-16-bit": 2.0,
    "qlora-8-bit": 1.0,
    "qlora-4-bit": 0.5,
    "inference-16-bit": 2.0,
}
"""LLaMA-Factory's README (hardware requirement, "estimated") and Hugging Face's perf_train_gpu_one: 6 bytes of
weights (fp32 and 16-bit), 8 of Adam's states, 4 of gradients are 18 a parameter for mixed precision. Activations are
left out."""


def per_parameter(params: int, kind: str) -> int:
    """Return params x bytes of BYTES_PER_PARAMETER; KeyError for an unknown kind."""
    return int(params * BYTES_PER_PARAMETER[kind])


def accelerate_weights(params: int, itemsize: int = 4) -> int:
    """Return what ``accelerate estimate-memory`` shows for loading a model: its weights."""
    return params * itemsize


def accelerate_training(params: int, itemsize: int = 4) -> int:
    """Return what ``accelerate estimate-memory`` shows for training with Adam: four times the weights."""
    return 4 * accelerate_weights(params, itemsize)


def bucket_rule(reduce_bucket_size: int, allgather_bucket_size: int, itemsize: int = 2) -> float:
    """Return the 4.5x rule for ``overlap_comm`` in bytes (transformers docs/source/en/deepspeed.md)."""
    return 4.5 * itemsize * (reduce_bucket_size + allgather_bucket_size)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where an estimator is wrong."""

    who: str
    says: str
    """Its claim, with a number."""
    is_so: str
    """What is so instead, with a number, and why."""


def disagreements() -> tuple[Disagreement, ...]:
    """Return where these estimators are wrong, each with numbers of a run or of the source that shows it.

    Runs: reference GPT, 3,716,608 parameters, bf16, AdamW, 2 ranks, DeepSpeed 0.19.8, reduce_bucket_size 1e6.
    """
    params, gpus = 3_716_608, 2
    zero2 = deepspeed_zero2(params, gpus, offload=False).gpu
    zero3 = deepspeed_zero3(params, 262_144, gpus, offload_optimizer=False).gpu
    host = deepspeed_zero2(7_000_000_000, 8, 8).cpu / 8
    return (
        Disagreement(
            "DeepSpeed estimate_zero2_model_states_mem_needs",
            f"2P + 18P/N: {zero2 / 1e6:.1f} MB of model states",
            "the run holds 29.7 MB between steps (2P + 12P/N) and 44.6 MB in the optimizer's step, where gradients "
            "exist in 16 bits, flattened and in fp32 at once; foreach AdamW needs 4P/N too",
        ),
        Disagreement(
            "DeepSpeed estimate_zero3_model_states_mem_needs",
            f"4 x the largest layer + 18P/N: {zero3 / 1e6:.1f} MB",
            "the run needs 46.6 MB in the optimizer's step and 50.3 MB in forward: the bucket of reduce_bucket_size "
            "is kept from the start on (1 GB at the default), and with the default stage3_max_live_parameters all of "
            "a small model stays gathered, twice while it is copied out of the gather's buffer",
        ),
        Disagreement(
            "DeepSpeed estimate_zero2_model_states_mem_needs, host",
            f"params x max(4 x all GPUs, 16) x 1.5: {host / 1e9 * 8:.0f} GB a node for 7B on 8 x 8 GPUs",
            "each rank holds 18P/N and one gradient: 16 GB a node; only loading 8 copies of fp32 weights needs "
            "4P x 8 GPUs of that node, not of all nodes",
        ),
        Disagreement(
            "DeepSpeed docs memory.rst",
            "15.93 GiB a GPU for ZeRO-2 without offload, 2851M parameters, 8 GPUs (4P + 16P/N)",
            "the function itself gives 2P + 18P/N = 11.28 GiB: the page was not changed with it",
        ),
        Disagreement(
            "transformers docs deepspeed.md, overlap_comm",
            "4.5 x both bucket sizes: 9 GB at 5e8",
            "stages 1 and 2 allocate two buckets of reduce_bucket_size (2 GB at 5e8) and copy one; "
            "allgather_bucket_size allocates nothing (same bytes at 1e6 and 5e8); stage 3 keeps one bucket, with "
            "overlap_comm or without",
        ),
        Disagreement(
            "LLaMA-Factory README",
            "18 bytes a parameter for mixed precision",
            "DeepSpeed keeps 16 (2 + 2 + 4 + 8) and reaches 24 at stage 0 in the step; torch.autocast keeps 16 and no "
            "16-bit weights but cached ones; neither number holds activations, logits or buckets",
        ),
        Disagreement(
            "accelerate estimate-memory",
            "training with Adam needs 4 x the weights",
            "true of fp32 model states alone; foreach AdamW takes a fifth copy in the step, activations come on top",
        ),
    )
