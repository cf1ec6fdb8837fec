"""What a user types wrong: one line on standard error that says what and what to do, exit code 2, nothing printed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ranktop.tui.plan import plan

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 128,
}  # fmt: skip


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command and return its complaint, which is one line and all that is said."""
    assert plan(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("ranktop: ")
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--model NAME"),
        (["--model", ""], "--model NAME"),
        (["--model", "lama-3-8b"], "llama-3-8b"),
        (["--model", "llama-3-8b", "--params", "7e9"], "leave one out"),
        (["--model", "llama-3-8b", "--layers", "3"], "--layers is for --params"),
        (["--modle", "x"], "did you mean --model"),
        (["--model"], "--model needs a value"),
        (["llama-3-8b"], "--model llama-3-8b"),
        (["--model", "llama-3-8b", "--strategy", "zero9"], "did you mean zero"),
        (["--model", "llama-3-8b", "--strategy", " , "], "--strategy is empty"),
        (["--model", "llama-3-8b", "--precision", "fp64"], "bf16-master"),
        (["--model", "llama-3-8b", "--optimizer", "adamm"], "did you mean adam"),
        (["--model", "llama-3-8b", "--checkpointing", "some"], "none, selective, full"),
        (["--model", "llama-3-8b", "--attention", "fast"], "sdpa, eager, flash"),
        (["--model", "gpt2", "--fit-plan", "2"], "--fit-plan is for --fit"),
        (["--model", "gpt2", "--checkpoint-every", "2"], "--checkpoint-every is for --checkpointing full"),
        (
            ["--model", "gpt2", "--checkpoint-every", "2", "--checkpointing", "selective"],
            "--checkpoint-every is for --checkpointing full",
        ),
        (["--params", "seven"], "like 7.5e9"),
        (["--params", "7.5X"], "like 7.5e9"),
        (["--params", "-7e9"], "like 7.5e9"),
        (["--params", "0"], "cannot be meant"),
        (["--params", "nan"], "like 7.5e9"),
        (["--params", "1e400"], "cannot be meant"),
        (["--params", "1e30"], "cannot be meant"),
        (["--params", "1e18"], "at most"),
        (["--params", "7e9", "--layers", "3"], "--hidden, --heads, --vocab"),
        (["--params", "7e9", "--layers", "2", "--hidden", "64", "--heads", "4", "--vocab", "99"], "not of that shape"),
        (["--params", "7e9", "--layers", "2", "--hidden", "65", "--heads", "4", "--vocab", "99"], "does not divide"),
    ],
)
def test_what_names_nothing(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert says in complaint(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--world-size", "0"], "--world-size must be at least 1, not 0"),
        (["--world-size", "-8"], "--world-size must be at least 1, not -8"),
        (["--world-size", "eight"], "--world-size must be a whole number"),
        (["--world-size", "2.5"], "--world-size must be a whole number"),
        (["--world-size", "1e12"], "at most"),
        (["--world-size", "99999999999999999999999999"], "at most"),
        (["--micro-batch", "-3"], "--micro-batch must be at least 1"),
        (["--micro-batch", "1e9"], "at most"),
        (["--seq-len", "0"], "--seq-len must be at least 1"),
        (["--seq-len", "1e12"], "at most"),
        (["--grad-accum", "0"], "--grad-accum must be at least 1"),
        (["--lora-rank", "0"], "--lora-rank must be at least 1"),
        (["--device-memory", "-80GiB"], "--device-memory"),
        (["--device-memory", "many"], "--device-memory"),
        (["--device-memory", "80"], "80GiB"),
        (["--device-memory", "1e9GiB"], "at most"),
        (["--gpu", "h1000"], "h100"),
        (["--gpu", "v100"], "v100-16"),
        (["--link", "400"], "400Gb/s"),
        (["--link", "0Gb/s"], "more than 0"),
        (["--link", "4e20GB/s"], "at most"),
        (["--world-size", "8", "--tp", "3"], "does not divide the world size 8"),
        (["--world-size", "5", "--tp", "5"], "does not divide the 32 heads"),
        (["--world-size", "8", "--dp", "4", "--tp", "4"], "does not divide the world size 8"),
        (["--world-size", "8", "--dp", "2", "--tp", "2", "--pp", "1"], "is not the world size 8"),
        (["--world-size", "64", "--pp", "64"], "more than the 32 layers"),
        (["--world-size", "8", "--ep", "2"], "no experts"),
        (["--world-size", "8", "--global-batch", "100", "--strategy", "ddp"], "--global-batch: 100 samples"),
    ],
)
def test_what_cannot_be_meant(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert says in complaint(capsys, "--model", "llama-3-8b", *arguments)


@pytest.mark.parametrize("flag", ["--model", "--deepspeed", "--accelerate"])
def test_files_that_are_not_there_or_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str) -> None:
    base = [] if flag == "--model" else ["--model", "llama-3-8b"]
    assert "no such file" in complaint(capsys, *base, flag, str(tmp_path / "missing.json"))
    wanted = "no config.json in that folder" if flag == "--model" else "is a directory"
    assert wanted in complaint(capsys, *base, flag, str(tmp_path))
    binary = tmp_path / "weights.json"
    binary.write_bytes(b"\x80\x81\xff")
    assert "is not text" in complaint(capsys, *base, flag, str(binary))
    assert "cannot be read" in complaint(capsys, *base, flag, str(binary / "below"))
    # Root reads everything: what the mode forbids can only be tried as someone else.
    if os.geteuid() != 0:
        binary.chmod(0)
        assert "permission denied" in complaint(capsys, *base, flag, str(binary))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n  "model_type": "llama",\n  "hidden_size": 64,,\n}', "invalid JSON at line 3 column 21"),
        ("", "the file is empty"),
        ("[1, 2]", "holds a list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' stands there twice"),
        ("{'hidden_size': 1}", "invalid JSON at line 1 column 2"),
    ],
)
@pytest.mark.parametrize("flag", ["--model", "--deepspeed"])
def test_json_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    base = [] if flag == "--model" else ["--model", "llama-3-8b"]
    line = complaint(capsys, *base, flag, str(path))
    assert says in line
    assert str(path) in line


@pytest.mark.parametrize("lacks", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_a_config_that_lacks_a_field_names_file_and_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lacks: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in LLAMA.items() if key != lacks}))
    line = complaint(capsys, "--model", str(path))
    assert lacks in line
    assert str(path) in line


def test_an_unknown_architecture_names_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "perceptron"}))
    assert "perceptron" in complaint(capsys, "--model", str(path))


def test_a_checkpoint_s_folder_is_its_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert plan(["--model", str(tmp_path), "--strategy", "single"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path.name}: ")


def test_a_complaint_stays_one_line_whatever_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in complaint(capsys, "--model", "x\n\x1b[31my")
    assert "\x1b" not in complaint(capsys, "--mo\x1bdel\n", "x")


def test_an_accelerate_config_is_sent_to_its_own_flag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: DEEPSPEED\n")
    line = complaint(capsys, "--model", "gpt2", "--deepspeed", str(path))
    assert f"--accelerate {path}" in line
    path.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert plan(["--model", "gpt2", "--deepspeed", str(path), "--strategy", "zero2"]) == 0
