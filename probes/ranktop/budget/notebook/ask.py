"""What a script asks, as the planner's own flags: one reading of them, whoever asks."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ranktop.budget.model import BadInput
from ranktop.budget.planning.flags import Flags, spelled

if TYPE_CHECKING:
    from ranktop.budget.notebook.comparison import Comparison

Config = str | os.PathLike[str] | Mapping[str, Any]
"""A name or a path, or what such a file holds."""
Count = int | float | str
"""A number, or a text as the command line takes it: ``"7.5B"``."""


def compare(
    model: Config | None = None, *, params: Count | None = None, layers: int | None = None, hidden: int | None = None,
    heads: int | None = None, kv_heads: int | None = None, ffn: int | None = None, vocab: int | None = None,
    trace: str | None = None, trace_args: Mapping[str, Any] | None = None, world_size: int | None = None,
    gpus_per_node: int | None = None, dp: int | None = None, tp: int | None = None, pp: int | None = None,
    cp: int | None = None, ep: int | None = None, sequence_parallel: bool = False, virtual_stages: int | None = None,
    strategy: str | Sequence[str] | None = None, deepspeed: Config | None = None, accelerate: Config | None = None,
    precision: str | None = None, optimizer: str | None = None, micro_batch: int | None = None,
    seq_len: int | None = None, grad_accum: int | None = None, global_batch: int | None = None,
    checkpointing: str | None = None, checkpoint_every: int | None = None, attention: str | None = None,
    loss: str | None = None, stack: str | None = None, lora_rank: int | None = None, qlora: bool = False,
    gpu: str | None = None, device_memory: int | str | None = None, link: float | str | None = None,
) -> Comparison:  # fmt: skip
    """Return what a run needs per GPU under every strategy; each keyword is the flag of ``ranktop plan`` of that name.

    model: a name of ``model_names()``, the path of a Hugging Face ``config.json``, or what it holds (a dict). Instead
        of it: params (a count, ``7.5e9`` or ``"7.5B"``) and, for what needs a shape, layers, hidden, heads, vocab.
    trace, trace_args: ``"module:Class"`` whose activations are read in another process (it needs torch).
    world_size, gpus_per_node: GPUs. dp, tp, pp, cp, ep, virtual_stages: sizes of the axes; None: each strategy's own.
    strategy: one of ``STRATEGIES``, several, or None for all.
    deepspeed, accelerate: a path, or what such a file holds.
    precision: one of ``PRECISIONS``. optimizer: ``"adamw"``, ... checkpointing: one of ``CHECKPOINTING``.
    micro_batch: samples of a forward and rank. seq_len: tokens of a sample. grad_accum: forwards of a step.
    global_batch: samples of a step over all ranks. lora_rank, qlora: adapters on a frozen base.
    gpu: a name of ``gpu_names()``. device_memory: bytes, or ``"80GiB"``. link: bytes per second, or ``"400Gb/s"``.

    Raises BadInput: one line that says what is wrong and what to do.
    """
    given = dict(locals())
    from ranktop.budget.notebook.comparison import Comparison
    from ranktop.budget.planning.answer import answer
    from ranktop.budget.planning.request import request

    with named_as_keywords():
        return Comparison(answer(request(flags_of(given))))


def flags_of(given: Mapping[str, Any]) -> Flags:
    """Return the same question as texts and files, None and False left out. Raises BadInput for what is neither."""
    typed: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value is False:
            continue
        if name == "trace_args":
            if not isinstance(value, Mapping):
                raise BadInput(f"--trace-args is a dict, not a {type(value).__name__}")
            typed["trace_arg"] = tuple(f"{key}={each}" for key, each in value.items())
        elif name == "strategy" and not isinstance(value, str):
            if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
                raise BadInput(f"--strategy is a name or a list of names, not {reprlib.repr(value)}")
            typed[name] = ",".join(value)
        elif name == "link" and isinstance(value, int | float):
            typed[name] = f"{_digits(value)}B/s"
        elif name == "device_memory" and isinstance(value, int | float):
            typed[name] = f"{_digits(value)}B"
        elif value is True and name in ("sequence_parallel", "qlora"):
            typed[name] = True
        else:
            typed[name] = _text(name, value)
    return Flags(**typed)


def _text(name: str, value: object) -> object:
    if name in ("model", "deepspeed", "accelerate"):
        if isinstance(value, Mapping):
            return value
        if isinstance(value, str | os.PathLike):
            return os.fspath(value)
        raise BadInput(f"--{name} is a path or a dict, not a {type(value).__name__}")
    if isinstance(value, bool | Mapping | list | tuple):
        raise BadInput(f"{spelled(name)} cannot be {value!r}")
    return _digits(value) if isinstance(value, float) else str(value)


def _digits(value: float) -> str:
    """Return a number with the digits that it was written with: 7.5e9 was rounded to two of them."""
    return (
        str(value)
        if isinstance(value, int)
        else str(Decimal(repr(float(value))).normalize()).lower().replace("e+", "e")
    )


@contextmanager
def named_as_keywords() -> Iterator[None]:
    """Have complaints name keywords where the command line's name flags: ``seq_len`` for ``--seq-len``."""
    try:
        yield
    except BadInput as error:
        text = re.sub(r"--([a-z][a-z-]*[a-z])", lambda found: found[1].replace("-", "_"), str(error))
        raise BadInput(text.replace("trace_arg ", "trace_args ")) from None
