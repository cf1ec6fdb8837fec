"""Accelerate's, the Trainer's and torchtitan's configs as runs, and plans as configs that can be read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ranktop.budget.configs import deepspeed as deepspeed
from ranktop.budget.configs.accelerate import read_accelerate
from ranktop.budget.configs.lines import KINDS, config_lines, deepspeed_json, kinds_for
from ranktop.budget.configs.setup import Setup
from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.plan import Batch, Ddp, Fsdp, Layout, Pipeline, Plan, Precision, Zero

FSDP2 = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
"""As ``accelerate config`` writes it."""


def read(text: str) -> Setup:
    return read_accelerate(yaml.safe_load(text), "a.yaml")


def changed(**values: Any) -> Setup:
    data = yaml.safe_load(FSDP2)
    for key, value in values.items():
        target = data["fsdp_config"] if key.startswith("fsdp_") else data
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
    return read_accelerate(data, "a.yaml")


def test_fsdp2_as_accelerate_writes_it() -> None:
    found = read(FSDP2)
    assert found.strategy == "fsdp-full"
    assert found.fsdp == Fsdp(version=2, sharding="full", reduce_dtype="bfloat16")
    assert found.precision == "bf16-master"
    assert (found.world_size, found.nodes, found.gpus_per_node) == (16, 2, 8)
    assert found.checkpointing == "full"
    assert found.unknown == ()


def test_fsdp2_that_keeps_parameters_and_offloads() -> None:
    found = changed(fsdp_reshard_after_forward="false", fsdp_offload_params=True, mixed_precision="no")
    assert found.strategy == "fsdp-grad-op"
    assert found.fsdp == Fsdp(version=2, sharding="grad-op", cpu_offload=True)
    assert found.precision == "fp32"


@pytest.mark.parametrize(
    ("value", "sharding", "strategy"),
    [
        ("FULL_SHARD", "full", "fsdp-full"),
        ("2", "grad-op", "fsdp-grad-op"),
        ("hybrid_shard", "hybrid", "fsdp-hybrid"),
        (5, "hybrid-grad-op", "fsdp-hybrid"),
    ],
)
def test_fsdp1_by_name_and_number(value: object, sharding: str, strategy: str) -> None:
    found = changed(fsdp_version=1, fsdp_reshard_after_forward=None, fsdp_sharding_strategy=value,
                    fsdp_backward_prefetch="BACKWARD_PRE", fsdp_use_orig_params="false")  # fmt: skip
    assert found.fsdp == Fsdp(version=1, sharding=sharding, use_orig_params=False, reduce_dtype="bfloat16")
    assert found.strategy == strategy


def test_fsdp1_without_sharding_is_ddp() -> None:
    found = changed(fsdp_version=1, fsdp_reshard_after_forward="NO_SHARD", fsdp_sharding_strategy="NO_SHARD")
    assert found.strategy == "ddp"
    assert found.fsdp is None
    assert found.precision == "amp-bf16"


def test_fsdp_has_version_1_unless_it_says_so() -> None:
    assert changed(fsdp_version=None, fsdp_reshard_after_forward="SHARD_GRAD_OP").fsdp == Fsdp(
        version=1, sharding="grad-op", prefetch=False, reduce_dtype="bfloat16"
    )


def test_launch_lets_the_default_strategy_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note about ``fsdp_reshard_after_forward`` under FSDP1, against Accelerate itself."""
    accelerate = pytest.importorskip("accelerate")
    if accelerate.__version__ != "1.15.0":
        pytest.skip("the note speaks of Accelerate 1.15")
    launch = pytest.importorskip("accelerate.commands.launch")
    arguments = launch.launch_command_parser().parse_args(["--use_fsdp", "--fsdp_version", "1", "train.py"])
    monkeypatch.setenv("FSDP_VERSION", "1")
    monkeypatch.setenv("FSDP_SHARDING_STRATEGY", arguments.fsdp_sharding_strategy)
    monkeypatch.setenv("FSDP_RESHARD_AFTER_FORWARD", "SHARD_GRAD_OP")
    plugin = accelerate.FullyShardedDataParallelPlugin()
    assert (plugin.sharding_strategy or plugin.reshard_after_forward).name == "FULL_SHARD"
    found = changed(fsdp_version=1, fsdp_reshard_after_forward="SHARD_GRAD_OP")
    assert any("fsdp_sharding_strategy FULL_SHARD" in note for note in found.notes)


def test_unknown_keys_are_listed() -> None:
    found = changed(fsdp_shard_optimizer=True, gpus=8)
    assert found.unknown == ("gpus", "fsdp_config.fsdp_shard_optimizer")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_processes": 15}, "num_processes 15 cannot be shared out evenly over num_machines 2"),
        ({"num_processes": "many"}, "num_processes must be a whole number"),
        ({"num_processes": True}, "num_processes must be a whole number"),
        ({"distributed_type": "FSPD"}, "did you mean FSDP"),
        ({"distributed_type": "NO"}, "NO contradicts num_processes 16"),
        ({"distributed_type": "XLA"}, "TPU"),
        ({"mixed_precision": "bf61"}, "did you mean bf16"),
        ({"fsdp_version": 3}, "must be 1 or 2"),
        ({"fsdp_reshard_after_forward": "FULL_SHARD"}, "is FSDP1's"),
        ({"fsdp_version": 1}, "is FSDP2's"),
        (
            {"fsdp_version": 1, "fsdp_reshard_after_forward": "FULL_SHARD", "fsdp_sharding_strategy": "SHARD_GRAD_OP"},
            "contradicts",
        ),
        ({"fsdp_offload_params": "perhaps"}, "must be true or false"),
        ({"fsdp_activation_checkpointing": False, "fsdp_activation_checkpointing_offload": True}, "needs"),
        ({"parallelism_config": {"parallelism_config_dp_shard_size": 3}}, "3 ranks, num_processes says 16"),
        ({"fsdp_config": 3}, "fsdp_config must be a mapping"),
    ],
)
def test_contradictions_are_one_line(values: dict[str, Any], words: str) -> None:
    if "fsdp_config" in values:
        values = {}
        with pytest.raises(BadInput, match="must be a mapping"):
            read_accelerate({**yaml.safe_load(FSDP2), "fsdp_config": 3}, "a.yaml")
        return
    with pytest.raises(BadInput, match=words) as caught:
        changed(**values)
    assert str(caught.value).startswith("a.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [None, 3, [], "FSDP", {}, {"model": "llama"}])
def test_what_is_no_config(data: object) -> None:
    with pytest.raises(BadInput):
        read_accelerate(data)


def test_hybrid_by_parallelism_config() -> None:
    found = changed(
        parallelism_config={
            "parallelism_config_dp_replicate_size": 2,
            "parallelism_config_dp_shard_size": 4,
            "parallelism_config_tp_size": 2,
        }
    )
    assert (found.strategy, found.replicate, found.data, found.tensor) == ("fsdp-hybrid", 2, 8, 2)
    assert found.fsdp is not None
    assert found.fsdp.sharding == "hybrid"


def test_deepspeed_in_the_yaml() -> None:
    found = read(
        """
        distributed_type: DEEPSPEED
        deepspeed_config:
          gradient_accumulation_steps: 4
          gradient_clipping: 1.0
          offload_optimizer_device: nvme
          offload_optimizer_nvme_path: /disk
          offload_param_device: cpu
          zero3_init_flag: true
          zero3_save_16bit_model: true
          zero_stage: 3
        mixed_precision: fp16
        num_machines: 1
        num_processes: 8
        """
    )
    assert found.strategy == "zero-infinity"
    assert found.accumulation == 4
    assert found.precision == "fp16-master"
    assert found.unknown == ()
    assert found.deepspeed == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "fp16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/disk"},
            "offload_param": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }


def test_deepspeed_stage_2_by_default_and_parameters_stay() -> None:
    found = read("{distributed_type: DEEPSPEED, deepspeed_config: {offload_param_device: cpu}, num_processes: 2}")
    assert found.strategy == "zero2"
    assert found.notes == ("offload_param_device cpu makes no difference with zero_stage 2",)


def test_deepspeed_by_a_file_alone() -> None:
    text = "{distributed_type: DEEPSPEED, deepspeed_config: {deepspeed_config_file: ds.json%s}, num_processes: 2}"
    assert read(text % "").deepspeed_file == "ds.json"
    with pytest.raises(BadInput, match="zero_stage"):
        read(text % ", zero_stage: 3")


def test_ddp_and_one_process() -> None:
    found = read("{distributed_type: MULTI_GPU, mixed_precision: fp16, num_processes: 4, fsdp_config: {}}")
    assert (found.strategy, found.precision, found.world_size) == ("ddp", "amp-fp16", 4)
    assert read("{distributed_type: 'NO'}").strategy == "single"


def test_megatron() -> None:
    found = read(
        """
        distributed_type: MEGATRON_LM
        megatron_lm_config:
          megatron_lm_gradient_clipping: 1.0
          megatron_lm_num_micro_batches: 8
          megatron_lm_pp_degree: 2
          megatron_lm_recompute_activations: true
          megatron_lm_sequence_parallelism: true
          megatron_lm_tp_degree: 4
          megatron_lm_use_distributed_optimizer: true
        mixed_precision: bf16
        num_processes: 16
        """
    )
    assert (found.strategy, found.data, found.tensor, found.pipeline) == ("3d", 2, 4, 2)
    assert (found.accumulation, found.checkpointing, found.sequence_parallel) == (8, "selective", "megatron")
    assert (found.stack, found.precision) == ("megatron", "bf16-master")
    with pytest.raises(BadInput, match="does not divide num_processes 10"):
        read("{distributed_type: MEGATRON_LM, megatron_lm_config: {megatron_lm_tp_degree: 4}, num_processes: 10}")


def test_trainer_words_and_config() -> None:
    found = read("{fsdp: full_shard auto_wrap offload, bf16: true, gradient_checkpointing: true, "
                 "per_device_train_batch_size: 2, gradient_accumulation_steps: 4}")  # fmt: skip
    assert found.fsdp == Fsdp(version=2, cpu_offload=True, reduce_dtype="bfloat16")
    assert (found.strategy, found.precision, found.checkpointing) == ("fsdp-full", "bf16-master", "full")
    assert (found.micro_batch, found.accumulation) == (2, 4)
    found = read("{fsdp: true, fsdp_config: {version: 1, reshard_after_forward: hybrid_shard, wrap: a}}")
    assert found.fsdp == Fsdp(version=1, sharding="hybrid", prefetch=False)
    assert found.unknown == ("fsdp_config.wrap",)
    assert read("{fsdp: '', fp16: true}").precision == "amp-fp16"
    for text, words in (
        ("{fsdp: full_shard shard_grad_op}", "two sharding strategies"),
        ("{fsdp: fully_shard}", "does not know 'fully_shard'"),
        ("{fsdp: hybrid_shard}", "is FSDP1's"),
        ("{fsdp: full_shard, bf16: true, fp16: true}", "bf16 contradicts fp16"),
    ):
        with pytest.raises(BadInput, match=words):
            read(text)


def test_torchtitan() -> None:
    found = read_accelerate(
        {
            "parallelism": {
                "data_parallel_replicate_degree": 2,
                "data_parallel_shard_degree": 4,
                "tensor_parallel_degree": 2,
                "fsdp_reshard_after_forward": "never",
            },
            "training": {"local_batch_size": 3, "seq_len": 4096, "mixed_precision_reduce": "bfloat16"},
            "activation_checkpoint": {"mode": "selective"},
        }
    )
    assert found.fsdp == Fsdp(sharding="hybrid-grad-op", reduce_dtype="bfloat16")
    assert (found.world_size, found.data, found.replicate, found.tensor) == (16, 8, 2, 2)
    assert (found.micro_batch, found.sequence_length, found.checkpointing) == (3, 4096, "selective")
    assert found.notes == ()


MIXED = Precision(compute="bfloat16", reduce="float32")
HALF = Precision(parameters="bfloat16", master="float32")


def plan(**values: Any) -> Plan:
    return Plan(**{"layout": Layout(world_size=8, shard=8), "batch": Batch(micro_batch=2, accumulation=3), **values})


HYBRID = Layout(world_size=8, replicate=2, shard=4)

PLANS: dict[str, Plan] = {
    "ddp": plan(strategy="ddp", layout=Layout(world_size=8, replicate=8), ddp=Ddp(),
                precision=Precision(autocast="bfloat16")),
    "full": plan(strategy="fsdp2", fsdp=Fsdp(), precision=MIXED, checkpointing="full"),
    "grad-op": plan(strategy="fsdp2", fsdp=Fsdp(sharding="grad-op", cpu_offload=True)),
    "hybrid": plan(strategy="fsdp2", layout=HYBRID, fsdp=Fsdp(sharding="hybrid"), precision=MIXED),
    "fsdp1": plan(strategy="fsdp1", fsdp=Fsdp(version=1, sharding="hybrid-grad-op"), precision=MIXED, layout=HYBRID),
    "zero2": plan(strategy="zero2", zero=Zero(stage=2, offload_optimizer="cpu"), precision=HALF),
    "zero3": plan(strategy="zero3", precision=HALF,
                  zero=Zero(stage=3, overlap_comm=True, offload_optimizer="nvme", offload_parameters="nvme")),
    "zero3 tuned": plan(strategy="zero3", precision=HALF,
                        zero=Zero(stage=3, overlap_comm=True, reduce_bucket_size=1000, prefetch_bucket_size=5,
                                  persistence_threshold=7, max_live_parameters=9, max_reuse_distance=11,
                                  sub_group_size=13, communication_dtype="float32")),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in PLANS if name != "zero3 tuned"])
def test_accelerate_lines_are_read_back(name: str) -> None:
    wanted = PLANS[name]
    found = read("\n".join(config_lines(wanted, "accelerate")))
    assert found.unknown == ()
    assert found.world_size == 8
    if wanted.fsdp is not None:
        # Under mixed precision Accelerate reduces in 16 bits, whatever the plan would.
        reduce = "bfloat16" if wanted.precision.compute else None
        assert found.fsdp == replace(wanted.fsdp, reduce_dtype=reduce)
        assert (found.checkpointing == "full") == (wanted.checkpointing == "full")
    if wanted.zero is not None:
        assert found.strategy == {"zero2": "zero2-offload", "zero3": "zero-infinity"}[name]
        assert found.accumulation == 3
    half = {"bfloat16": ("bf16-master", "amp-bf16")}
    dtype = wanted.precision.compute or wanted.precision.autocast or wanted.precision.parameters
    assert found.precision in half.get(dtype, ("fp32",))


@pytest.mark.parametrize("name", PLANS)
def test_accelerate_itself_takes_the_lines(name: str, tmp_path: Path) -> None:
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    path = tmp_path / "a.yaml"
    path.write_text("\n".join(config_lines(PLANS[name], "accelerate")))
    assert arguments.load_config_from_file(str(path)).num_processes == 8


def test_what_accelerate_cannot_say_goes_into_a_file() -> None:
    assert "  deepspeed_config_file: ds_config.json" in config_lines(PLANS["zero3 tuned"], "accelerate")


@pytest.mark.parametrize("name", [name for name, each in PLANS.items() if each.zero is not None])
def test_deepspeed_takes_the_json(name: str) -> None:
    zero_config = pytest.importorskip("deepspeed.runtime.zero.config")
    wanted = PLANS[name].zero
    assert wanted is not None
    text = "\n".join(config_lines(PLANS[name], "deepspeed"))
    data = yaml.safe_load(text)
    assert data == deepspeed_json(PLANS[name])
    assert data["train_batch_size"] == 2 * 3 * 8
    zero = zero_config.DeepSpeedZeroConfig(**data["zero_optimization"])
    assert zero.stage == wanted.stage
    assert zero.reduce_bucket_size == wanted.reduce_bucket_size
    assert zero.prefetch_bucket_size == wanted.prefetch_bucket_size
    assert zero.param_persistence_threshold == wanted.persistence_threshold
    assert zero.max_live_parameters == wanted.max_live_parameters
    assert zero.max_reuse_distance == wanted.max_reuse_distance
    assert zero.sub_group_size == wanted.sub_group_size
    assert zero.overlap_comm == wanted.overlap_comm
    for part, device in ((zero.offload_optimizer, wanted.offload_optimizer),
                         (zero.offload_param, wanted.offload_parameters)):  # fmt: skip
        assert (part.device if part else "none") == device
    if zero.offload_param is not None and wanted.offload_parameters == "nvme":
        assert zero.offload_param.buffer_count == wanted.nvme_buffer_count
        assert zero.offload_param.max_in_cpu == wanted.max_in_cpu


@pytest.mark.parametrize("name", [name for name, each in PLANS.items() if each.zero is not None])
def test_deepspeed_json_is_read_back(name: str) -> None:
    wanted = PLANS[name]
    text = "\n".join(config_lines(wanted, "deepspeed"))
    found = deepspeed.plan_pieces(deepspeed.read(text), world_size=8)
    assert found.zero == wanted.zero
    assert (found.precision.parameters, found.precision.master) == ("bfloat16", "float32")
    assert (found.micro_batch, found.accumulation, found.train_batch) == (2, 3, 48)
    assert found.unknown == ()


def test_autocast_under_deepspeed() -> None:
    wanted = plan(strategy="zero2", zero=Zero(stage=2), precision=Precision(autocast="bfloat16"))
    found = deepspeed.plan_pieces(deepspeed.read("\n".join(config_lines(wanted, "deepspeed"))), world_size=8)
    assert found.precision_name == "amp-bf16"
    assert "  deepspeed_config_file: ds_config.json" in config_lines(wanted, "accelerate")


def test_code_for_ddp() -> None:
    wanted = plan(layout=Layout(world_size=8, replicate=8), ddp=Ddp(gradient_as_bucket_view=True, bucket_cap_mb=50))
    lines = config_lines(wanted, "code")
    assert lines[-1] == "model = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=50)"


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (PLANS["ddp"], "deepspeed"),
        (PLANS["zero2"], "code"),
        (PLANS["fsdp1"], "code"),
        (plan(strategy="dp"), "accelerate"),
        (plan(strategy="ddp", layout=Layout(world_size=8, replicate=8), precision=HALF), "accelerate"),
        (plan(strategy="tp", layout=Layout(world_size=8, tensor=8)), "accelerate"),
        (plan(strategy="pp", pipeline=Pipeline()), "accelerate"),
        (plan(strategy="fsdp2", fsdp=Fsdp(reshard_after_forward=2)), "accelerate"),
    ],
)
def test_what_cannot_be_said(wanted: Plan, kind: str) -> None:
    with pytest.raises(NoRule):
        config_lines(wanted, kind)
    assert kind not in kinds_for(wanted)


def test_kinds() -> None:
    assert kinds_for(PLANS["full"]) == ("code", "accelerate")
    assert kinds_for(PLANS["zero3"]) == ("deepspeed", "accelerate")
    with pytest.raises(BadInput, match=", ".join(KINDS)):
        config_lines(PLANS["full"], "toml")
