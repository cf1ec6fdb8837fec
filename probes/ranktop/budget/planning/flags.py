"""What a run is asked about, as words: one list for every command that plans, and for Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MODEL: Final = "model"
LAYOUT: Final = "ranks and strategies"
TRAINING: Final = "training"
DEVICE: Final = "device"
OUTPUT: Final = "answer"


def flag(group: str, metavar: str, text: str) -> Any:
    """Return a field for a flag with a value; None = not given."""
    return field(default=None, metadata={"group": group, "metavar": metavar, "help": text})


def switch(group: str, text: str) -> Any:
    """Return a field for a flag without a value."""
    return field(default=False, metadata={"group": group, "metavar": None, "help": text})


def many(group: str, metavar: str, text: str) -> Any:
    """Return a field for a flag that may be given several times."""
    return field(default=(), metadata={"group": group, "metavar": metavar, "help": text, "many": True})


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the user typed, unread; ``request`` reads it and complains in one line.

    From Python, instead of a file's name, what it holds: a mapping.
    """

    model: str | Mapping[str, Any] | None = flag(MODEL, "NAME|PATH", "a model by name, or a Hugging Face config.json")
    params: str | None = flag(MODEL, "N", "instead of --model: parameters, e.g. 7.5e9 or 7.5B")
    layers: str | None = flag(MODEL, "N", "with --params: blocks")
    hidden: str | None = flag(MODEL, "N", "with --params: hidden size")
    heads: str | None = flag(MODEL, "N", "with --params: attention heads")
    kv_heads: str | None = flag(MODEL, "N", "with --params: key/value heads (as many as heads)")
    ffn: str | None = flag(MODEL, "N", "with --params: feed-forward size (4 x hidden)")
    vocab: str | None = flag(MODEL, "N", "with --params: vocabulary")
    trace: str | None = flag(MODEL, "MODULE:CLASS", "activations from your own class, read in another process")
    trace_arg: tuple[str, ...] = many(MODEL, "NAME=VALUE", "an argument of that class; may be given again")

    world_size: str | None = flag(LAYOUT, "N", "GPUs (the product of the axes given, else one node)")
    gpus_per_node: str | None = flag(LAYOUT, "N", "GPUs of one node (8)")
    dp: str | None = flag(LAYOUT, "N", "data-parallel size (what the other axes leave)")
    tp: str | None = flag(LAYOUT, "N", "tensor-parallel size (1; tp and 3d choose)")
    pp: str | None = flag(LAYOUT, "N", "pipeline stages (1; pp and 3d choose)")
    cp: str | None = flag(LAYOUT, "N", "context-parallel size (1)")
    ep: str | None = flag(LAYOUT, "N", "expert-parallel size (1)")
    sequence_parallel: bool = switch(LAYOUT, "split along the sequence what tensor parallel leaves whole")
    virtual_stages: str | None = flag(LAYOUT, "N", "pipeline chunks per rank (1)")
    strategy: str | None = flag(LAYOUT, "A,B,...", "strategies to compare (all)")
    deepspeed: str | Mapping[str, Any] | None = flag(LAYOUT, "FILE", "DeepSpeed's JSON")
    accelerate: str | Mapping[str, Any] | None = flag(LAYOUT, "FILE", "Accelerate's YAML")

    precision: str | None = flag(
        TRAINING, "NAME", "fp32, amp-fp16, amp-bf16, bf16, bf16-master, fp16-master or fp8 (bf16-master)"
    )
    optimizer: str | None = flag(
        TRAINING, "NAME", "sgd, momentum, adam, adamw, adafactor, adamw8bit, lion, muon ... (adamw)"
    )
    micro_batch: str | None = flag(TRAINING, "B", "samples per forward and rank (1)")
    seq_len: str | None = flag(TRAINING, "S", "tokens per sample (the longest that the model was made for)")
    grad_accum: str | None = flag(TRAINING, "K", "forwards per optimizer step (1)")
    global_batch: str | None = flag(TRAINING, "G", "samples per step over all ranks, instead of --grad-accum")
    checkpointing: str | None = flag(TRAINING, "HOW", "activation checkpointing: none, selective or full (none)")
    checkpoint_every: str | None = flag(TRAINING, "K", "with full checkpointing: blocks per segment (1)")
    attention: str | None = flag(TRAINING, "HOW", "sdpa, eager or flash (sdpa)")
    loss: str | None = flag(TRAINING, "HOW", "upcast, plain, hf, chunked, megatron, megatron-fused or none (auto)")
    stack: str | None = flag(TRAINING, "NAME", "whose layers run: torch or megatron (torch)")
    lora_rank: str | None = flag(TRAINING, "R", "train adapters of this rank on a frozen base")
    qlora: bool = switch(TRAINING, "adapters, and the frozen base in 4 bits (NF4)")

    device_memory: str | None = flag(DEVICE, "SIZE", "memory of one GPU, e.g. 80GiB or 24GB")
    gpu: str | None = flag(DEVICE, "NAME", "a GPU by name, e.g. h100")
    link: str | None = flag(
        DEVICE, "SPEED", "what one GPU can send, between nodes if there are several, e.g. 400Gb/s or 50GB/s"
    )


def spelled(name: str) -> str:
    """Return a field's name as it is typed."""
    return "--" + name.replace("_", "-")


def meant(text: str, known: Sequence[str]) -> str:
    """Return `` (did you mean a or b?)`` for close matches, else nothing."""
    from difflib import get_close_matches

    close = [name for name in known if len(text) > 2 and name.startswith(text)][:3]
    close = close or get_close_matches(text, known, n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
