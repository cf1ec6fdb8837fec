"""What the memory rule says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ranktop.tui.session.findings.sizes import SHORT, WORDS, percent, short_size, sized
from ranktop.tui.session.findings.words import ranks_words

EXTRA_COPY: Final = (
    "The difference is as large as the model's parameters: look for a second copy of the model on this rank "
    "(deepcopy, an EMA, a checkpoint loaded onto the device), and drop it or move it to the CPU."
)

ADVICE: Final = {
    "parameters": "Look for parameters that only this rank has: a module that is built or left unsharded there alone.",
    "gradients": "See whether this rank zeroes its gradients as the others do and accumulates as they do.",
    "optimizer": "See whether this rank's optimizer has the same parameters and options as the others'.",
    "activations": "Look for tensors that this rank keeps: a list of outputs or losses with their graph (use .item() "
    "or .detach()), a larger batch, evaluation only on this rank.",
    "buffers": "See whether this rank's buckets and module buffers are made with the same options as the others'.",
    "cache": "Nothing is wrong while there is room: the allocator keeps freed blocks. torch.cuda.empty_cache() after "
    "an uncommon step (evaluation, checkpoint) returns them.",
    "runtime": "Memory of the process outside of its allocator: more process groups, libraries or CUDA contexts, or "
    "data that only this rank loads.",
}  # fmt: skip
"""By category."""


def sentence(
    category: str, rank: int, excess: float, measured: float, usual: float, peers: int, role: str, *,
    tokens: bool, copied: str,
) -> str:  # fmt: skip
    """Return the sentence of one rank: who holds how much more of what than whom, and what it may be."""
    whom = f"its {peers} peers" if peers > 1 else "its peer"
    role = f" {role}" if role else ""
    share = f"{percent(excess / usual)}: " if usual > 0 and excess < 20 * usual else ""
    counts = f"{share}{sized(measured)}, usually {sized(usual)}"
    length = " at the same number of tokens" if tokens else ""
    hint = f"; as much as {copied}: an extra copy?" if copied else ""
    return f"rank {rank} holds {sized(excess)} more {WORDS[category]} than {whom}{role}{length} ({counts}){hint}"


def several(category: str, ranks: Sequence[int], least: float, most: float, members: int, role: str) -> str:
    """Return the sentence of many ranks that hold more of the same."""
    role = f" {role}" if role else ""
    amount = f"{sized(least)} to {sized(most)} more {WORDS[category]}"
    return f"{ranks_words(ranks, 'hold')} {amount} than the other {members - len(ranks)}{role}"


def short(category: str, excess: float, usual: float) -> str:
    """Return the same for a rank's row."""
    tensors = category in ("parameters", "gradients", "optimizer", "activations")
    told = percent(excess / usual) if tensors and usual > 0 and excess < 10 * usual else short_size(excess)
    return f"{SHORT[category]} {told}"[:14]
