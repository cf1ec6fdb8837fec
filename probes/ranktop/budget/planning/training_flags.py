"""How it is trained: the words that flags know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ranktop.budget.model import BadInput
from ranktop.budget.plan import Lora
from ranktop.budget.planning.flags import Flags, meant
from ranktop.budget.planning.numbers import whole

ATTENTION: Final = ("sdpa", "eager", "flash")
LOSSES: Final = ("upcast", "plain", "hf", "megatron", "megatron-fused", "chunked", "none")
STACKS: Final = ("torch", "megatron")


def choice(flag: str, text: str, known: Sequence[str]) -> str:
    """Return the one of the known words that is meant. Raises BadInput."""
    word = text.strip().lower()
    if word not in known:
        raise BadInput(f"{flag} {text!r} is not known{meant(word, known)}; there are {', '.join(known)}")
    return word


def lora(flags: Flags) -> Lora | None:
    """Return the adapters that are trained, None without. Raises BadInput."""
    if flags.lora_rank is None and not flags.qlora:
        return None
    rank = whole("--lora-rank", flags.lora_rank, 65536) if flags.lora_rank is not None else 8
    return Lora(rank=rank, quantized="nf4" if flags.qlora else None)
