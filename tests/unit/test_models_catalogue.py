"""The catalogue's parameter counts against the published ones."""

from __future__ import annotations

import pytest

from ranktop.budget.model import BadInput
from ranktop.budget.models.catalogue import find, names
from ranktop.budget.models.tensors import count, tensors

# Of the published checkpoints' tensors, tied ones once (hubs count a tied head twice where the file stores it).
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x22b-instruct": 140_630_071_296,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "phi-3-mini": 3_821_079_552,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "vit-h-14": 632_045_800,
}

# Narayanan et al. 2021 (arXiv:2104.04473), equation 2, without biases of the final norm: 12 l h^2 (1 + 13 / 12h +
# (V + s) / 12lh). The final norm's 2h come on top; GPT-3's published 175 billion are rounded.
PAPERS = {
    "gpt3-175b": (96, 12288, 50257),
    "megatron-22b": (48, 6144, 51200),
    "megatron-175b": (96, 12288, 51200),
    "megatron-530b": (105, 20480, 51200),
    "megatron-1t": (128, 25600, 51200),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_the_published_number_of_parameters(name: str) -> None:
    model = find(name)
    assert model.name == name
    assert count(model) == PUBLISHED[name] == sum(tensor.numel for tensor in tensors(model))


@pytest.mark.parametrize("name", PAPERS)
def test_a_model_of_the_papers_has_the_parameters_of_their_formula(name: str) -> None:
    layers, h, vocab = PAPERS[name]
    assert count(find(name)) == 12 * layers * h * h + 13 * layers * h + (vocab + 2048) * h + 2 * h


def test_every_name_is_checked_by_one_of_the_two() -> None:
    assert set(names()) == set(PUBLISHED) | set(PAPERS)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b-instruct"),
        ("llama3-8b", "llama-3-8b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("google-t5/t5-base", "t5-base"),
        (" GPT2 ", "gpt2"),
    ],
)
def test_a_model_is_found_as_its_hub_calls_it(spelling: str, name: str) -> None:
    assert find(spelling).name == name


def test_an_unknown_name_is_refused_with_close_ones() -> None:
    with pytest.raises(BadInput, match=r"^unknown model 'lama-3-8b'; did you mean llama-3-8b or "):
        find("lama-3-8b")
    with pytest.raises(BadInput, match=r"^unknown model 'zzz'; known are gpt2, "):
        find("zzz")
    with pytest.raises(BadInput, match="unknown model ''"):
        find("")


def test_a_caller_may_change_what_it_found() -> None:
    find("llama-3-8b").options["qkv_bias"] = True
    assert count(find("llama-3-8b")) == PUBLISHED["llama-3-8b"]
