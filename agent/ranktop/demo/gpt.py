"""A small GPT (pre-norm, fused QKV, scaled-dot-product attention), written to be read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model."""

    vocabulary: int = 256
    context: int = 128
    layers: int = 6
    heads: int = 8
    hidden: int = 256


class Attention(nn.Module):
    """Causal self-attention over ``[batch, sequence, hidden]``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values, same shape as ``x``."""
        batch, length, hidden = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(hidden, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(attended.transpose(1, 2).reshape(batch, length, hidden))
        return mixed


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.hidden)
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, same shape as ``x``."""
        x = x + self.attention(self.norm1(x))
        mixed: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return mixed


class GPT(nn.Module):
    """Next-byte model: tokens ``[batch, sequence]`` to logits ``[batch, sequence, vocabulary]``."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.context, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every next token."""
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
