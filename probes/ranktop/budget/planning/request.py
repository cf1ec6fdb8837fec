"""What is asked: a run and the strategies to compare, read from flags and config files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from ranktop.budget.axes import check
from ranktop.budget.model import LEARNED_POSITIONS, BadInput
from ranktop.budget.optimizers.names import by_name
from ranktop.budget.plan import OptimizerPlan
from ranktop.budget.planning.configs import Given, Numbers
from ranktop.budget.planning.configs import given as configs_of
from ranktop.budget.planning.flags import Flags, meant, spelled
from ranktop.budget.planning.model_flags import model_of_flags
from ranktop.budget.planning.numbers import rate, size, whole
from ranktop.budget.planning.training_flags import ATTENTION, LOSSES, STACKS, choice, lora
from ranktop.budget.run import CHECKPOINTING, PRECISIONS, STRATEGIES, Run

MOST: Final = {
    "world_size": 10**7, "gpus_per_node": 10**4, "dp": 10**7, "tp": 10**4, "pp": 10**4, "cp": 10**5, "ep": 10**5,
    "virtual_stages": 10**4, "micro_batch": 10**6, "seq_len": 10**8, "grad_accum": 10**6, "global_batch": 10**9,
    "checkpoint_every": 10**5,
}  # fmt: skip
"""Beyond these a number is a typing error."""

NODE: Final = 8
"""GPUs of a node when nobody says."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A run with the names of what is compared, and what a reader wants to know about where it came from."""

    run: Run
    parameters: int
    """Of the whole model."""
    strategies: tuple[str, ...]
    optimizer: str
    """As the user called it."""
    device: str
    """The device's name, or its size as typed."""
    global_batch: int | None = None
    """Samples per optimizer step over all ranks, when that was given."""
    micro_batch_given: bool = False
    accumulation_given: bool = False
    own: str | None = None
    """The strategy that a config file asks for."""
    notes: tuple[str, ...] = ()
    """What the config file holds that is not known or makes no difference here, one line each."""
    assumed: tuple[str, ...] = ()
    """What was taken for granted, one line each."""


def request(flags: Flags) -> Request:
    """Return what the flags ask for. Raises BadInput with one line that says what is wrong and what to do."""
    from ranktop.budget.models.tensors import count

    model, assumed = model_of_flags(flags)
    numbers = _numbers(flags)
    config = configs_of(flags, numbers, model)
    world, told = _world(numbers, config)
    layout = _layout(flags, config, numbers)
    device = _device(flags, world, layout["gpus_per_node"])
    optimizer = _optimizer(flags, config)
    run = Run(
        model=model,
        world_size=world,
        optimizer=optimizer,
        zero=config.zero,
        fsdp=config.setup.fsdp if config.setup is not None else None,
        device_memory=device.memory,
        link=device.link,
        **layout,
        **_training(flags, config, numbers),
    )
    if numbers["checkpoint_every"] is not None and run.checkpointing != "full":
        raise BadInput("--checkpoint-every is for --checkpointing full; give that too, or leave it out")
    check(run)
    _check_sequence(run)
    run, length = _usual_length(run)
    if flags.trace is not None:
        from ranktop.budget.planning.tracing import traced

        run = traced(run, flags.trace, flags.trace_arg)
    return Request(
        run=run,
        parameters=count(run.model),
        strategies=strategies(flags.strategy),
        optimizer=flags.optimizer or optimizer.name or "none",
        device=device.name,
        global_batch=numbers["global_batch"],
        micro_batch_given=numbers["micro_batch"] is not None or "--micro-batch" in config.values,
        accumulation_given=numbers["grad_accum"] is not None or "--grad-accum" in config.values,
        own=config.own,
        notes=config.notes,
        assumed=(*assumed, *told, *length, *device.assumed),
    )


def _layout(flags: Flags, config: Given, numbers: Numbers) -> dict[str, Any]:
    """Return how ranks are dealt out, as fields of Run."""
    split = "megatron" if config.agreed("--stack", flags.stack, "torch") == "megatron" else "dtensor"
    given = config.setup.sequence_parallel if config.setup is not None else ""
    axes = {"data": "dp", "tensor": "tp", "pipeline": "pp"}
    return {
        "gpus_per_node": config.agreed("--gpus-per-node", numbers["gpus_per_node"], NODE),
        **{field: config.agreed(f"--{flag}", numbers[flag], None) for field, flag in axes.items()},
        "context": config.agreed("--cp", numbers["cp"], 1),
        "expert": config.agreed("--ep", numbers["ep"], 1),
        "virtual": numbers["virtual_stages"] or 1,
        "sequence_parallel": split if flags.sequence_parallel else given,
    }


def _training(flags: Flags, config: Given, numbers: Numbers) -> dict[str, Any]:
    """Return how it is trained, as fields of Run."""
    precision = choice("--precision", flags.precision, PRECISIONS) if flags.precision is not None else None
    checkpointing = choice("--checkpointing", flags.checkpointing, CHECKPOINTING) if flags.checkpointing else None
    return {
        "precision": config.agreed("--precision", precision, "bf16-master"),
        "micro_batch": config.agreed("--micro-batch", numbers["micro_batch"], 1),
        "accumulation": config.agreed("--grad-accum", numbers["grad_accum"], 1),
        "sequence_length": config.agreed("--seq-len", numbers["seq_len"], 0),
        "checkpointing": config.agreed("--checkpointing", checkpointing, "none"),
        "checkpoint_every": numbers["checkpoint_every"] or 1,
        "attention": choice("--attention", flags.attention or "sdpa", ATTENTION),
        "loss": choice("--loss", flags.loss, LOSSES) if flags.loss else "auto",
        "stack": choice("--stack", config.agreed("--stack", flags.stack, "torch"), STACKS),
        "lora": lora(flags),
    }


def _optimizer(flags: Flags, config: Given) -> OptimizerPlan:
    """Return the optimizer that flag and file agree on. Raises BadInput when they don't."""
    typed = by_name(flags.optimizer) if flags.optimizer is not None else None
    here = config.optimizer
    if typed is not None and here is not None and typed.name != here.name:
        raise BadInput(
            f"--optimizer {flags.optimizer} contradicts {config.file}, which says {here.name}; leave one out"
        )
    return typed or here or by_name("adamw")


def _numbers(flags: Flags) -> Numbers:
    """Return every flag of MOST as a number, None where it was not given."""
    typed = {name: getattr(flags, name) for name in MOST}
    return {name: None if text is None else whole(spelled(name), text, MOST[name]) for name, text in typed.items()}


def _world(numbers: Numbers, config: Given) -> tuple[int, tuple[str, ...]]:
    """Return the number of GPUs, and where it comes from when nobody said it."""
    world = config.agreed("--world-size", numbers["world_size"], None)
    if world is not None:
        return world, ()
    axes = [numbers[name] for name in ("dp", "tp", "pp", "cp") if numbers[name] is not None]
    if axes:
        return prod(size or 1 for size in axes), ()
    return NODE, (f"{NODE} GPUs, one node, as --world-size was not given",)


@dataclass(frozen=True)
class _Device:
    """What is known of one GPU."""

    memory: int | None = None
    name: str = ""
    link: float | None = None
    assumed: tuple[str, ...] = ()


def _device(flags: Flags, world: int, per_node: int) -> _Device:
    """Return one GPU's memory, name and link: within a node that of its model, unless the user says otherwise."""
    memory = size("--device-memory", flags.device_memory) if flags.device_memory is not None else None
    link = rate("--link", flags.link) if flags.link is not None else None
    if flags.gpu is None:
        return _Device(memory, "", link, _within_a_node() if link is not None and world > per_node else ())
    from ranktop.budget.devices import find

    found = find(flags.gpu)
    assumed: tuple[str, ...] = ()
    if link is None and 1 < world <= per_node:
        link = found.link
        assumed = (f"{link / 1e9:.0f} GB/s between GPUs: {'NVLink' if found.nvlink else 'PCIe'} of {found.name}",)
    return _Device(memory or found.memory, found.name, link, assumed)


def _within_a_node() -> tuple[str, ...]:
    from ranktop.budget.fitting.cost import speeds

    return (f"{speeds().node_link / 1e9:.0f} GB/s within a node, as no --gpu says more",)


def strategy_named(text: str) -> str:
    """Return the strategy that is meant, however it is spelled: ``ZeRO-3`` is zero3; else the word in lower case."""
    word = text.strip().lower()
    letters = "".join(c for c in word if c.isalnum())
    return next((name for name in STRATEGIES if name.replace("-", "") == letters), word)


def strategies(text: str | None) -> tuple[str, ...]:
    """Return the names asked for, in the order of the table. Raises BadInput."""
    words = [strategy_named(word) for word in (text or "all").split(",") if word.strip()]
    if not words:
        raise BadInput(f"--strategy is empty; there are all, {', '.join(STRATEGIES)}")
    for word in words:
        if word != "all" and word not in STRATEGIES:
            raise BadInput(f"no strategy {word!r}{meant(word, STRATEGIES)}; there are all, {', '.join(STRATEGIES)}")
    return STRATEGIES if "all" in words else tuple(name for name in STRATEGIES if name in words)


def _check_sequence(run: Run) -> None:
    """Raise BadInput for a sequence that learned positions do not reach."""
    model = run.model
    if model.family in LEARNED_POSITIONS and model.positions and run.sequence_length > model.positions:
        raise BadInput(
            f"--seq-len {run.sequence_length}: {model.name} has learned positions for {model.positions} tokens at most"
        )


def _usual_length(run: Run) -> tuple[Run, tuple[str, ...]]:
    """Return the run with a sequence length that people train with, where nobody said one and the model allows more."""
    longest = run.model.positions
    if run.sequence_length or longest <= USUAL:
        return run, ()
    return replace(run, sequence_length=USUAL), (f"{USUAL} tokens per sample (--seq-len); the model takes {longest}",)


USUAL: Final = 8192
"""Tokens per sample that are taken for models made for more."""
