"""What the jobs of the live budget's tests train, and what a rank reports of each."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ranktop.wire.schema import Card, Table


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration of a script."""

    model: str
    """``gpt`` returns logits, ``nanogpt`` logits and loss, ``gpt2`` and ``llama`` (transformers) their loss."""
    strategy: str
    dtype: str = "fp32"
    keep: bool = False
    """FSDP keeps parameters gathered from forward to backward."""
    root_too: bool = False
    """FSDP2's root, too, lets its parameters go after forward."""
    mixed: bool = False
    """FSDP computes in bf16 and reduces in fp32."""
    autocast: bool = False
    inside: bool = False
    """Autocast is put around the model's forward, and outputs are cast back, as Accelerate does it."""
    bucket_view: bool = False
    accumulation: int = 1
    no_sync: bool = False
    checkpointing: bool = False
    attention: str = "sdpa"
    cache: bool = True
    """transformers' ``use_cache``, which is on unless a script turns it off."""
    held: bool = False
    """The script holds its outputs until the next ones are there."""
    layers: int = 3
    hidden: int = 64
    heads: int = 4
    vocabulary: int = 320
    batch: int = 2
    sequence: int = 64

    @property
    def name(self) -> str:
        words = [self.model, self.strategy, self.dtype if self.dtype != "fp32" else ""]
        flags = {
            "grad-op": self.keep, "mixed": self.mixed, "autocast": self.autocast, "accelerated": self.inside,
            "views": self.bucket_view,
            f"x{self.accumulation}": self.accumulation > 1, "no-sync": self.no_sync,
            "checkpointed": self.checkpointing, self.attention: self.attention != "sdpa", "no-cache": not self.cache,
            "root-too": self.root_too, "held": self.held,
        }  # fmt: skip
        return " ".join([*filter(None, words), *(word for word, on in flags.items() if on)])


class Report(msgspec.Struct, kw_only=True):
    """What one rank says of one case."""

    name: str
    card: Card | None = None
    first: Table | None = None
    """The step in which the optimizer made its state."""
    later: Table | None = None
    errors: str = ""


CASES = (
    Case(model="gpt", strategy="single", held=True),
    Case(model="gpt", strategy="single", autocast=True),
    Case(model="gpt", strategy="single", dtype="bf16", accumulation=2),
    Case(model="nanogpt", strategy="single", autocast=True),
    Case(model="nanogpt", strategy="ddp", held=True),
    Case(model="gpt", strategy="ddp"),
    Case(model="gpt", strategy="ddp", bucket_view=True, accumulation=2),
    Case(model="gpt", strategy="ddp", accumulation=2, no_sync=True, held=True),
    Case(model="gpt", strategy="ddp", bucket_view=True, accumulation=2, no_sync=True, autocast=True),
    Case(model="gpt", strategy="fsdp1"),
    Case(model="gpt", strategy="fsdp1", mixed=True),
    Case(model="gpt", strategy="fsdp1", accumulation=2, no_sync=True),
    Case(model="gpt", strategy="fsdp1", mixed=True, accumulation=2, no_sync=True),
    Case(model="gpt", strategy="fsdp2", held=True),
    Case(model="gpt", strategy="fsdp2", keep=True),
    Case(model="gpt", strategy="fsdp2", root_too=True, mixed=True),
    Case(model="gpt", strategy="fsdp2", mixed=True, accumulation=2, no_sync=True),
    Case(model="gpt2", strategy="single", held=True),
    Case(model="gpt2", strategy="single", attention="eager", cache=False),
    Case(model="gpt2", strategy="single", checkpointing=True),
    Case(model="gpt2", strategy="ddp", autocast=True, cache=False),
    Case(model="gpt2", strategy="fsdp1", keep=True, cache=False),
    Case(model="gpt2", strategy="fsdp2", mixed=True, held=True),
    Case(model="llama", strategy="single", held=True),
    Case(model="llama", strategy="single", attention="eager", cache=False),
    Case(model="llama", strategy="single", dtype="bf16", checkpointing=True),
    Case(model="llama", strategy="ddp", autocast=True, bucket_view=True, checkpointing=True),
    Case(model="llama", strategy="fsdp1", mixed=True, cache=False),
    Case(model="llama", strategy="fsdp2", mixed=True, checkpointing=True),
    Case(model="llama", strategy="fsdp2", accumulation=2, cache=False),
    Case(model="gpt", strategy="single", inside=True, held=True),
    Case(model="llama", strategy="ddp", inside=True, cache=False),
    # Last, for what DeepSpeed changes in the process stays: ZeRO-3 has a linear layer of its own.
    Case(model="gpt", strategy="zero1", dtype="bf16"),
    Case(model="llama", strategy="zero1", dtype="bf16", cache=False),
    Case(model="gpt", strategy="zero2", accumulation=2),
    Case(model="gpt2", strategy="zero2", dtype="bf16", cache=False),
    Case(model="gpt", strategy="zero3", dtype="bf16"),
    Case(model="llama", strategy="zero3", dtype="bf16", checkpointing=True),
)
