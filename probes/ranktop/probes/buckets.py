"""Communication buckets that a model keeps between steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of DDP's reducer."""

    sizes: tuple[int, ...] = ()
    """Bytes of each."""
    views: bool = False
    """True when gradients are views of them."""
    reasons: dict[str, str] = field(default_factory=dict)

    bytes: int = 0
    """Bytes of all buckets."""


def ddp_wrappers(modules: Iterable[Any]) -> list[DistributedDataParallel]:
    """Return the DDP wrappers among modules."""
    return [module for module in modules if isinstance(module, DistributedDataParallel)]


def ddp_buckets(modules: Iterable[Any]) -> Buckets:
    """Return the reducer's buckets of every DDP wrapper in a model; they hold no padding."""
    sizes: list[int] = []
    views = False
    reasons: dict[str, str] = {}
    for wrapper in ddp_wrappers(modules):
        views |= bool(getattr(wrapper, "gradient_as_bucket_view", False))
        try:
            data: dict[str, Any] = getattr(wrapper, "_get_ddp_logging_data")()  # noqa: B009 (untyped)
            told = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
            sizes += [int(size) for size in str(told).split(",") if size.strip()]
        except Exception as error:
            reasons["buffers"] = f"DDP does not tell its bucket sizes ({type(error).__name__})"
    return Buckets(tuple(sizes), views, reasons, sum(sizes))


def viewed_bytes(gradients: Iterable[Any], sizes: Iterable[int]) -> int:
    """Return the bytes of the buckets that gradients are views of now.

    After a backward under ``no_sync`` the gradients stand beside the buckets although views were asked for.
    """
    left = list(sizes)
    seen: set[int] = set()
    total = 0
    for gradient in gradients:
        if gradient is None or not gradient._is_view():
            continue
        storage = gradient.untyped_storage()
        size = storage.nbytes()
        if storage._cdata not in seen and size in left:
            seen.add(storage._cdata)
            left.remove(size)
            total += size
    return total
