"""Models on fake CPU tensors and what MemTracker reads of a training step on them: no arithmetic of the product."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed._tools.mem_tracker as mem_tracker
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

BLOCK = 512
"""MemTracker rounds only CUDA tensors to the allocator's blocks; here every device is rounded."""

MATRIX_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)
"""What selective checkpointing keeps, in the way of torchtitan's list."""

ADAMW = partial(torch.optim.AdamW, foreach=True)
"""CUDA's default; on the CPU it must be asked for."""


def keep_products() -> Any:
    """The contexts of torch's selective activation checkpointing: keep matrix products and fused attention."""

    def policy(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = operation in MATRIX_PRODUCTS
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def checkpointed(block: Callable[..., torch.Tensor], x: torch.Tensor, mode: str) -> torch.Tensor:
    """Run a block under the named activation checkpointing."""
    if mode == "none":
        return block(x)
    extra = {"context_fn": keep_products} if mode == "selective" else {}
    out: torch.Tensor = checkpoint(block, x, use_reentrant=False, **extra)  # type: ignore[arg-type]
    return out


@dataclass(frozen=True)
class Gpt:
    """Shape of a GPT as in the paper, with what a training script chooses."""

    vocab: int = 1024
    layers: int = 4
    hidden: int = 256
    heads: int = 4
    positions: int = 128
    attention: str = "sdpa"
    dropout: float = 0.0
    bias: bool = True
    checkpointing: str = "none"
    upcast: bool = True


class Attention(nn.Module):
    def __init__(self, shape: Gpt) -> None:
        super().__init__()
        self.shape = shape
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=shape.bias)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        heads = (batch, tokens, self.shape.heads, hidden // self.shape.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(hidden, dim=2))
        if self.shape.attention == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.shape.dropout)
        else:
            later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
            weights = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(q.size(-1)))
            weights = weights.masked_fill(later, float("-inf"))
            weights = F.softmax(weights, dim=-1)
            mixed = F.dropout(weights, self.shape.dropout) @ v
        out = self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return F.dropout(out, self.shape.dropout)


class Block(nn.Module):
    def __init__(self, shape: Gpt) -> None:
        super().__init__()
        self.shape = shape
        self.norm1, self.norm2 = nn.LayerNorm(shape.hidden), nn.LayerNorm(shape.hidden)
        self.attention = Attention(shape)
        self.up = nn.Linear(shape.hidden, 4 * shape.hidden, bias=shape.bias)
        self.down = nn.Linear(4 * shape.hidden, shape.hidden, bias=shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.shape.dropout)


class ReferenceGpt(nn.Module):
    """A GPT with learned positions, pre-LayerNorm blocks and an untied head; forward returns the loss."""

    def __init__(self, shape: Gpt) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.places = nn.Embedding(shape.positions, shape.hidden)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        x = F.dropout(x, self.shape.dropout)
        for block in self.blocks:
            x = checkpointed(block, x, self.shape.checkpointing)
        logits = self.head(self.norm(x))
        if self.shape.upcast:
            logits = logits.float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))


class HuggingFace(nn.Module):
    """A model of transformers that computes its own loss; its output object lives until backward, as in a script."""

    def __init__(self, model: nn.Module, checkpointing: str = "none", *, cache: bool = False) -> None:
        super().__init__()
        self.model = model.train()
        model.config.use_cache = cache  # type: ignore[union-attr]
        if checkpointing != "none":
            kwargs: dict[str, Any] = {"use_reentrant": False}
            if checkpointing == "selective":
                kwargs["context_fn"] = keep_products
            model.activation_checkpointing_enable(kwargs)  # type: ignore[operator]
        self.output: Any = None

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # Real tensors tell that no sequences are packed, and no mask is made; fake ones have no values to tell it by.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda position_ids: None)
            self.output = self.model(input_ids=tokens, labels=labels)
        loss: torch.Tensor = self.output.loss
        return loss


def llama(
    *, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int = 1024, attention: str = "sdpa",
    checkpointing: str = "none", tied: bool = False,
) -> HuggingFace:  # fmt: skip
    """``LlamaForCausalLM`` of the installed transformers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=vocab, attn_implementation=attention, tie_word_embeddings=tied,
        max_position_embeddings=4096,
    )  # fmt: skip
    return HuggingFace(transformers.LlamaForCausalLM(config), checkpointing)


@dataclass
class Measured:
    """One training step with its states already in place (the second one)."""

    moments: dict[str, dict[str, int]] = field(default_factory=dict)
    """step_start, forward_end, backward_end, step_end -> MemTracker's categories in lower case -> bytes."""
    peaks: dict[str, int] = field(default_factory=dict)
    """forward, backward, optimizer_step -> the largest total inside."""
    inputs: int = 0
    """Bytes of tokens and labels."""

    @property
    def peak(self) -> int:
        """Largest total of the step."""
        return max(self.peaks.values())

    @property
    def activations(self) -> int:
        """Bytes alive when forward has returned, without states, module buffers, tokens and labels."""
        now = self.moments["forward_end"]
        states = sum(now[name] for name in ("parameter", "buffer", "gradient", "optstate"))
        return now["total"] - states - self.inputs


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Modules made inside get parameters of this dtype (fake parameters cannot be converted)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def rounding() -> Iterator[None]:
    """MemTracker counts in the allocator's blocks inside."""

    def consumed(self: Any) -> int:
        size: int = self.size * self.element_size
        return -(-size // BLOCK) * BLOCK

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mem_tracker._WeakRefInfo, "_calculate_mem_consumed", consumed)
        yield


def snapshot(tracker: MemTracker) -> dict[str, int]:
    """Return the tracker's current categories of the CPU."""
    now = tracker.get_tracker_snapshot("current")[torch.device("cpu")]
    return {str(getattr(key, "value", key)).lower(): size for key, size in now.items()}


def restart_peak(tracker: MemTracker) -> None:
    """Let the tracker's peak start from what is alive now."""
    now = tracker.get_tracker_snapshot("current")
    tracker._peak_mem_snap = now
    tracker._peak_mem = {device: categories["Total"] for device, categories in now.items()}


def peak(tracker: MemTracker) -> int:
    """Return the largest total since the last restart."""
    return int(tracker._peak_mem[torch.device("cpu")])


def measure(
    build: Callable[[], nn.Module],
    *,
    batch: int,
    sequence: int,
    dtype: torch.dtype = torch.float32,
    autocast: torch.dtype | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = ADAMW,
    accumulation: int = 1,
    steps: int = 2,
    forward_only: bool = False,
) -> Measured:
    """Train a model for some steps on fake tensors and return MemTracker's view of the last one.

    ``forward_only`` ends the first step when forward has returned: a third of the time.
    """
    with rounding(), FakeTensorMode():
        with default_dtype(dtype):
            model = build()
        tuned = optimizer(model.parameters())
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        labels = torch.zeros(batch, sequence, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(model, tuned, tokens, labels)
        found = Measured(inputs=2 * math.ceil(batch * sequence * 8 / BLOCK) * BLOCK)
        with tracker:
            if forward_only:
                _forward(model, tokens, labels, tracker, found, autocast)
                return found
            for _ in range(steps):
                _step(model, tuned, tokens, labels, tracker, found, autocast, accumulation)
                tracker.reset_mod_stats()
    return found


def _step(
    model: nn.Module, tuned: torch.optim.Optimizer, tokens: torch.Tensor, labels: torch.Tensor, tracker: MemTracker,
    found: Measured, autocast: torch.dtype | None, accumulation: int,
) -> None:  # fmt: skip
    found.moments["step_start"] = snapshot(tracker)
    for _ in range(accumulation):
        loss = _forward(model, tokens, labels, tracker, found, autocast)
        restart_peak(tracker)
        loss.backward()
        found.peaks["backward"] = peak(tracker)
        del loss
        if isinstance(model, HuggingFace):
            model.output = None
        # The tracker knows one forward of a module; a further micro-batch is a new one to it.
        tracker.reset_mod_stats()
    found.moments["backward_end"] = snapshot(tracker)
    restart_peak(tracker)
    tuned.step()
    found.peaks["optimizer_step"] = peak(tracker)
    tuned.zero_grad()
    found.moments["step_end"] = snapshot(tracker)


def _forward(
    model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor, tracker: MemTracker, found: Measured,
    autocast: torch.dtype | None,
) -> torch.Tensor:  # fmt: skip
    cast: AbstractContextManager[Any] = torch.autocast("cpu", autocast) if autocast else nullcontext()
    restart_peak(tracker)
    with cast:
        loss: torch.Tensor = model(tokens, labels)
    found.moments["forward_end"] = snapshot(tracker)
    found.peaks["forward"] = peak(tracker)
    return loss
