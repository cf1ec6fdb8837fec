"""Which of the many numbers that a Trainer logs are passed on."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.trainer_callback import TrainerState

from ranktop.agent import progress
from ranktop.agent.trainers.huggingface import AutomaticRanktopCallback

GRPO = {
    "loss": -0.0028, "grad_norm": 1.05, "learning_rate": 2.8e-4, "num_tokens": 1127.0, "completions/mean_length": 15.9,
    "completions/min_length": 15.5, "completions/max_length": 16.0, "completions/clipped_ratio": 0.9,
    "completions/mean_terminated_length": 7.5, "rewards/length/mean": 72.0, "rewards/length/std": 3.0, "reward": 72.0,
    "reward_std": 3.0, "frac_reward_zero_std": 0.0, "entropy": 5.9, "clip_ratio/low_mean": 0.0, "epoch": 0.04,
}  # fmt: skip
DPO = {
    "loss": 0.69, "rewards/chosen": 0.1, "rewards/rejected": 0.2, "rewards/accuracies": 0.5, "rewards/margins": -0.1,
    "logps/chosen": -90.0, "logps/rejected": -91.0, "logits/chosen": 0.3, "logits/rejected": 0.2, "entropy": 5.9,
}  # fmt: skip
EVALUATION = {"eval_" + name: value for name, value in DPO.items()} | {"eval_runtime": 3.0}
END = {"train_loss": 0.6, "train_runtime": 9.0, "total_flos": 1e9}


@pytest.mark.parametrize(
    ("logs", "chosen"),
    [
        (GRPO, {"reward", "entropy", "reward_std", "num_tokens"}),
        (DPO, {"rewards/accuracies", "rewards/margins", "rewards/chosen", "entropy"}),
    ],
)
def test_of_many_numbers_those_that_people_look_at_are_told_and_the_others_cost_no_line(
    logs: dict[str, float],
    chosen: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, state = progress.Reports(), TrainerState(global_step=1, max_steps=2, epoch=0.5)
    monkeypatch.setattr(progress, "current", made)
    callback: Any = AutomaticRanktopCallback()
    for told in (logs, EVALUATION, logs, END):
        callback.on_log(None, state, None, logs=told)
    found = made.progress()
    assert found is not None
    assert (found.loss, found.step) == (logs["loss"], 1)
    evaluated = {"eval_loss", "eval_rewards/accuracies", "eval_rewards/margins"}
    assert set(found.values) == chosen | evaluated | {"train_loss"}
    assert capsys.readouterr().err == ""
