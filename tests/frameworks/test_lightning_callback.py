"""Lightning's callback within one process: it never costs the training anything, and leaves no trace."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

import ranktop.agent
from ranktop.agent import attaching, progress
from ranktop.agent.lightning import RanktopCallback
from ranktop.agent.trainers import lightning as told_lightning
from ranktop.agent.trainers import told
from ranktop.agent.trainers.lightning import AutomaticRanktopCallback
from ranktop.agent.trainers.lightning_saves import Saving


class Lit(lightning.LightningModule):  # type: ignore[misc]
    """Looks at what is told from within its own steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.doing: list[str] = []

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch).square().mean() + 2.0

    def validation_step(self, batch: Any, index: int) -> None:
        self.note()
        self.log("val_loss", 7.0)

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        self.note()

    def note(self) -> None:
        reports = progress.current
        self.doing.append(reports.activity(None) if reports is not None else "")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.25)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> progress.Reports:
    made = progress.Reports()
    monkeypatch.setenv("RANKTOP_DISABLE", "1")  # no real agent here: what is told ends in ``made``
    monkeypatch.setattr(progress, "current", made)
    return made


def trainer(directory: Path, *callbacks: Any, **options: Any) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    saves = ModelCheckpoint(directory, save_weights_only=True)
    options = {"accumulate_grad_batches": 3, **quiet, **options}
    return lightning.Trainer(max_epochs=2, callbacks=[*callbacks, saves], **options)


def loader() -> DataLoader[Any]:
    return DataLoader(torch.ones(12, 4), batch_size=2)  # type: ignore[arg-type]


def names(made: lightning.Trainer) -> list[str]:
    return [type(each).__name__ for each in made.callbacks if "Ranktop" in type(each).__name__]


def test_without_an_agent_a_trainer_has_no_callback_of_ours(tmp_path: Path) -> None:
    assert names(trainer(tmp_path)) == []


def test_what_is_told_of_a_fit(tmp_path: Path, reports: progress.Reports) -> None:
    model, made = Lit(), trainer(tmp_path, RanktopCallback())
    assert names(made) == ["RanktopCallback", "AutomaticRanktopCallback"]
    made.fit(model, loader(), loader())
    found = reports.progress()
    assert found is not None
    assert (found.source, found.step, found.total_steps, found.epoch) == ("lightning", 4, 4, 2.0)
    assert (found.learning_rate, found.values["val_loss"]) == (0.25, 7.0)
    assert found.loss is not None
    assert found.loss >= 2.0, "the loss of a micro-batch, not its third"
    assert set(model.doing) == {"validation", "save"}
    assert "save_checkpoint" not in vars(made)
    assert told() is None, "the Trainer has ended, and its word with it"


def test_losses_of_a_module_that_returns_none_are_told_by_their_names(
    tmp_path: Path, reports: progress.Reports
) -> None:
    class Gan(Lit):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, index: int) -> None:
            self.manual_backward(self.layer(batch).sum())
            self.optimizers().step()
            self.log_dict({"g_loss": 1.5, "d_loss": 2.5, "accuracy": 0.5})

    made = trainer(tmp_path, accumulate_grad_batches=1, log_every_n_steps=2)
    made.fit(Gan(), loader())
    found = reports.progress()
    assert found is not None
    assert found.loss is None
    assert found.values == {"g_loss": 1.5, "d_loss": 2.5}


def test_of_many_metrics_the_losses_go_first_and_the_others_cost_no_line(
    tmp_path: Path, reports: progress.Reports, capsys: pytest.CaptureFixture[str]
) -> None:
    class Many(Lit):
        def validation_step(self, batch: Any, index: int) -> None:
            self.log_dict({**{f"val_{name}": 1.0 for name in range(12)}, "val_loss": 7.0})

    trainer(tmp_path).fit(Many(), loader(), loader())
    found = reports.progress()
    assert found is not None
    assert found.values["val_loss"] == 7.0
    assert "more than" not in capsys.readouterr().err


def test_an_error_of_ours_ends_the_telling_and_nothing_else(
    tmp_path: Path, reports: progress.Reports, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("another version")

    monkeypatch.setattr(told_lightning, "told_of", broken)
    made = trainer(tmp_path)
    made.fit(Lit(), loader(), loader())
    assert made.global_step == 4
    assert capsys.readouterr().err.count("another version") == 1
    assert reports.activities == {}


def test_an_error_of_the_script_leaves_no_activity_behind(tmp_path: Path, reports: progress.Reports) -> None:
    class Failing(Lit):
        def validation_step(self, batch: Any, index: int) -> None:
            raise ValueError("the script's own")

    made = trainer(tmp_path)
    with pytest.raises(ValueError, match="the script's own"):
        made.fit(Failing(), loader(), loader())
    assert reports.activities == {}
    assert "save_checkpoint" not in vars(made)


def test_a_callback_goes_along_with_a_trainer_that_is_pickled_for_spawned_ranks() -> None:
    for kind in (RanktopCallback, AutomaticRanktopCallback):
        again = pickle.loads(pickle.dumps(kind(push="tensorboard")))
        assert type(again) is kind
        assert again.state_dict() == {}


def test_the_automatic_callback_does_not_start_again_what_a_script_has_ended(
    tmp_path: Path, reports: progress.Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path)
    assert names(made) == ["AutomaticRanktopCallback"]
    started: list[None] = []
    monkeypatch.setattr(ranktop.agent, "attach", lambda *_: started.append(None))
    monkeypatch.setattr(attaching, "_detached", None)
    progress.end(reports)
    made.fit(Lit(), loader())
    assert len(started) == 1, "as in a rank that Lightning has started"
    ranktop.agent.detach()
    made.fit(Lit(), loader())
    assert len(started) == 1


class Saver:
    """Has the one method that is stood before."""

    def __init__(self) -> None:
        self.saved: list[str] = []

    def save_checkpoint(self, path: str) -> str:
        self.saved.append(path)
        return path


def test_a_copy_of_a_trainer_saves_itself() -> None:
    first = Saver()
    saving = Saving(first)
    again, pickled = copy.deepcopy(first), pickle.loads(pickle.dumps(first))
    for each, path in ((first, "a"), (again, "b"), (pickled, "c")):
        assert each.save_checkpoint(path) == path
    assert (first.saved, again.saved, pickled.saved) == (["a"], ["b"], ["c"])
    saving.remove()
    assert "save_checkpoint" not in vars(first)


def test_a_scripts_own_method_is_kept() -> None:
    first = Saver()
    first.save_checkpoint = lambda path: "own " + path  # type: ignore[method-assign]
    saving = Saving(first)
    assert first.save_checkpoint("a") == "own a"
    saving.remove()
    assert first.save_checkpoint("a") == "own a"
