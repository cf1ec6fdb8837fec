"""DeepSpeed's JSON: against DeepSpeed's own defaults and batch arithmetic, and as users write it."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from ranktop.budget.configs.deepspeed import Pieces, Run, plan_pieces, read
from ranktop.budget.configs.deepspeed_batch import Batches
from ranktop.budget.model import BadInput, Model
from ranktop.budget.plan import Zero

WIDE = Model(family="llama", layers=32, hidden=4096)

HUGGING_FACE = """{
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": true}, "offload_param": {"device": "none"},
        "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": true
    },
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false
}"""
"""The ZeRO-3 example of transformers' documentation."""


def pieces(config: dict[str, Any], gpus: int | None = 8, **known: Any) -> Pieces:
    return plan_pieces(read(json.dumps(config), "ds.json"), world_size=gpus, **known)


def refused(config: dict[str, Any] | str, gpus: int = 8) -> str:
    text = config if isinstance(config, str) else json.dumps(config)
    with pytest.raises(BadInput) as error:
        plan_pieces(read(text, "ds.json"), world_size=gpus)
    assert "\n" not in str(error.value)
    return str(error.value)


# -- against DeepSpeed itself ------------------------------------------------------------------------------------------

NAMES = {
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_bucket_size": "allgather_bucket_size",
    "overlap_comm": "overlap_comm",
    "contiguous_gradients": "contiguous_gradients",
    "round_robin_gradients": "round_robin_gradients",
    "sub_group_size": "sub_group_size",
    "parameter_alignment": "parameter_alignment",
    "prefetch_bucket_size": "prefetch_bucket_size",
    "persistence_threshold": "param_persistence_threshold",
    "model_persistence_threshold": "model_persistence_threshold",
    "max_live_parameters": "max_live_parameters",
    "max_reuse_distance": "max_reuse_distance",
    "gather_weights_on_save": "gather_16bit_weights_on_model_save",
}
"""Our field -> DeepSpeed's."""

THEIRS = f"""
import itertools, json, deepspeed, torch
from deepspeed.runtime.config import (
    DEEPSPEED_OPTIMIZERS, DeepSpeedConfig, _REMOVED_TOP_LEVEL_CONFIG_KEYS, _REMOVED_ZERO_CONFIG_KEYS)
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
defaults = {{}}
for stage in range(4):
    config = DeepSpeedZeroConfig(stage=stage)
    defaults[stage] = {{key: getattr(config, key) for key in {list(NAMES.values())!r}}}
batches = []
numbers = [None, 1, 2, 3, 8, 12, 48]
for train, micro, steps in itertools.product(numbers, repeat=3):
    for gpus in (1, 4, 6):
        config = object.__new__(DeepSpeedConfig)
        config.train_batch_size, config.train_micro_batch_size_per_gpu = train, micro
        config.gradient_accumulation_steps, config.world_size = steps, gpus
        try:
            config._configure_train_batch_size()
            found = [config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps]
        except AssertionError:
            found = None
        batches.append([train, micro, steps, gpus, found])
parameters, optimizer = DeepSpeedZeroOffloadParamConfig(), DeepSpeedZeroOffloadOptimizerConfig()
zero_keys = [field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()]
print(json.dumps({{
    "defaults": defaults, "batches": batches, "zero_keys": zero_keys,
    "param": [parameters.buffer_count, parameters.buffer_size, parameters.max_in_cpu, parameters.pin_memory],
    "optimizer": [optimizer.buffer_count, optimizer.pin_memory],
    "offload_keys": [list(type(parameters).model_fields), list(type(optimizer).model_fields)],
    "removed": list(_REMOVED_TOP_LEVEL_CONFIG_KEYS), "removed_zero": list(_REMOVED_ZERO_CONFIG_KEYS),
}}))
"""


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """What the installed DeepSpeed says of itself."""
    pytest.importorskip("pydantic")
    done = subprocess.run([sys.executable, "-c", THEIRS], capture_output=True, text=True, timeout=100, check=False)
    if "No module named 'deepspeed'" in done.stderr:
        pytest.skip("DeepSpeed is not installed")
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_defaults_are_deepspeeds(theirs: dict[str, Any], stage: int) -> None:
    zero = pieces({"train_batch_size": 8, "zero_optimization": {"stage": stage}}).zero
    assert {ours: getattr(zero, ours) for ours in NAMES} == {
        ours: theirs["defaults"][str(stage)][their] for ours, their in NAMES.items()
    }
    assert [zero.nvme_buffer_count, zero.nvme_buffer_size, zero.max_in_cpu, zero.pin_memory] == theirs["param"]
    assert [zero.optimizer_buffer_count, zero.pin_memory] == theirs["optimizer"]


def test_every_zero_key_of_deepspeed_is_known(theirs: dict[str, Any]) -> None:
    skipped = {"offload_param", "offload_optimizer", "zenflow"}
    section = {key: 1 for key in theirs["zero_keys"] if key not in skipped}
    parameters, optimizer = ({key: 1 for key in keys if key != "device"} for keys in theirs["offload_keys"])
    found = pieces({"train_batch_size": 8, "zero_optimization": {**section, "offload_param": parameters,
                                                                  "offload_optimizer": optimizer}})  # fmt: skip
    assert found.unknown == ()
    assert pieces({"train_batch_size": 8, "zero_optimization": {"stage": 2, "zenflow": {}}}).zero.not_budgeted == (
        "ZenFlow",
    )


def test_keys_that_deepspeed_refuses_are_told(theirs: dict[str, Any]) -> None:
    found = pieces({"train_batch_size": 8, **{key: {} for key in theirs["removed"]},
                    "zero_optimization": dict.fromkeys(theirs["removed_zero"], 1)})  # fmt: skip
    refusals = [note for note in found.notes if "no longer supported" in note]
    assert len(refusals) == len(theirs["removed"]) + len(theirs["removed_zero"]) > 10
    assert found.unknown == ()


def test_batch_numbers_are_inferred_as_deepspeed_does(theirs: dict[str, Any]) -> None:
    agreed = refusals = 0
    for train, micro, steps, gpus, found in theirs["batches"]:
        given = Batches(train, micro, steps)
        if train is None and micro is None:
            assert found is None
            assert given.settled(gpus, "ds.json") == given
        elif found is None:
            with pytest.raises(BadInput):
                given.settled(gpus, "ds.json")
            refusals += 1
        else:
            assert given.settled(gpus, "ds.json") == Batches(*found)
            agreed += 1
    assert agreed > 100
    assert refusals > 100


# -- the batch numbers -------------------------------------------------------------------------------------------------


def test_a_contradiction_says_which_number_is_wrong_and_what_it_should_be() -> None:
    batch = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    said = refused(batch, gpus=8)
    assert "train_batch_size 64 is wrong" in said
    assert "4 x gradient_accumulation_steps 1 x 8 data-parallel GPUs = 32" in said
    assert "set train_batch_size to 32" in said
    assert "gradient_accumulation_steps to 2" in said
    assert "train_micro_batch_size_per_gpu to 8" in said


def test_following_the_advice_settles_a_contradiction() -> None:
    for train, micro, steps, gpus in product((6, 40, 64), (1, 3, 4), (1, 2, 5), (1, 4)):
        if train == micro * steps * gpus:
            continue
        with pytest.raises(BadInput) as error:
            Batches(train, micro, steps).settled(gpus, "ds.json")
        right = int(str(error.value).split("set train_batch_size to ")[1].split(",")[0])
        assert Batches(right, micro, steps).settled(gpus, "ds.json").train == right


def test_a_train_batch_that_does_not_divide_names_its_neighbours() -> None:
    said = refused({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, gpus=2)
    assert "multiple of train_micro_batch_size_per_gpu 4 x 2 data-parallel GPUs = 8; set it to 8 or 16" in said


# -- auto --------------------------------------------------------------------------------------------------------------


def test_auto_becomes_what_the_trainer_and_the_model_say() -> None:
    run = Run(micro_batch=4, accumulation=2, precision="bf16-master", gradient_clipping=1.0)
    found = plan_pieces(read(HUGGING_FACE), world_size=8, model=WIDE, run=run)
    assert (found.train_batch, found.micro_batch, found.accumulation) == (64, 4, 2)
    assert (found.precision_name, found.precision.master, found.gradient_clipping) == ("bf16-master", "float32", 1.0)
    zero = found.zero
    assert (zero.reduce_bucket_size, zero.prefetch_bucket_size) == (4096 * 4096, int(0.9 * 4096 * 4096))
    assert (zero.persistence_threshold, zero.sub_group_size) == (40_960, 1_000_000_000)
    assert (zero.offload_optimizer, zero.offload_parameters, zero.gather_weights_on_save) == ("cpu", "none", True)
    assert found.optimizer is not None
    assert found.optimizer.name == "DeepSpeedCPUAdam"
    assert (found.strategy, found.unknown) == ("zero3-offload", ())


def test_auto_without_a_model_takes_deepspeeds_own_and_says_so() -> None:
    found = plan_pieces(read(HUGGING_FACE), world_size=8)
    assert found.zero.reduce_bucket_size == Zero().reduce_bucket_size
    assert found.precision_name == "fp32"
    assert found.micro_batch is None
    assert any("reduce_bucket_size is auto, but the model's width is not known" in note for note in found.notes)
    assert any("train_micro_batch_size_per_gpu is auto, and the trainer's" in note for note in found.notes)
    assert not any("DeepSpeed needs one of them" in note for note in found.notes)


def test_without_any_batch_number_it_says_what_deepspeed_needs() -> None:
    found = plan_pieces(read('{"zero_optimization": {"stage": 2}}'), world_size=8)
    assert any("DeepSpeed needs one of them" in note for note in found.notes)
    given = plan_pieces(read('{"train_micro_batch_size_per_gpu": "auto"}'), world_size=8, run=Run(micro_batch=4))
    assert not any("batch" in note for note in given.notes)
    assert (given.micro_batch, given.train_batch) == (4, 32)


# -- as users write it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["5e8", 5e8, 500000000, "500000000"])
def test_sizes_are_read_however_they_are_written(size: object) -> None:
    assert pieces({"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": size}}).zero == Zero(
        stage=2
    )


def test_null_means_not_given() -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": None, "overlap_comm": None}}
    assert pieces(config).zero == Zero(stage=2)
    assert pieces({"train_batch_size": 8, "zero_optimization": None}).zero == Zero()


def test_deprecated_names_are_understood() -> None:
    section = {"stage": 3, "cpu_offload": True, "cpu_offload_param": True,
               "stage3_gather_fp16_weights_on_model_save": True}  # fmt: skip
    found = pieces({"train_batch_size": 8, "zero_optimization": section})
    zero = found.zero
    assert (zero.offload_optimizer, zero.offload_parameters, zero.gather_weights_on_save) == ("cpu", "cpu", True)
    assert found.unknown == ()
    assert pieces({"train_batch_size": 8, "zero_optimization": True}).zero.stage == 1
    assert pieces({"train_batch_size": 8, "bfloat16": {"enabled": True}}).precision.parameters == "bfloat16"


def test_offload_where_it_does_nothing_is_told() -> None:
    offload = {"device": "cpu"}
    found = pieces({"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": offload}})
    assert found.zero.offload_parameters == "none"
    assert any("offload_param does nothing at stage 2" in note for note in found.notes)
    none = pieces({"train_batch_size": 8, "zero_optimization": {"stage": 0, "offload_optimizer": offload}})
    assert none.zero.offload_optimizer == "none"


def test_unknown_keys_are_listed_by_their_path() -> None:
    found = pieces({
        "train_batch_size": 8, "trian_batch_size": 4, "fp16": {"enabled": True, "loss_scales": 1},
        "zero_optimization": {"stage": 2, "reduce_bucket": 1, "offload_optimizer": {"device": "cpu", "pinned": True}},
    })  # fmt: skip
    assert found.unknown == (
        "trian_batch_size",
        "zero_optimization.reduce_bucket",
        "zero_optimization.offload_optimizer.pinned",
        "fp16.loss_scales",
    )


def test_comments_and_trailing_commas_pass_as_in_deepspeed() -> None:
    text = """{ // the batch
        "train_batch_size": 16, # per step
        /* none yet */ "zero_optimization": {"stage": 2,}, "wandb": {"project": "a//b, #c ,}"},
    }"""
    assert plan_pieces(read(text), world_size=8).zero.stage == 2
    assert read(text).values["wandb"] == {"project": "a//b, #c ,}"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"train_batch_size": 8\n "fp16": {}}', "line 2 column 2"),
        ('{"train_batch_size": 8,', "line 1 column 24"),
        ("", "the file is empty"),
        ("[1]", "holds a list"),
        ('{"train_batch_size": 1, "train_batch_size": 2}', "'train_batch_size' stands there twice"),
        ('{"train_batch_size": 0}', "whole number from 1 on, not 0"),
        ('{"train_batch_size": 1.5}', "train_batch_size must be a whole number"),
        ('{"train_batch_size": true}', "whole number"),
        ('{"train_batch_size": 8, "zero_optimization": {"stage": 4}}', "must be 0, 1, 2 or 3"),
        ('{"train_batch_size": 8, "zero_optimization": {"stage": -1}}', "from 0 on"),
        ('{"train_batch_size": 8, "zero_optimization": 3}', "must be an object"),
        ('{"train_batch_size": 8, "zero_optimization": {"reduce_bucket_size": 0}}', "from 1 on"),
        ('{"train_batch_size": 8, "zero_optimization": {"overlap_comm": "maybe"}}', "true or false"),
        (
            '{"train_batch_size": 8, "zero_optimization": {"offload_optimizer": {"device": "gpu"}}}',
            "'gpu' is not known",
        ),
        ('{"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}}', "both enabled"),
        ('{"train_batch_size": 8, "data_types": {"grad_accum_dtype": "fp8"}}', "grad_accum_dtype 'fp8' is not known"),
        (
            '{"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}}',
            "does not support at stage 0",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(text: str, words: str) -> None:
    said = refused(text)
    assert words in said


# -- precision and optimizers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "stage", "expected"),
    [
        ({"bf16": {"enabled": True}}, 2, ("bfloat16", "float32", "bf16-master")),
        ({"fp16": {"enabled": True}}, 0, ("float16", "float32", "fp16-master")),
        ({}, 2, ("float32", "float32", "fp32")),
        ({}, 0, ("float32", None, "fp32")),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, 2, ("bfloat16", "bfloat16", "bf16")),
        ({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, 0, ("float32", None, "amp-bf16")),
    ],
)
def test_precision(config: dict[str, Any], stage: int, expected: tuple[str, str | None, str]) -> None:
    found = pieces({"train_batch_size": 8, "zero_optimization": {"stage": stage}, **config})
    assert (found.precision.parameters, found.precision.master, found.precision_name) == expected


def test_fp32_accumulation_changes_the_wrapper_of_stage_1_alone() -> None:
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    wrappers = {stage: pieces({**config, "zero_optimization": {"stage": stage}}).zero.wrapper for stage in (1, 2, 3)}
    assert wrappers == {1: "BF16_Optimizer", 2: "", 3: ""}
    offloaded = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    assert pieces({**config, "zero_optimization": offloaded}).zero.wrapper == ""


@pytest.mark.parametrize(
    ("kind", "parameters", "offload", "name"),
    [
        ("AdamW", {}, "none", "FusedAdam"),
        ("Adam", {"torch_adam": True}, "none", "AdamW"),
        ("Adam", {"torch_adam": True, "adam_w_mode": False}, "none", "Adam"),
        ("AdamW", {}, "cpu", "DeepSpeedCPUAdam"),
        ("Lion", {}, "none", "FusedLion"),
        ("Lion", {}, "cpu", "DeepSpeedCPULion"),
        ("Lamb", {}, "none", "FusedLamb"),
        ("OneBitAdam", {}, "none", "OneBitAdam"),
        ("SGD", {"momentum": 0.9}, "none", "SGD"),
        ("Adagrad", {}, "cpu", "DeepSpeedCPUAdagrad"),
    ],
)
def test_optimizers(kind: str, parameters: dict[str, Any], offload: str, name: str) -> None:
    found = pieces({
        "train_batch_size": 8, "bf16": {"enabled": True}, "optimizer": {"type": kind, "params": parameters},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": offload}},
    }).optimizer  # fmt: skip
    assert found is not None
    assert (found.name, found.count) == (name, 1)
    assert found.options.get("momentum") == parameters.get("momentum")


def test_cpu_adam_keeps_fp32_states_of_bf16_masters_unless_told_otherwise() -> None:
    def states(**more: bool) -> list[str | None]:
        found = pieces({
            "train_batch_size": 8, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, **more},
            "optimizer": {"type": "AdamW"},
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        }).optimizer  # fmt: skip
        assert found is not None
        return [state.dtype for state in found.states]

    assert states() == ["float32", "float32"]
    assert states(bf16_optimizer_states=True) == []


def test_sections_that_hold_no_memory_by_themselves_are_told() -> None:
    found = pieces({
        "train_batch_size": 8, "wall_clock_breakdown": True, "zero_allow_untested_optimizer": True,
        "activation_checkpointing": {"cpu_checkpointing": True, "number_checkpoints": 4},
        "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8},
    })  # fmt: skip
    assert found.unknown == ()
    assert found.zero.not_budgeted == ("zero_hpz_partition_size",)
    notes = " ".join(found.notes)
    assert "wall_clock_breakdown: timers" in notes
    assert "nothing is recomputed by this section alone" in notes
    assert "go to the host" in notes
