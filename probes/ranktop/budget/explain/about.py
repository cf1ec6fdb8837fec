"""What every strategy does, in a sentence or two."""

from __future__ import annotations

from typing import Final

from ranktop.budget.plan import Plan

_WORDS: Final = {
    "single": "One device holds everything and sends nothing.",
    "dp": "One process copies the model to every GPU in each forward and splits the batch; outputs and gradients come "
    "back to GPU 0, which alone has the optimizer and computes the loss over the whole batch.",
    "ps": "Workers compute gradients and send them to a server (rank 0), which updates the parameters and sends them "
    "back.",
    "ddp": "Every rank holds everything and sees its own samples. Gradients are averaged bucket by bucket while "
    "backward still runs, so that all ranks take the same step.",
    "zero1": "Every rank holds all weights and computes all gradients, but keeps optimizer state and master weights "
    "of its own part only; it updates that part and gathers the others'.",
    "zero2": "As ZeRO-1, and of the gradients a rank keeps its own part only once they are reduced.",
    "zero3": "Every rank keeps its part of weights, gradients and optimizer state; a module's weights are gathered "
    "just before it runs, in forward and again in backward, and dropped afterwards.",
    "zero-infinity": "ZeRO-3 with weights, gradients and optimizer state on NVMe, read in pieces through host memory.",
    "fsdp-full": "Every rank keeps its part of each block's weights, gradients and optimizer state; a block's weights "
    "are gathered before it runs, in forward and again in backward, and freed behind it.",
    "fsdp-grad-op": "Gradients and optimizer state are sharded; weights are gathered in forward and stay whole until "
    "backward has passed them.",
    "fsdp-hybrid": "Sharded within a node, repeated between nodes: gathers stay inside the node, and only sharded "
    "gradients are averaged between nodes.",
    "tp": "Every matrix is cut among the ranks, which work on the same samples and add up their parts behind each "
    "attention and each MLP.",
    "pp-gpipe": "Ranks hold consecutive layers. All micro-batches run forward first, then all run backward, so that a "
    "stage keeps the activations of every one of them.",
    "pp-1f1b": "Ranks hold consecutive layers. Once the pipeline is full each stage alternates one forward and one "
    "backward, so that it keeps only as many micro-batches as stages follow.",
    "3d": "Tensor parallel inside, pipeline stages across, data parallel with a distributed optimizer around both.",
}  # fmt: skip

_OFFLOAD: Final = " The optimizer runs on the CPU: its state, the master weights and the gradients are in host memory."
_BOTH: Final = " Weights wait in host memory too, and pass through the GPU module by module."


def summary(strategy: str, plan: Plan | None) -> str:
    """Return what a strategy does, with what the plan's layout adds to it."""
    base = strategy.removesuffix("-offload")
    text = _WORDS.get(base, "")
    if strategy.endswith("-offload"):
        text += _OFFLOAD + (_BOTH if base == "zero3" else "")
    if plan is not None:
        text += _beside(strategy, plan)
    return text


def _beside(strategy: str, plan: Plan) -> str:
    layout = plan.layout
    if layout.world_size == 1 and strategy != "single":
        return " On one rank nothing is split and nothing is sent."
    if strategy == "fsdp-hybrid" and layout.replicate == 1:
        return " Here all ranks fit on one node, so that it is the same as fsdp-full."
    if strategy in ("tp", "pp-gpipe", "pp-1f1b") and layout.data > 1:
        return f" {layout.data} such groups average their gradients as DDP does."
    return ""
