"""``ranktop.budget`` for scripts: the same answers as ``ranktop plan``, to the byte."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ranktop.budget import STRATEGIES, BadInput, compare, gpu_names, model_names
from ranktop.budget.planning.flags import Flags
from ranktop.tui.plan import plan

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
DEEPSPEED = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(line: str) -> str:
        assert plan(line.split()) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("--model gpt2 --world-size 4 --gpu h100", {"model": "gpt2", "world_size": 4, "gpu": "h100"}),
        ("--params 7.5e9 --world-size 64", {"params": 7.5e9, "world_size": 64}),
        (
            "--params 6.74e9 --layers 32 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000 --seq-len 2048 --strategy "
            "fsdp-full,zero3 --device-memory 40GiB --link 50GB/s --precision fp32 --optimizer sgd --micro-batch 2 "
            "--grad-accum 3 --checkpointing full --checkpoint-every 2 --lora-rank 16",
            {"params": 6.74e9, "layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000,
             "seq_len": 2048, "strategy": ["zero3", "fsdp-full"], "device_memory": 40 * 2**30, "link": 5e10,
             "precision": "fp32", "optimizer": "sgd", "micro_batch": 2, "grad_accum": 3, "checkpointing": "full",
             "checkpoint_every": 2, "lora_rank": 16},
        ),
        ("--model bert-large --tp 2 --sequence-parallel --world-size 4 --strategy zero1,tp",
         {"model": "bert-large", "tp": 2, "sequence_parallel": True, "world_size": 4, "strategy": "tp,zero1"}),
    ],
)  # fmt: skip
def test_the_numbers_are_those_of_the_command(printed: Any, line: str, asked: dict[str, Any]) -> None:
    table = compare(**asked)
    assert json.dumps(table.to_dict(), indent=2) + "\n" == printed(f"{line} --json")
    assert [each.to_dict() for each in table] == table.to_dict()["strategies"]


def test_what_files_hold_is_taken_like_the_files(printed: Any, tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    model, deepspeed = tmp_path / "llama" / "config.json", tmp_path / "ds.json"
    model.write_text(json.dumps(LLAMA))
    deepspeed.write_text(json.dumps(DEEPSPEED))
    line = f"--model {model} --deepspeed {deepspeed} --world-size 2 --json"
    assert json.dumps(compare(model, deepspeed=deepspeed, world_size=2).to_dict(), indent=2) + "\n" == printed(line)
    held = compare(LLAMA, deepspeed=DEEPSPEED, world_size=2)
    assert held["zero2"].to_dict() == compare(model, deepspeed=deepspeed, world_size=2)["zero2"].to_dict()
    assert held.to_dict()["run"]["own_strategy"] == "zero2"
    accelerated = compare(LLAMA, accelerate={"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {}})
    assert accelerated.to_dict()["run"]["world_size"] == 2


def test_it_prints_the_command_s_page(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    table = compare("gpt2", world_size=4, gpu="h100", strategy="zero2,ddp")
    page = printed("--model gpt2 --world-size 4 --gpu h100 --strategy zero2,ddp")
    assert table.text(100) == page
    assert str(table) + "\n" == page
    assert "\n" not in repr(table)


def test_the_search_is_that_of_fit(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    line = "--model gpt2 --world-size 2 --gpu rtx-4090 --global-batch 8 --strategy ddp,zero2 --fit"
    found = compare("gpt2", world_size=2, gpu="rtx-4090", global_batch=8, strategy="ddp,zero2").search()
    assert json.dumps(found.to_dict(), indent=2) + "\n" == printed(f"{line} --json")
    assert found.text(90) == printed(line)
    assert len(found) == len(found.to_dict()["fit"]["fitting"]) > 0
    assert found.configs == found.to_dict()["fit"]["fitting"][0]["configs"]
    assert "<pre>" in found._repr_html_()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_gets_plain_escaped_html() -> None:
    hostile = "<script>alert(1)</script>"
    table = compare({**LLAMA, "_name_or_path": hostile}, world_size=3, gpu="h100")
    page = Tags()
    page.feed(table._repr_html_())
    assert page.open == []
    assert set(page.seen) == {"div", "table", "thead", "tbody", "tr", "th", "td", "b", "i"}
    assert page.seen.count("tr") == 1 + len(STRATEGIES)
    assert hostile in page.text
    refused = [each for each in table if each.refused]
    assert refused, "three GPUs do not divide four heads"
    assert refused[0].refused is not None
    assert refused[0].refused in page.text


def test_what_is_not_known_is_none_with_a_reason() -> None:
    table = compare(params="7.5B", world_size=64)
    zero2 = table["zero2"]
    assert (zero2.total, zero2.fits, zero2.bytes["activations"]) == (None, None, None)
    assert "activations" in zero2.reasons
    assert "fits" in zero2.reasons
    # ZeRO, table 1: 2P + 14P/N of model states, here with P in 16 bits and gradients of a stage-2 bucket apart.
    assert zero2.bytes["parameters"] == 2 * 7_500_000_000
    assert table.best is None
    with pytest.raises(KeyError, match="was not compared; there are single"):
        table["zero9"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "say which model"),
        ({"model": "llama-3-8"}, "did you mean llama-3-8b"),
        ({"model": "gpt2", "seq_len": 99999}, "seq_len 99999: gpt2 has learned positions for 1024 tokens at most"),
        ({"model": "gpt2", "micro_batch": True}, "micro_batch cannot be True"),
        ({"model": "gpt2", "world_size": 2.5}, "world_size must be a whole number, not '2.5'"),
        ({"model": 7}, "model is a path or a dict, not a int"),
        ({"model": "gpt2", "strategy": "zero9"}, "no strategy 'zero9'"),
        ({"model": "gpt2", "strategy": 3}, "strategy is a name or a list of names, not 3"),
        ({"model": "gpt2", "strategy": [3]}, "strategy is a name or a list of names, not [3]"),
        ({"trace": "a:b", "trace_args": [1]}, "trace_args is a dict, not a list"),
        ({"model": {"model_type": "\x1b[2J"}}, "model: ?[2J: unknown model_type '\\x1b[2J'"),
        ({"model": {"model_type": "llama"}}, "model: llama: hidden_size is missing"),
        ({"model": "gpt2", "checkpoint_every": 3}, "checkpoint_every is for checkpointing full"),
    ],
)
def test_a_complaint_is_one_line_in_the_words_of_python(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput) as caught:
        compare(**asked)
    assert told in str(caught.value)
    assert str(caught.value).isprintable()
    assert "--" not in str(caught.value)


def test_without_pandas_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_pandas needs pandas, which is not installed: pip install pandas$"):
        compare("gpt2", strategy="ddp").to_pandas()


def test_every_flag_of_the_command_has_its_keyword() -> None:
    keywords = set(inspect.signature(compare).parameters)
    assert {name.replace("trace_args", "trace_arg") for name in keywords} == set(Flags.__dataclass_fields__)


def test_names_are_listed() -> None:
    assert "llama-3-8b" in model_names()
    assert "h100" in gpu_names()


def test_importing_it_loads_nothing_until_it_is_asked() -> None:
    script = (
        "import sys, ranktop.budget as b; light = {m for m in sys.modules if m.startswith('ranktop.budget.')}; "
        "assert not light, light; assert set(b.__all__) <= set(dir(b)); b.compare('gpt2', strategy='ddp'); "
        "assert not {'yaml', 'pandas', 'numpy', 'torch', 'msgspec'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
