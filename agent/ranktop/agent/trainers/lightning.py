"""Lightning's Trainer: a callback tells what it says publicly, whatever its strategy.

Lightning asks the entry points of its ``callbacks_factory`` group for callbacks (``lightning_factory``), so that a
script needs no edit under ``-m ranktop.agent``. The callback has no state, logs nothing and returns nothing: logs,
progress bar and checkpoints are the script's own.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Mapping
from typing import Any, Final

from ranktop.agent import annotate, progress
from ranktop.agent.push import Pusher
from ranktop.agent.trainers import Told, forget, positive, tell, titled
from ranktop.agent.trainers.lightning_saves import Saving
from ranktop.agent.trainers.lightning_words import dtype_of
from ranktop.agent.trainers.speaking import Speaking, guarded

SOURCE: Final = "lightning"

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")
"""The same library under its two names."""

RANK: Final = 1

VALIDATION: Final = "validation"
EVALUATION: Final = "evaluation"

_LOSSES: Final = ("loss", "train_loss", "train/loss", "loss_step", "train_loss_step")
_NORMS: Final = ("grad_norm", "gradient_norm", "grad_2.0_norm_total", "train/grad_norm")
"""Names under which scripts log what Lightning does not tell by itself."""


def _base() -> Any:
    """Return the ``Callback`` of the package in use: of the one that is imported, else of the one that is there."""
    there = [name for name in PACKAGES if name in sys.modules]
    there = there or [name for name in PACKAGES if importlib.util.find_spec(name.split(".", 1)[0]) is not None]
    return importlib.import_module(there[0] if there else PACKAGES[0]).Callback


class RanktopCallback(Speaking, _base()):  # type: ignore[misc]
    """Attaches ranktop to a Trainer: ``Trainer(..., callbacks=[RanktopCallback()])``.

    Not needed under ``-m ranktop.agent``, and harmless there: two are one. ``push`` sends what ``ranktop.agent.push``
    makes to the script's own writer whenever the Trainer logs: ``"wandb"``, ``"tensorboard"`` (its TensorBoardLogger),
    or True for both.
    """

    NAMED = "Lightning callback"

    def __init__(self, push: bool | str = False) -> None:
        super().__init__()
        self._push = push
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        self._entered: list[Any] = []
        self._told: Told | None = None
        self._step = -1
        self._pusher: Pusher | None = None
        self._saving: Saving | None = None

    def _heeds(self, trainer: Any, *rest: Any) -> bool:
        return self._speaks(trainer)

    # -- the job -----------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start the agent where none runs: by now the process knows its rank, and the model is not wrapped yet."""
        from ranktop.agent import attach

        if progress.current is None:
            attach()

    @guarded
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow the model, which is wrapped by now, and name the saves."""
        self._follow(trainer, pl_module)
        self._saving = Saving(trainer)
        if self._push and self._pusher is None:
            self._pusher = Pusher(self._push, writer=lambda: _writer(trainer))

    def _follow(self, trainer: Any, pl_module: Any) -> None:
        """A wrapper is what is called; a bare LightningModule is not, but by itself: its parts are."""
        from ranktop.agent import attach
        from ranktop.agent.attaching import look_into

        if trainer.model is pl_module:
            look_into(pl_module)
            attach(None, *trainer.optimizers)
        else:
            attach(trainer.model, *trainer.optimizers)

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell of the job: now its data loaders are there."""
        self._tell_job(trainer)
        progress.tell(SOURCE, step=trainer.global_step, total_steps=_total(trainer), epoch=trainer.current_epoch)

    @guarded
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The accumulation may follow a schedule, by epochs."""
        self._tell_job(trainer)

    def _tell_job(self, trainer: Any) -> None:
        told = told_of(trainer)
        if told != self._told:
            self._told = told
            tell(told)

    # -- steps -------------------------------------------------------------------------------------------------------

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Tell what a step has brought; what is told of a micro-batch that ends no step is only where it stands."""
        step = trainer.global_step
        if step == self._step:
            return
        self._step = step
        logs = trainer.log_every_n_steps > 0 and step % trainer.log_every_n_steps == 0
        logged = trainer.logged_metrics if logs else {}
        loss = _loss(outputs, trainer, pl_module)
        loss = loss if loss is not None else _first(logged, _LOSSES)
        # A GAN has no loss of its own, but several.
        several = {name: value for name, value in logged.items() if name.endswith("loss")} if loss is None else {}
        progress.tell(
            SOURCE,
            step=step,
            epoch=_epoch(trainer, batch_idx),
            loss=loss,
            learning_rate=_learning_rate(trainer),
            gradient_norm=_first(logged, _NORMS),
            **_named(several),
        )
        if logs and self._pusher is not None:
            self._pusher.push(step)

    # -- what is no step ---------------------------------------------------------------------------------------------

    @guarded
    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """A few batches are validated before training."""
        self._enter(VALIDATION)

    @guarded
    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """The sanity check is over."""
        self._leave()

    @guarded
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins."""
        self._enter(VALIDATION)

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation is over: its metrics are there, reduced as the script asked."""
        self._leave()
        if not trainer.sanity_checking:
            found = {
                name: value for name, value in trainer.callback_metrics.items() if name.startswith(("val", "eval"))
            }
            progress.tell(SOURCE, step=trainer.global_step, **_named(found))

    @guarded
    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """A test begins."""
        self._enter(EVALUATION)

    @guarded
    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """The test is over."""
        self._leave()

    @guarded
    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """A prediction begins."""
        self._enter(EVALUATION)

    @guarded
    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """The prediction is over."""
        self._leave()

    @guarded
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Whatever it was in, it is out of it."""
        self._leave_all()

    @guarded
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The script goes on without the Trainer, whose word holds no longer."""
        self._leave_all()
        if self._told is not None:
            forget(self._told.trainer)
            self._told = None

    def _enter(self, what: str) -> None:
        self._entered.append(annotate(what))
        self._entered[-1].__enter__()

    def _leave(self) -> None:
        if self._entered:
            self._entered.pop().__exit__(None, None, None)

    def _leave_all(self) -> None:
        while self._entered:
            self._leave()
        if self._saving is not None:
            self._saving.remove()
            self._saving = None


class AutomaticRanktopCallback(RanktopCallback):
    """What the entry points give every Trainer where an agent runs; beside an explicit one it stays silent."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start the agent in a rank that Lightning has started, but not again where the script has ended it."""
        from ranktop.agent.attaching import detached

        if not detached():
            super().setup(trainer, pl_module, stage)

    def _follow(self, trainer: Any, pl_module: Any) -> None:
        """The hooks find a wrapper by themselves, but in a rank that Lightning has started without an agent."""
        from ranktop.agent.attaching import started_late

        if started_late() or trainer.model is pl_module:
            super()._follow(trainer, pl_module)


def told_of(trainer: Any) -> Told:
    """Return what a Trainer says of the job."""
    package = type(trainer).__module__.split(".", 1)[0]
    for parent in type(trainer).__mro__:
        if parent.__module__.startswith(PACKAGES):
            package = parent.__module__.split(".", 1)[0]
            break
    steps = _total(trainer)
    return Told(
        trainer=titled(package, "Trainer"),
        micro_batch=_micro_batch(trainer),
        accumulation=positive(getattr(trainer, "accumulate_grad_batches", None)),
        precision=dtype_of(getattr(trainer, "precision", None)),
        max_steps=steps,
        rank=RANK,
    )


def _micro_batch(trainer: Any) -> int | None:
    """Return the batch size of the one loader there is; None where several are combined."""
    loader = getattr(trainer, "train_dataloader", None)
    size = positive(getattr(loader, "batch_size", None))
    return size if size is not None else positive(getattr(getattr(loader, "batch_sampler", None), "batch_size", None))


def _total(trainer: Any) -> int | None:
    """Return the optimizer steps of the whole run; None where nothing ends it."""
    given = positive(getattr(trainer, "max_steps", None))
    try:
        estimated = float(trainer.estimated_stepping_batches)
    except Exception:  # it refuses some schedules
        return given
    return int(estimated) if math.isfinite(estimated) and estimated > 0 else given


def _epoch(trainer: Any, batch_idx: int) -> float:
    """Return the epoch with its part that is done; whole where an epoch's length is not known."""
    batches = trainer.num_training_batches
    whole = isinstance(batches, int) and batches > 0
    epoch: float = trainer.current_epoch + ((batch_idx + 1) / batches if whole else 0)
    return epoch


def _loss(outputs: Any, trainer: Any, pl_module: Any) -> Any:
    """Return the loss of the last micro-batch; Lightning has divided it by the accumulation."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if loss is None or not hasattr(loss, "detach"):
        return None
    if pl_module.automatic_optimization and trainer.accumulate_grad_batches != 1:
        return loss.detach() * trainer.accumulate_grad_batches
    return loss


def _learning_rate(trainer: Any) -> Any:
    for optimizer in trainer.optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            return group.get("lr")
    return None


def _first(metrics: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((metrics[name] for name in names if name in metrics), None)


def _named(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics by names that are nobody else's: half of what is shown, so that there is room for two kinds."""
    names = (name for name in metrics if name not in ("step", "total_steps", "tokens", "source"))
    first = sorted(names, key=lambda name: "loss" not in name)
    return {name: metrics[name] for name in first[: progress.MOST_VALUES // 2]}


def _writer(trainer: Any) -> Any:
    """Return the SummaryWriter of the Trainer's TensorBoardLogger; None without, and on other ranks than the first."""
    if not trainer.is_global_zero:
        return None
    return next((each.experiment for each in trainer.loggers if type(each).__name__ == "TensorBoardLogger"), None)
