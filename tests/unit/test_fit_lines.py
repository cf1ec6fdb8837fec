"""The lines that ask for a plan ask for that plan: read back by the readers of configs, compiled, parsed."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import lru_cache

import pytest
import yaml

from ranktop.budget.configs import deepspeed as deepspeed
from ranktop.budget.configs.accelerate import read_accelerate
from ranktop.budget.fit import Candidate, fit
from ranktop.budget.fitting.lines import KINDS, beside, lines_of
from ranktop.budget.models.catalogue import find
from ranktop.budget.run import STRATEGIES, Run

G = 2**30
EIGHT_BILLION = Run(model=find("llama-3-8b"), world_size=16, sequence_length=4096, device_memory=int(79.1 * G))


@lru_cache(maxsize=1)
def plans() -> tuple[Candidate, ...]:
    """Plans of every strategy, with and without offload and checkpointing."""
    found = list(fit(EIGHT_BILLION, batch=64).fitting)
    small = replace(EIGHT_BILLION, device_memory=int(23.5 * G))
    for strategy in STRATEGIES[3:]:
        found += fit(small, batch=64, strategies=(strategy,)).fitting[:1]
    return tuple(found)


def of_kind(kind: str) -> list[tuple[Candidate, str]]:
    return [(one, "\n".join(lines_of(one)[kind])) for one in plans() if kind in lines_of(one)]


def test_every_plan_has_lines_in_a_known_form() -> None:
    assert len(plans()) > 15
    for one in plans():
        forms = lines_of(one)
        assert forms, one.title
        assert set(forms) <= set(KINDS)
        for kind, lines in forms.items():
            assert lines
            assert all("\n" not in text for text in beside(one, kind))


def test_deepspeed_reads_the_plan_back() -> None:
    found = of_kind("deepspeed")
    assert {one.strategy for one, _ in found} >= {"zero1", "zero2", "zero3", "zero3-offload"}
    for one, text in found:
        axes = one.plan.layout
        data = axes.world_size // (axes.tensor * axes.pipeline)
        pieces = deepspeed.plan_pieces(deepspeed.read(text), world_size=data)
        assert pieces.unknown == ()
        assert pieces.strategy == one.strategy
        assert pieces.micro_batch == one.run.micro_batch
        assert pieces.accumulation == one.run.accumulation
        assert one.run.micro_batch * one.run.accumulation * data == 64
        assert pieces.precision_name == one.run.precision


def test_accelerate_reads_the_plan_back() -> None:
    found = of_kind("accelerate")
    assert {one.strategy for one, _ in found} >= {"fsdp-full", "zero3"}
    for one, text in found:
        read = read_accelerate(yaml.safe_load(text), "a.yaml")
        assert read.unknown == ()
        assert read.world_size == 16
        if one.plan.fsdp is not None:
            assert read.strategy == one.strategy
            assert read.fsdp is not None
            assert read.fsdp.cpu_offload == one.plan.fsdp.cpu_offload
            assert (read.checkpointing == "full") == (one.run.checkpointing == "full")
            assert (read.tensor or 1) == one.plan.layout.tensor


def test_code_is_python_and_says_how_often_forward_runs() -> None:
    found = of_kind("code")
    assert {one.strategy for one, _ in found} >= {"fsdp-full", "tp", "pp-1f1b"}
    for one, text in found:
        compile(text, one.title, "exec")
        assert any(f"micro-batches of {one.run.micro_batch}, " in told for told in beside(one, "code"))
        axes = one.plan.layout
        if one.strategy == "pp-1f1b":
            assert f"n_microbatches={one.run.accumulation}" in text
            assert "Schedule1F1B" in text
        if axes.tensor > 1 and one.strategy == "tp":
            assert f'("cuda", ({axes.data}, {axes.tensor}), mesh_dim_names=("dp", "tp"))' in text


def test_names_in_the_code_exist_in_torch() -> None:
    """Every name is imported from where torch has it; read from torch's files, without importing it."""
    from importlib.util import find_spec
    from pathlib import Path

    root = find_spec("torch")
    if root is None or root.origin is None:
        pytest.skip("torch is not installed")
    folder = Path(root.origin).parent
    for name, place in {
        "init_device_mesh": "distributed/device_mesh.py",
        "PipelineStage": "distributed/pipelining/__init__.py",
        "Schedule1F1B": "distributed/pipelining/__init__.py",
        "ScheduleGPipe": "distributed/pipelining/__init__.py",
        "ScheduleInterleaved1F1B": "distributed/pipelining/__init__.py",
        "parallelize_module": "distributed/tensor/parallel/__init__.py",
        "create_selective_checkpoint_contexts": "utils/checkpoint.py",
    }.items():
        assert name in (folder / place).read_text(encoding="utf-8"), name


def test_megatron_is_asked_with_its_own_arguments() -> None:
    """Names and kinds as Megatron-LM's ``megatron/training/arguments.py`` declares them."""
    parser = argparse.ArgumentParser()
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size", "global-batch-size",
                 "recompute-num-layers"):  # fmt: skip
        parser.add_argument(f"--{name}", type=int)
    for name in ("sequence-parallel", "use-distributed-optimizer", "bf16"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--recompute-granularity", choices=("full", "selective"))
    parser.add_argument("--recompute-method", choices=("uniform", "block"))
    found = of_kind("megatron")
    assert found
    for one, text in found:
        read = parser.parse_args(text.split())
        data = 16 // (read.tensor_model_parallel_size * read.pipeline_model_parallel_size)
        assert read.global_batch_size == 64
        assert read.micro_batch_size * one.run.accumulation * data == 64
        assert read.bf16
        assert read.use_distributed_optimizer == (data > 1)
        assert (read.recompute_granularity or "none") == one.run.checkpointing


def test_what_no_config_says_is_said_beside_it() -> None:
    said = {(one.title, kind): " ".join(beside(one, kind)) for one in plans() for kind in lines_of(one)}
    for one in plans():
        for kind in lines_of(one):
            text = said[one.title, kind]
            if kind == "deepspeed" and one.plan.layout.pipeline > 1:
                assert f"num_stages={one.plan.layout.pipeline}" in text
            if kind == "deepspeed" and one.plan.layout.tensor > 1:
                assert f'"autotp_size": {one.plan.layout.tensor}' in text
            if kind == "deepspeed" and one.run.checkpointing == "full":
                assert "gradient_checkpointing_enable" in " ".join(beside(one, kind))
