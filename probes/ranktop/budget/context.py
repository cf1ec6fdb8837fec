"""What context parallel adds to a rank: attention over a sequence of which every rank holds a part."""

from __future__ import annotations


def ring_bytes(tokens: int, kv_columns: int, width: int, context: int) -> int:
    """Return the bytes of the keys and values on their way round the ring, while one layer's attention runs.

    ``tokens``: of one micro-batch on this rank (b s / c); ``kv_columns``: columns of the keys (k d / t), and as many of
    the values; ``width``: bytes per element. One chunk of both is sent while the next is received (Liu et al., Ring
    Attention, arXiv:2310.01889; TransformerEngine ``AttnFuncWithCPAndKVP2P``). 0 without context parallel.
    """
    return 0 if context <= 1 else 2 * 2 * tokens * kv_columns * width


def accumulation_bytes(tokens: int, query_columns: int, heads: int, context: int) -> int:
    """Return the bytes of output and logsumexp in fp32 that the steps of the ring are merged into.

    Of one layer, while its attention runs. 0 without context parallel.
    """
    return 0 if context <= 1 else 4 * tokens * (query_columns + heads)
