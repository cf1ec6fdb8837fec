"""The flags that describe a run, as they are typed: one list for every command that plans.

They are read by argparse and not by typer: a comparison has to answer within 0.3 s, of which typer's conversion of
forty parameters would take half.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NoReturn, TypeVar

from ranktop.budget.model import BadInput

MODEL: Final = "model"
LAYOUT: Final = "ranks and strategies"
TRAINING: Final = "training"
DEVICE: Final = "device"
OUTPUT: Final = "answer"


def _flag(group: str, metavar: str, text: str) -> Any:
    """Return a field for a flag with a value; None = not given."""
    return field(default=None, metadata={"group": group, "metavar": metavar, "help": text})


def _switch(group: str, text: str) -> Any:
    """Return a field for a flag without a value."""
    return field(default=False, metadata={"group": group, "metavar": None, "help": text})


def _many(group: str, metavar: str, text: str) -> Any:
    """Return a field for a flag that may be given several times."""
    return field(default=(), metadata={"group": group, "metavar": metavar, "help": text, "many": True})


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the user typed, unread; ``request`` reads it and complains in one line."""

    model: str | None = _flag(MODEL, "NAME|PATH", "a model by name, or a Hugging Face config.json")
    params: str | None = _flag(MODEL, "N", "instead of --model: parameters, e.g. 7.5e9 or 7.5B")
    layers: str | None = _flag(MODEL, "N", "with --params: blocks")
    hidden: str | None = _flag(MODEL, "N", "with --params: hidden size")
    heads: str | None = _flag(MODEL, "N", "with --params: attention heads")
    kv_heads: str | None = _flag(MODEL, "N", "with --params: key/value heads (as many as heads)")
    ffn: str | None = _flag(MODEL, "N", "with --params: feed-forward size (4 x hidden)")
    vocab: str | None = _flag(MODEL, "N", "with --params: vocabulary")
    trace: str | None = _flag(MODEL, "MODULE:CLASS", "activations from your own class, read in another process")
    trace_arg: tuple[str, ...] = _many(MODEL, "NAME=VALUE", "an argument of that class; may be given again")

    world_size: str | None = _flag(LAYOUT, "N", "GPUs (the product of the axes given, else one node)")
    gpus_per_node: str | None = _flag(LAYOUT, "N", "GPUs of one node (8)")
    dp: str | None = _flag(LAYOUT, "N", "data-parallel size (what the other axes leave)")
    tp: str | None = _flag(LAYOUT, "N", "tensor-parallel size (1; tp and 3d choose)")
    pp: str | None = _flag(LAYOUT, "N", "pipeline stages (1; pp and 3d choose)")
    cp: str | None = _flag(LAYOUT, "N", "context-parallel size (1)")
    ep: str | None = _flag(LAYOUT, "N", "expert-parallel size (1)")
    sequence_parallel: bool = _switch(LAYOUT, "split along the sequence what tensor parallel leaves whole")
    virtual_stages: str | None = _flag(LAYOUT, "N", "pipeline chunks per rank (1)")
    strategy: str | None = _flag(LAYOUT, "A,B,...", "strategies to compare (all)")
    deepspeed: str | None = _flag(LAYOUT, "FILE", "DeepSpeed's JSON")
    accelerate: str | None = _flag(LAYOUT, "FILE", "Accelerate's YAML")

    precision: str | None = _flag(
        TRAINING, "NAME", "fp32, amp-fp16, amp-bf16, bf16, bf16-master, fp16-master or fp8 (bf16-master)"
    )
    optimizer: str | None = _flag(
        TRAINING, "NAME", "sgd, momentum, adam, adamw, adafactor, adamw8bit, lion, muon ... (adamw)"
    )
    micro_batch: str | None = _flag(TRAINING, "B", "samples per forward and rank (1)")
    seq_len: str | None = _flag(TRAINING, "S", "tokens per sample (the longest that the model was made for)")
    grad_accum: str | None = _flag(TRAINING, "K", "forwards per optimizer step (1)")
    global_batch: str | None = _flag(TRAINING, "G", "samples per step over all ranks, instead of --grad-accum")
    checkpointing: str | None = _flag(TRAINING, "HOW", "activation checkpointing: none, selective or full (none)")
    checkpoint_every: str | None = _flag(TRAINING, "K", "with full checkpointing: blocks per segment (1)")
    attention: str | None = _flag(TRAINING, "HOW", "sdpa, eager or flash (sdpa)")
    loss: str | None = _flag(TRAINING, "HOW", "upcast, plain, hf, chunked, megatron, megatron-fused or none (auto)")
    stack: str | None = _flag(TRAINING, "NAME", "whose layers run: torch or megatron (torch)")
    lora_rank: str | None = _flag(TRAINING, "R", "train adapters of this rank on a frozen base")
    qlora: bool = _switch(TRAINING, "adapters, and the frozen base in 4 bits (NF4)")

    device_memory: str | None = _flag(DEVICE, "SIZE", "memory of one GPU, e.g. 80GiB or 24GB")
    gpu: str | None = _flag(DEVICE, "NAME", "a GPU by name, e.g. h100")
    link: str | None = _flag(
        DEVICE, "SPEED", "what one GPU can send, between nodes if there are several, e.g. 400Gb/s or 50GB/s"
    )


@dataclass(frozen=True, kw_only=True)
class PlanFlags(Flags):
    """Flags of ``ranktop plan``."""

    fit: bool = _switch(OUTPUT, "search the plans that fit for the global batch, the cheapest first")
    fit_plan: str | None = _flag(OUTPUT, "N", "with --fit: show the lines that ask for the N-th plan (1)")
    json: bool = _switch(OUTPUT, "the documented JSON instead of a table")


Kind = TypeVar("Kind", bound=Flags)


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        flag, _, rest = message.removeprefix("argument ").partition(": ")
        raise BadInput(f"{flag} needs a value" if rest.startswith("expected one argument") else message)


def spelled(name: str) -> str:
    """Return a field's name as it is typed."""
    return "--" + name.replace("_", "-")


def parser(kind: type[Flags], command: str, text: str, epilog: str = "") -> argparse.ArgumentParser:
    """Return the parser of a command whose flags are the fields of ``kind``."""
    found = _Parser(
        prog=f"ranktop {command}",
        usage=f"ranktop {command} --model NAME|PATH [flags]",
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for each in fields(kind):
        about = each.metadata
        group = groups.get(about["group"])
        if group is None:
            group = groups[about["group"]] = found.add_argument_group(about["group"])
        how: dict[str, Any] = {"metavar": about["metavar"]}
        if about["metavar"] is None:
            how = {"action": "store_true"}
        elif about.get("many"):
            how |= {"action": "append", "default": []}
        group.add_argument(spelled(each.name), help=about["help"], **how)
    return found


def read(kind: type[Kind], reader: argparse.ArgumentParser, arguments: Sequence[str]) -> Kind:
    """Return the flags typed. Raises BadInput; prints the help and exits when it is asked for."""
    valued = {spelled(each.name) for each in fields(kind) if each.metadata["metavar"] is not None}
    given, unknown = reader.parse_known_args(_joined(arguments, valued))
    if unknown:
        raise BadInput(_unknown(unknown[0], [spelled(each.name) for each in fields(kind)]))
    typed: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(given).items()}
    return kind(**typed)


def _joined(arguments: Sequence[str], valued: set[str]) -> list[str]:
    """Tie a value that starts with a minus to its flag, so that it is not taken for a flag of its own."""
    out: list[str] = []
    for argument in arguments:
        if out and out[-1] in valued and argument[:1] == "-" and argument[1:2].isdigit():
            out[-1] += f"={argument}"
        else:
            out.append(argument)
    return out


def _unknown(text: str, known: list[str]) -> str:
    name = text.partition("=")[0]
    if not name.startswith("-"):
        return f"unexpected {text!r}: every value needs its flag, as in --model {text}"
    return f"no flag {name}{meant(name, known)}; `ranktop plan --help` lists them"


def meant(text: str, known: Sequence[str]) -> str:
    """Return `` (did you mean a or b?)`` for close matches, else nothing."""
    from difflib import get_close_matches

    close = [name for name in known if len(text) > 2 and name.startswith(text)][:3]
    close = close or get_close_matches(text, known, n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
