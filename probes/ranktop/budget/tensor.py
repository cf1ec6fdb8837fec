"""Tensor parallel by DTensor: what the storage of a split parameter holds."""

from __future__ import annotations

import re
from math import prod

from ranktop.budget.inventory import Kind


def stored_numel(kind: Kind, tensor: int) -> int:
    """Return the elements that a parameter's own storage holds on one of ``tensor`` tensor-parallel ranks.

    An uneven split pads every part to the largest for the scatter; what is cut off afterwards stays in the
    storage as long as the cut leaves the part contiguous (its first dimension of more than one element).
    Source: torch/distributed/tensor/placement_types.py ``Shard._shard_tensor``.
    """
    split = re.search(r"S\((\d+)\)", kind.tensor_parallel)
    if kind.split_size is None or split is None or tensor <= 1:
        return kind.numel
    dim = int(split.group(1))
    if prod(kind.shape[:dim]) > 1:
        return kind.numel
    return -(-kind.split_size // tensor) * prod(kind.shape[dim + 1 :])
