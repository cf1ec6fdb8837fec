"""Makes a model that runs on the CPU save what it would save on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_UPCAST: Final = frozenset(
    {
        "softmax", "log_softmax", "softmin", "layer_norm", "group_norm", "rms_norm", "cross_entropy", "nll_loss",
        "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div", "binary_cross_entropy_with_logits", "exp", "log", "log2",
        "log10", "log1p", "expm1", "pow", "rsqrt", "reciprocal", "sum", "prod", "cumsum", "cumprod", "norm", "softplus",
        "cosh", "sinh", "tan", "acos", "asin", "erfinv", "cdist", "cosine_similarity", "poisson_nll_loss",
    }
)  # fmt: skip
"""Functions that autocast runs in fp32 on CUDA (``AT_FORALL_FP32`` in ATen/autocast_mode.h) and not on the CPU."""

_FUSED_RMS_SINCE: Final = (2, 9)
"""From this version of torch on, CUDA's ``rms_norm`` is one kernel that keeps its input and the reciprocal root."""


class _FusedRms(torch.autograd.Function):
    """``rms_norm`` with what the fused kernel saves: input, weight, one fp32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Any, width: int, weight: Any, eps: float) -> Any:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        out = (wide * scale).to(x.dtype)
        return out if weight is None else out * weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.zeros_like(x), None, None if weight is None else torch.zeros_like(weight), None


class CudaFunctions(TorchFunctionMode):
    """Rewrites calls whose CPU kernels save other tensors than CUDA's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return attention(*args, **kwargs)
        if torch.is_autocast_enabled("cpu") and name in _UPCAST and kwargs.get("dtype") is None:
            args = tuple(_wide(value) for value in args)
            kwargs = {key: _wide(value) for key, value in kwargs.items()}
        if name == "rms_norm":
            return _rms_norm(func, *args, **kwargs)
        return func(*args, **kwargs)


def _wide(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


def _rms_norm(func: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    fused = torch.__version__.split(".")[:2]
    if tuple(int(part) for part in fused) < _FUSED_RMS_SINCE or len(normalized_shape) != 1:
        return func(input, normalized_shape, weight, eps)
    if weight is not None and weight.dtype != input.dtype:
        return func(input, normalized_shape, weight, eps)  # CUDA does not fuse a mixture of dtypes either
    return _FusedRms.apply(  # type: ignore[no-untyped-call]
        input, normalized_shape[0], weight, torch.finfo(torch.float32).eps if eps is None else eps
    )


_attention: Final[Any] = F.scaled_dot_product_attention


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **rest: Any,
) -> Any:
    """Call SDPA without its dropout: CUDA's fused kernels keep a seed for it, the CPU would fall back to eager."""
    return _attention(query, key, value, attn_mask, 0.0, is_causal, **rest)


@contextmanager
def cuda_kernels(wanted: bool) -> Iterator[None]:
    """Run a block with the CPU's kernels saving what CUDA's save; without ``wanted``, as it is."""
    if not wanted:
        yield
        return
    # nn.MultiheadAttention calls SDPA from within a function that has taken the mode off.
    F.scaled_dot_product_attention = attention  # type: ignore[assignment]
    try:
        with CudaFunctions():
            yield
    finally:
        F.scaled_dot_product_attention = _attention
