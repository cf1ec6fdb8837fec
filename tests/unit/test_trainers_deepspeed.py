"""What is told of a DeepSpeed engine, and when it keeps silent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranktop.agent import attaching, progress, trainers
from ranktop.agent.trainers import Told, deepspeed
from ranktop.agent.trainers.weigh import weigh
from ranktop.budget.plan import Plan, Precision
from ranktop.probes import engines


class Engine:
    """The public methods that are asked."""

    def __init__(self) -> None:
        self.global_steps = 3
        self.norm: Any = 0.5
        self.optimizer = SimpleNamespace(cur_scale=1024.0)
        self.fp16 = False
        self.asked = 0

    def train_micro_batch_size_per_gpu(self) -> int:
        return 4

    def gradient_accumulation_steps(self) -> int:
        return 2

    def bfloat16_enabled(self) -> bool:
        return not self.fp16

    def fp16_enabled(self) -> bool:
        return self.fp16

    def get_lr(self) -> list[float]:
        self.asked += 1
        return [1e-3, 1e-4]

    def get_global_grad_norm(self) -> Any:
        return self.norm


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(attaching, "followed", lambda: made)
    monkeypatch.setattr(engines, "find", lambda root: root)
    monkeypatch.setattr(progress, "current", progress.Reports())
    return made


def told() -> Any:
    assert progress.current is not None
    return progress.current.progress()


def test_an_engine_tells_its_batch_its_steps_and_its_learning_rate(engine: Engine) -> None:
    said = deepspeed.read()
    assert said is not None
    assert (said.micro_batch, said.accumulation, said.precision) == (4, 2, "bfloat16")
    found = told()
    assert (found.source, found.step, found.learning_rate, found.gradient_norm) == ("deepspeed engine", 3, 1e-3, 0.5)
    assert (found.loss, found.values) == (None, {})


def test_an_engine_under_accelerate_does_not_name_the_trainer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    over = Told(trainer="accelerate 1.15.0", precision="bfloat16")
    for readers in ([deepspeed.read, lambda: over], [lambda: over, deepspeed.read]):
        monkeypatch.setattr(trainers, "_readers", readers)
        said = trainers.told()
        assert said is not None
        assert (said.trainer, said.micro_batch, said.accumulation) == (over.trainer, 4, 2)


def test_a_loss_scale_is_told_in_half_precision_only(engine: Engine) -> None:
    engine.fp16 = True
    said = deepspeed.read()
    assert said is not None
    assert said.precision == "float16"
    assert told().values == {"loss_scale": 1024.0}


def test_before_the_first_step_nothing_is_asked_that_would_be_logged(engine: Engine) -> None:
    engine.global_steps = 0
    deepspeed.read()
    assert engine.asked == 0
    assert told() is None


@pytest.mark.parametrize("norm", [None, -1.0])
def test_a_norm_that_was_not_computed_is_not_told(engine: Engine, norm: float | None) -> None:
    engine.norm = norm
    deepspeed.read()
    assert told().gradient_norm is None


def test_who_counts_the_steps_above_it_is_not_talked_over_but_a_script_that_tells_its_loss_alone_is_helped(
    engine: Engine,
) -> None:
    progress.tell("script", loss=2.0)
    deepspeed.read()
    assert (told().source, told().step, told().loss) == ("script", 3, 2.0)
    engine.global_steps = 5
    progress.tell("transformers Trainer", step=4)
    deepspeed.read()
    assert (told().source, told().step) == ("transformers Trainer", 4)


def test_autocast_within_the_forward_is_taken_from_who_enters_it() -> None:
    told = Told(trainer="accelerate 1", precision="bfloat16")
    plan, notes = weigh(Plan(precision=Precision(parameters="float32")), told)
    assert (plan.precision.autocast, notes) == ("bfloat16", ())
    plan, notes = weigh(Plan(precision=Precision(parameters="float32", compute="float16")), told)
    assert plan.precision.autocast is None
    assert len(notes) == 1
