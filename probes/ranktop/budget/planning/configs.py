"""What a DeepSpeed, Accelerate, Trainer or torchtitan config says about a run, beside the flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ranktop.budget.model import BadInput, Model
from ranktop.budget.plan import OptimizerPlan, Zero

if TYPE_CHECKING:
    from ranktop.budget.configs.setup import Setup
    from ranktop.budget.planning.flags import Flags

Value = TypeVar("Value")
Numbers = Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a config file says; None = it leaves that open."""

    file: str = ""
    """Its name, for complaints."""
    own: str | None = None
    """The strategy that it asks for."""
    setup: Setup | None = None
    zero: Zero | None = None
    optimizer: OptimizerPlan | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """What ``agreed`` compares with the flags, by the flag's name."""
    notes: tuple[str, ...] = ()
    """Keys that are not known or make no difference, one line each."""

    def agreed(self, flag: str, typed: Value | None, default: Value) -> Value:
        """Return what flag and file say together, the default when neither does. Raises BadInput when they differ."""
        here: Value | None = self.values.get(flag)
        if typed is not None and here is not None and typed != here:
            raise BadInput(f"{flag} {typed} contradicts {self.file}, which says {here}; leave one out")
        return typed if typed is not None else here if here is not None else default


def given(flags: Flags, numbers: Numbers, model: Model) -> Given:
    """Return what the config file says. Raises BadInput."""
    if flags.deepspeed is not None and flags.accelerate is not None:
        raise BadInput("--deepspeed and --accelerate both say how it is sharded; leave one out")
    if flags.deepspeed is None and flags.accelerate is None:
        return Given()
    from ranktop.budget.planning.config_files import given as of_file

    return of_file(flags, numbers, model)
