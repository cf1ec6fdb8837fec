"""Config files and the search, through the command: what they set, what contradicts them, what is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ranktop.tui.plan import plan

BASE = ("--model", "gpt2", "--seq-len", "256")

FEW = "ddp,zero2,zero3-offload,fsdp-full"

DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 1_000_000, "offload_optimizer": {"device": "cpu"}},
}

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_activation_checkpointing: true
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert plan([*BASE, *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert plan([*BASE, *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.fixture
def deepspeed(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEEPSPEED))
    return path


@pytest.fixture
def accelerate(tmp_path: Path) -> Path:
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE)
    return path


def test_deepspeed_s_json_sets_batch_precision_and_zero(capsys: pytest.CaptureFixture[str], deepspeed: Path) -> None:
    answer = asked(capsys, "--deepspeed", str(deepspeed), "--strategy", "ddp,zero3,zero3-offload")
    run = answer["run"]
    assert (run["micro_batch"], run["accumulation"], run["precision"]) == (2, 4, "bf16-master")
    assert run["world_size"] == 4, "32 samples / (2 x 4): the file alone tells how many GPUs are meant"
    assert run["own_strategy"] == "zero3-offload"
    default = asked(capsys, "--world-size", "4", "--micro-batch", "2", "--grad-accum", "4", "--strategy", "zero3")
    small, usual = answer["strategies"][1]["bytes"]["buffers"], default["strategies"][0]["bytes"]["buffers"]
    assert small < usual - 900_000_000, "a bucket of 1e6 elements instead of 5e8, 2 bytes each"


def test_deepspeed_s_batch_numbers_must_agree(capsys: pytest.CaptureFixture[str], deepspeed: Path) -> None:
    line = refused(capsys, "--deepspeed", str(deepspeed), "--world-size", "8")
    assert "train_batch_size 32 is wrong" in line
    assert "64" in line
    line = refused(capsys, "--deepspeed", str(deepspeed), "--micro-batch", "3")
    assert "--micro-batch 3 contradicts" in line
    assert "says 2" in line
    assert "--precision fp32 contradicts" in refused(capsys, "--deepspeed", str(deepspeed), "--precision", "fp32")
    assert "--optimizer sgd contradicts" in refused(capsys, "--deepspeed", str(deepspeed), "--optimizer", "sgd")


def test_what_deepspeed_does_not_know_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**DEEPSPEED, "zero_optimisation": {"stage": 3}}))
    notes = asked(capsys, "--deepspeed", str(path), "--strategy", "single")["run"]["notes"]
    assert any("zero_optimisation" in note for note in notes)


def test_auto_is_what_the_flags_say(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    auto = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping"), "auto")
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**auto, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}))
    run = asked(capsys, "--deepspeed", str(path), "--micro-batch", "3", "--precision", "fp16-master")["run"]
    assert (run["micro_batch"], run["precision"], run["own_strategy"]) == (3, "fp16-master", "zero2")


def test_auto_that_no_flag_answers_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "auto.json"
    auto = {"enabled": "auto"}
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": "auto", "fp16": auto, "bf16": auto}))
    flags = ("--deepspeed", str(path), "--strategy", "zero2", "--world-size", "8")
    run = asked(capsys, *flags)["run"]
    assert run["precision"] == "bf16-master"
    assert "fp16 and bf16 auto: bf16-master taken; --precision says which" in run["notes"]
    assert any("train_micro_batch_size_per_gpu is auto" in note for note in run["notes"])
    notes = asked(capsys, *flags, "--precision", "fp16-master", "--micro-batch", "3")["run"]["notes"]
    assert not any("auto" in note for note in notes)


def test_accelerate_needs_no_batch_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\nnum_processes: 8\n")
    flags = ("--accelerate", str(path), "--strategy", "zero2")
    assert not any("DeepSpeed needs one of them" in note for note in asked(capsys, *flags)["run"]["notes"])
    assert not asked(capsys, *flags, "--micro-batch", "2")["run"]["notes"]


def test_accelerate_s_yaml_sets_ranks_and_sharding(capsys: pytest.CaptureFixture[str], accelerate: Path) -> None:
    answer = asked(capsys, "--accelerate", str(accelerate), "--strategy", "fsdp-full")
    run = answer["run"]
    assert (run["world_size"], run["gpus_per_node"]) == (16, 8)
    assert (run["precision"], run["checkpointing"], run["own_strategy"]) == ("bf16-master", "full", "fsdp-full")
    line = refused(capsys, "--accelerate", str(accelerate), "--checkpointing", "none")
    assert "--checkpointing none contradicts" in line


def test_accelerate_finds_the_deepspeed_json_beside_it(
    capsys: pytest.CaptureFixture[str], deepspeed: Path, tmp_path: Path
) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 4\n"
        f"deepspeed_config:\n  deepspeed_config_file: {deepspeed.name}\n"
    )
    run = asked(capsys, "--accelerate", str(path), "--strategy", "zero3")["run"]
    assert (run["world_size"], run["micro_batch"], run["own_strategy"]) == (4, 2, "zero3-offload")
    deepspeed.unlink()
    assert "no such file" in refused(capsys, "--accelerate", str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("distributed_type: [FSDP\n", "invalid YAML at line"),
        ("a: b: c\n", "invalid YAML at line 1 column 5"),
        ("- 1\n- 2\n", "holds a list; it must hold keys with values"),
        ("", "holds nothing"),
        ("1: 2\n", "the key 1 is not a text"),
        ("distributed_type: FSPD\n", "FSDP"),
        ("some_key: 1\n", "distributed_type"),
    ],
)
def test_yaml_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(text)
    assert says in refused(capsys, "--accelerate", str(path))


def test_torchtitan_s_toml(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("tomllib", reason="new in Python 3.11")
    path = tmp_path / "train.toml"
    path.write_text("[parallelism]\ndata_parallel_shard_degree = 8\n[training]\nlocal_batch_size = 2\nseq_len = 128\n")
    assert plan(["--model", "gpt2", "--accelerate", str(path), "--strategy", "fsdp-full", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert (run["dp"], run["micro_batch"], run["sequence_length"], run["own_strategy"]) == (8, 2, 128, "fsdp-full")
    path.write_text("[parallelism\n")
    assert "invalid TOML" in refused(capsys, "--accelerate", str(path))


def test_two_configs_are_one_too_many(capsys: pytest.CaptureFixture[str], deepspeed: Path, accelerate: Path) -> None:
    assert "leave one out" in refused(capsys, "--deepspeed", str(deepspeed), "--accelerate", str(accelerate))


def test_the_search_puts_what_fits_first(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--world-size", "4", "--device-memory", "4GiB", "--global-batch", "16", "--fit", "--strategy", FEW)
    answer = asked(capsys, *arguments)
    assert set(answer) == {"schema", "model", "run", "fit"}
    found = answer["fit"]
    assert found["global_batch"] == 16
    costs = [float(f"{one['seconds']['total']:.1e}") for one in found["fitting"]]
    assert costs == sorted(costs), "to the two digits that are shown"
    for one in found["fitting"]:
        assert one["total"] + one["headroom"] == 4 * 2**30
        assert one["missing"] == 0
    assert plan([*BASE, *arguments]) == 0
    page = capsys.readouterr().out
    rows = page.split("\n\n")[1].splitlines()[1:]
    assert [row[3:].split("  ")[0] for row in rows[: len(found["fitting"])]] == [
        one["plan"] for one in found["fitting"]
    ]
    assert "16 samples a step" in page


def test_the_search_says_what_is_nearest_when_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--world-size", "4", "--device-memory", "500MiB", "--global-batch", "16", "--fit", "--strategy", FEW)
    nearest = asked(capsys, *arguments)["fit"]["nearest"]
    assert nearest["missing"] == -nearest["headroom"] > 0
    assert plan([*BASE, *arguments]) == 0
    assert "nothing fits for 16 samples a step: " in capsys.readouterr().out


def test_the_search_needs_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--device-memory or --gpu" in refused(capsys, "--fit")
