"""What a DeepSpeed or Accelerate config says about a run, beside the flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ranktop.budget.model import BadInput
from ranktop.budget.plan import Fsdp, OptimizerPlan, Zero
from ranktop.tui.planning.flags import Flags

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a config file says; None = it leaves that open."""

    file: str = ""
    """Its name, for complaints."""
    own: str | None = None
    """The strategy that it asks for."""
    zero: Zero | None = None
    fsdp: Fsdp | None = None
    precision: str | None = None
    optimizer: OptimizerPlan | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    world_size: int | None = None
    gpus_per_node: int | None = None
    checkpointing: str | None = None
    notes: tuple[str, ...] = ()
    """Keys that are not known or make no difference, one line each."""

    def agreed(self, flag: str, typed: Value | None, here: Value | None, default: Value) -> Value:
        """Return what flag and file say together, the default when neither does. Raises BadInput when they differ."""
        if typed is not None and here is not None and typed != here:
            raise BadInput(f"{flag} {typed} contradicts {self.file}, which says {here}; leave one out")
        return typed if typed is not None else here if here is not None else default


def given(flags: Flags) -> Given:
    """Return what the config file says. Raises BadInput."""
    if flags.deepspeed is not None and flags.accelerate is not None:
        raise BadInput("--deepspeed and --accelerate both say how it is sharded; leave one out")
    if flags.deepspeed is not None:
        return _deepspeed(Path(flags.deepspeed).expanduser(), flags)
    if flags.accelerate is not None:
        return _accelerate(Path(flags.accelerate).expanduser(), flags)
    return Given()


def _deepspeed(path: Path, flags: Flags) -> Given:
    raise NotImplementedError


def _accelerate(path: Path, flags: Flags) -> Given:
    raise NotImplementedError
