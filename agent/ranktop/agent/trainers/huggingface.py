"""Hugging Face transformers' Trainer (TRL's trainers too): a callback tells what the Trainer says publicly.

``-m ranktop.agent`` puts it into ``transformers.trainer.DEFAULT_CALLBACKS``, from which every Trainer takes its own.
It returns no control, exports no state, writes nothing: logs, checkpoints and ``trainer_state.json`` are the script's.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Final

from transformers.trainer_callback import TrainerCallback

from ranktop.agent import annotate, progress
from ranktop.agent.push import Pusher
from ranktop.agent.trainers import Told, forget, positive, tell, titled
from ranktop.agent.trainers.speaking import Speaking, guarded

SOURCE: Final = "transformers Trainer"

EVALUATION: Final = "evaluation"
SAVE: Final = "save"

RANK: Final = 2
"""Over Accelerate, which it is made of."""

_NAMES: Final = {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "gradient_norm"}
"""What ``Trainer.log`` calls it -> what ``report`` does."""

_MOST: Final = {"eval_": 3, "train_": 1, "": 4}
"""How many other numbers of a kind are passed on, by how their names begin: together as many as ``report`` takes."""

_SOUGHT: Final = ("loss", "accura", "margin", "kl", "reward", "entropy", "")
"""What the names have in them that go before others where there are more: one of each first, the shortest."""

_LEFT_OUT: Final = ("epoch", "step", "total_steps", "source", "tokens", "total_flos", "num_input_tokens_seen")
_TIMES: Final = ("_runtime", "_per_second")

_TENSORBOARD: Final = "TensorBoardCallback"

_BEST: Final = "best"
"""``save_strategy`` that decides about a save after the evaluation, when no callback is asked any more."""


class RanktopCallback(Speaking, TrainerCallback):
    """Attaches ranktop to a Trainer: ``Trainer(..., callbacks=[RanktopCallback()])``.

    Not needed under ``-m ranktop.agent``, and harmless there: two are one. ``push`` sends what ``ranktop.agent.push``
    makes to the script's own writer whenever the Trainer logs: ``"wandb"``, ``"tensorboard"``, True for both, or the
    writer itself.
    """

    NAMED = "Trainer's callback"

    _chosen: frozenset[str] = frozenset()
    """Which of the many numbers that it logs are passed on."""

    def __init__(self, push: Any = False) -> None:
        self._push = push
        self._begin()
        self._start()

    def _begin(self) -> None:
        super()._begin()
        self._activity: Any = None
        self._what = ""
        self._told = ""
        self._pusher: Pusher | None = None

    def _start(self) -> None:
        """Start the agent before the Trainer wraps the model, so that it sees the wrapper."""
        from ranktop.agent import attach

        attach()

    # -- events ------------------------------------------------------------------------------------------------------

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell of the job, and follow the model where only this callback knows it."""
        self._follow(kwargs.get("model"), kwargs.get("optimizer"))
        # Each training has a TensorBoard writer of its own.
        self._pusher = Pusher(self._push, writer=_Writer()) if self._push else None
        if not self._speaks(state):
            return
        told = told_of(args, state)
        self._told = told.trainer
        tell(told)
        progress.tell(SOURCE, step=state.global_step, total_steps=state.max_steps, epoch=state.epoch)

    def _follow(self, model: Any, optimizer: Any) -> None:
        from ranktop.agent import attach

        attach(model, *([optimizer] if hasattr(optimizer, "param_groups") else []))

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training goes on: whatever was between two steps is over."""
        self._leave()

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the step, and what comes before the next one."""
        if self._speaks(state):
            progress.tell(SOURCE, step=state.global_step, epoch=state.epoch)
            self._next(control)

    @guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch's end may evaluate and save, too."""
        if self._speaks(state):
            self._next(control)

    @guarded
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """It evaluates or predicts, by itself or because the script has called for it."""
        if not self._what and self._speaks(state):
            self._enter(EVALUATION)

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The evaluation is over; a save may follow."""
        if self._speaks(state) and not self._decides_later(args):
            self._leave()
            self._next(control)

    @guarded
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """The prediction is over."""
        self._leave()

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint has been written."""
        self._leave()

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Pass on what the Trainer logs."""
        if self._speaks(state):
            found = _numbers(logs or {})
            self._chosen = _choose(self._chosen, [name for name in found if name not in _NAMES])
            told = {_NAMES.get(name, name): found[name] for name in found if name in _NAMES or name in self._chosen}
            progress.tell(SOURCE, step=state.global_step, total_steps=state.max_steps, epoch=state.epoch, **told)
        if self._pusher is not None:
            self._pusher.push(state.global_step)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The script goes on without the Trainer, whose word holds no longer."""
        self._leave()
        if self._speaks(state):
            forget(self._told)

    # -- between two steps -------------------------------------------------------------------------------------------

    def _next(self, control: Any) -> None:
        """Enter what the Trainer is about to do by its control's word."""
        if control.should_evaluate:
            self._enter(EVALUATION)
        elif control.should_save:
            self._enter(SAVE)

    @staticmethod
    def _decides_later(args: Any) -> bool:
        strategy = getattr(args, "save_strategy", "")
        return str(getattr(strategy, "value", strategy)) == _BEST

    def _enter(self, what: str) -> None:
        if self._what == what:
            return
        self._leave()
        self._what, self._activity = what, annotate(what)
        self._activity.__enter__()

    def _leave_all(self) -> None:
        self._leave()

    def _leave(self) -> None:
        activity, self._activity, self._what = self._activity, None, ""
        if activity is not None:
            activity.__exit__(None, None, None)


class _Writer:
    """Finds the SummaryWriter that the Trainer's own TensorBoardCallback has made; looked for a few times only."""

    def __init__(self) -> None:
        self._looks = 3

    def __call__(self) -> Any:
        """Return the writer; None where there is none (no TensorBoard, or not the rank that writes)."""
        if self._looks <= 0 or "torch.utils.tensorboard" not in sys.modules:
            return None
        self._looks -= 1
        every = (each for each in gc.get_objects() if type(each).__name__ == _TENSORBOARD)
        found = (each for each in every if isinstance(each, TrainerCallback))
        return next((writer for each in found if (writer := getattr(each, "tb_writer", None)) is not None), None)


class AutomaticRanktopCallback(RanktopCallback):
    """What ``-m ranktop.agent`` gives every Trainer; of its own class, so that an explicit one is no duplicate."""

    def __init__(self) -> None:
        super().__init__()

    def _start(self) -> None:
        """It is there because an agent runs."""

    def _follow(self, model: Any, optimizer: Any) -> None:
        """The hooks have found model and optimizer by themselves."""


def met() -> None:
    """``transformers.trainer`` has been imported: every Trainer from now on gets the callback."""
    defaults: Any = getattr(sys.modules["transformers.trainer"], "DEFAULT_CALLBACKS", None)
    if isinstance(defaults, list) and AutomaticRanktopCallback not in defaults:
        defaults.append(AutomaticRanktopCallback)


def told_of(args: Any, state: Any) -> Told:
    """Return what a Trainer's arguments say; attributes that a version does not have are not told."""
    length = _number(args, "max_length") or _number(args, "max_seq_length")
    half = "bfloat16" if getattr(args, "bf16", False) else "float16" if getattr(args, "fp16", False) else None
    return Told(
        trainer=trainer_name(args),
        micro_batch=_number(args, "train_batch_size") or _number(args, "per_device_train_batch_size"),
        accumulation=_number(args, "gradient_accumulation_steps"),
        sequence_length=length,
        precision=half,
        checkpointing="full" if getattr(args, "gradient_checkpointing", False) else None,
        max_steps=state.max_steps if state.max_steps > 0 else None,
        rank=RANK,
    )


def trainer_name(args: Any) -> str:
    """Return which Trainer this is, by the class of its arguments: ``trl 1.16.0 SFTTrainer``."""
    kind = type(args)
    for parent in kind.__mro__:
        package, name = parent.__module__.split(".", 1)[0], parent.__name__
        if package in ("transformers", "trl"):
            name = name.removesuffix("TrainingArguments" if package == "transformers" else "Config")
            return titled(package, f"{name}Trainer")
    return SOURCE


def _number(args: Any, name: str) -> int | None:
    return positive(getattr(args, name, None))


def _numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in logs.items()
        if name not in _LEFT_OUT and not name.endswith(_TIMES) and isinstance(value, (int, float))
    }


def _choose(before: frozenset[str], names: Sequence[str]) -> frozenset[str]:
    """Return the names of which numbers are passed on: those that were, and new ones while there is room."""
    chosen = set(before)
    groups: dict[str, list[str]] = {word: [] for word in _SOUGHT}
    for name in sorted(names, key=len):
        groups[next(word for word in _SOUGHT if word in name)].append(name)
    for name in filter(None, chain.from_iterable(zip_longest(*groups.values()))):
        kind = _kind(name)
        if sum(_kind(each) == kind for each in chosen) < _MOST[kind]:
            chosen.add(name)
    return frozenset(chosen)


def _kind(name: str) -> str:
    return next(kind for kind in _MOST if name.startswith(kind))
