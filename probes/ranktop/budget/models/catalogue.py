"""Well-known models by name. Sizes are those of the published configs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ranktop.budget.model import BadInput, Model
from ranktop.budget.models.huggingface import model_of

Config = Mapping[str, Any]


def _config(
    kind: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, positions: int, **more: Any
) -> Config:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        **more,
    }


def _gpt2(layers: int, hidden: int, heads: int) -> Config:
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": 50257}


def _t5(layers: int, hidden: int, heads: int, head_dim: int, ffn: int) -> Config:
    sizes = {"num_layers": layers, "d_model": hidden, "num_heads": heads, "d_kv": head_dim, "d_ff": ffn}
    return {"model_type": "t5", "vocab_size": 32128, **sizes}


def _vit(layers: int, hidden: int, heads: int, patch: int) -> Config:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return {"model_type": "vit", **sizes, "intermediate_size": 4 * hidden, "patch_size": patch, "num_labels": 1000}


_MOE: Final = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_TIED: Final = {"tie_word_embeddings": True}

_CONFIGS: Final[dict[str, Config]] = {
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "gpt-neox-20b": _config("gpt_neox", 44, 6144, 64, 64, 24576, 50432, 2048),
    "llama-2-7b": _config("llama", 32, 4096, 32, 32, 11008, 32000, 4096),
    "llama-2-13b": _config("llama", 40, 5120, 40, 40, 13824, 32000, 4096),
    "llama-2-70b": _config("llama", 80, 8192, 64, 8, 28672, 32000, 4096),
    "llama-3-8b": _config("llama", 32, 4096, 32, 8, 14336, 128256, 8192),
    "llama-3-70b": _config("llama", 80, 8192, 64, 8, 28672, 128256, 8192),
    "llama-3.1-8b": _config("llama", 32, 4096, 32, 8, 14336, 128256, 131072),
    "llama-3.1-70b": _config("llama", 80, 8192, 64, 8, 28672, 128256, 131072),
    "llama-3.1-405b": _config("llama", 126, 16384, 128, 8, 53248, 128256, 131072),
    "llama-3.2-1b": _config("llama", 16, 2048, 32, 8, 8192, 128256, 131072, **_TIED),
    "llama-3.2-3b": _config("llama", 28, 3072, 24, 8, 8192, 128256, 131072, **_TIED),
    "mistral-7b": _config("mistral", 32, 4096, 32, 8, 14336, 32000, 32768),
    "mistral-7b-v0.3": _config("mistral", 32, 4096, 32, 8, 14336, 32768, 32768),
    "mixtral-8x7b": _config("mixtral", 32, 4096, 32, 8, 14336, 32000, 32768, num_local_experts=8),
    "mixtral-8x22b": _config("mixtral", 56, 6144, 48, 8, 16384, 32000, 65536, num_local_experts=8),
    "mixtral-8x22b-instruct": _config("mixtral", 56, 6144, 48, 8, 16384, 32768, 65536, num_local_experts=8),
    "qwen2.5-0.5b": _config("qwen2", 24, 896, 14, 2, 4864, 151936, 32768, **_TIED),
    "qwen2.5-7b": _config("qwen2", 28, 3584, 28, 4, 18944, 152064, 131072),
    "qwen2.5-72b": _config("qwen2", 80, 8192, 64, 8, 29568, 152064, 131072),
    "qwen3-0.6b": _config("qwen3", 28, 1024, 16, 8, 3072, 151936, 40960, head_dim=128, **_TIED),
    "qwen3-8b": _config("qwen3", 36, 4096, 32, 8, 12288, 151936, 40960, head_dim=128),
    "qwen3-32b": _config("qwen3", 64, 5120, 64, 8, 25600, 151936, 40960, head_dim=128),
    "qwen3-30b-a3b": _config("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, 40960, head_dim=128, **_MOE),
    "gemma-7b": _config("gemma", 28, 3072, 16, 16, 24576, 256000, 8192, head_dim=256),
    "gemma-2-9b": _config("gemma2", 42, 3584, 16, 8, 14336, 256000, 8192, head_dim=256),
    "gemma-2-27b": _config("gemma2", 46, 4608, 32, 16, 36864, 256000, 8192, head_dim=128),
    "gemma-3-1b": _config("gemma3_text", 26, 1152, 4, 1, 6912, 262144, 32768, head_dim=256),
    "phi-3-mini": _config("phi3", 32, 3072, 32, 32, 8192, 32064, 4096),
    "bert-base": _config("bert", 12, 768, 12, 12, 3072, 30522, 512),
    "bert-large": _config("bert", 24, 1024, 16, 16, 4096, 30522, 512),
    "t5-small": _t5(6, 512, 8, 64, 2048),
    "t5-base": _t5(12, 768, 12, 64, 3072),
    "t5-large": _t5(24, 1024, 16, 64, 4096),
    "t5-3b": _t5(24, 1024, 32, 128, 16384),
    "t5-11b": _t5(24, 1024, 128, 128, 65536),
    "vit-b-16": _vit(12, 768, 12, 16),
    "vit-l-16": _vit(24, 1024, 16, 16),
    "vit-h-14": _vit(32, 1280, 16, 14),
}


def _megatron(name: str, layers: int, hidden: int, heads: int) -> Model:
    """Return a model of Korthikanti et al. 2022 (arXiv:2205.05198), table 3: 2048 tokens, a vocabulary of 51200."""
    return Model(
        name=name, family="megatron-gpt", layers=layers, hidden=hidden, heads=heads, kv_heads=heads,
        head_dim=hidden // heads, ffn=4 * hidden, vocab=51200, positions=2048, tied=True, dropout=0.1,
    )  # fmt: skip


_OTHERS: Final[dict[str, Callable[[], Model]]] = {
    "gpt3-175b": lambda: Model(
        name="gpt3-175b", family="gpt", layers=96, hidden=12288, heads=96, kv_heads=96, head_dim=128, ffn=49152,
        vocab=50257, positions=2048, tied=True,
    ),
    "megatron-22b": lambda: _megatron("megatron-22b", 48, 6144, 64),
    "megatron-175b": lambda: _megatron("megatron-175b", 96, 12288, 96),
    "megatron-530b": lambda: _megatron("megatron-530b", 105, 20480, 128),
    "megatron-1t": lambda: _megatron("megatron-1t", 128, 25600, 160),
}  # fmt: skip

_ALIASES: Final = {
    "gpt2-small": "gpt2", "gpt-2": "gpt2", "gpt3": "gpt3-175b", "gpt-3": "gpt3-175b", "gpt-3-175b": "gpt3-175b",
    "llama-7b": "llama-2-7b", "llama-3.1-405b-fp8": "llama-3.1-405b", "bert-base-uncased": "bert-base",
    "bert-large-uncased": "bert-large", "vit-base-patch16-224": "vit-b-16", "vit-large-patch16-224": "vit-l-16",
    "vit-huge-patch14-224": "vit-h-14", "phi-3-mini-4k": "phi-3-mini", "mt-nlg-530b": "megatron-530b",
}  # fmt: skip

_ENDINGS: Final = re.compile(r"-(instruct|chat|hf|it|base|v0\.[12]|\d{4})$")


def names() -> tuple[str, ...]:
    """Return every name, family by family."""
    return (*_CONFIGS, *_OTHERS)


def find(name: str) -> Model:
    """Return a model by its name, also as a hub calls it (``meta-llama/Meta-Llama-3-8B-Instruct``).

    Raises BadInput with the closest names.
    """
    for key in _spellings(name):
        key = _ALIASES.get(key, key)
        if key in _CONFIGS:
            return model_of(_CONFIGS[key], key)
        if key in _OTHERS:
            return _OTHERS[key]()
    import difflib

    close = difflib.get_close_matches(_spellings(name)[-1], names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names())}"
    raise BadInput(f"unknown model {name!r}; {hint}")


def _spellings(name: str) -> list[str]:
    """Return a name without owner and case, then also without the endings that say nothing about the shape."""
    plain = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").removeprefix("meta-")
    found = [re.sub(r"^(llama|gemma|phi)(\d)", r"\1-\2", plain)]
    while (shorter := _ENDINGS.sub("", found[-1])) != found[-1]:
        found.append(shorter)
    return found
