"""Config files of DeepSpeed, Accelerate, Trainer and torchtitan, read for a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranktop.budget.model import BadInput, Model
from ranktop.budget.plan import OptimizerPlan
from ranktop.budget.planning.configs import Given, Numbers
from ranktop.budget.planning.files import shown, text_of, toml_of, yaml_of

if TYPE_CHECKING:
    from ranktop.budget.configs.deepspeed import DeepSpeedConfig, Pieces
    from ranktop.budget.planning.flags import Flags

_TORCH_NAMES: Final = {
    "FusedAdam": "AdamW", "DeepSpeedCPUAdam": "AdamW", "FusedLion": "Lion", "DeepSpeedCPULion": "Lion",
    "DeepSpeedCPUAdagrad": "Adagrad",
}  # fmt: skip
"""DeepSpeed's own classes -> what a strategy without DeepSpeed runs instead; the others get DeepSpeed's back."""


def given(flags: Flags, numbers: Numbers, model: Model) -> Given:
    """Return what the file says that one of the flags names. Raises BadInput."""
    if flags.deepspeed is not None:
        config, name = _deepspeed_of(flags.deepspeed)
        world = numbers["world_size"] or _world(config.values, numbers)
        return _with_deepspeed(Given(file=name), config, flags, numbers, model, world)
    assert flags.accelerate is not None
    return _accelerate(flags.accelerate, flags, numbers, model)


def _deepspeed_of(what: str | Mapping[str, Any]) -> tuple[DeepSpeedConfig, str]:
    """Return the config of a file, or of what such a file holds, and its name."""
    if isinstance(what, str):
        path = Path(what).expanduser()
        return _read_deepspeed("--deepspeed", path), shown(path)
    from ranktop.budget.configs.deepspeed import DeepSpeedConfig

    return DeepSpeedConfig(values=what), DeepSpeedConfig.where


def _read_deepspeed(flag: str, path: Path) -> DeepSpeedConfig:
    from ranktop.budget.configs.deepspeed import read

    text = text_of(flag, path)
    if path.suffix.lower() in (".yaml", ".yml", ".toml") and not text.lstrip().startswith("{"):
        hint = f"; an Accelerate config goes to --accelerate {shown(path)}" if flag == "--deepspeed" else ""
        raise BadInput(f"{flag} {shown(path)} is no JSON, which DeepSpeed's config is{hint}")
    try:
        return read(text, shown(path))
    except BadInput as error:
        told = str(error)
        raise BadInput(told if shown(path) in told else f"{shown(path)}: {told}") from None


def _world(values: Mapping[str, Any], numbers: Numbers) -> int | None:
    """Return the GPUs that the three batch numbers of a DeepSpeed config imply, None when they do not."""
    from ranktop.budget.configs.deepspeed_batch import MICRO, STEPS, TRAIN

    train, micro, steps = (values.get(key) for key in (TRAIN, MICRO, STEPS))
    if not all(isinstance(number, int) and number > 0 for number in (train, micro, steps)):
        return None
    data = train // (micro * steps) if train % (micro * steps) == 0 else 0  # type: ignore[operator]
    return data * _model_parallel(numbers) or None


def _model_parallel(numbers: Numbers) -> int:
    return (numbers["tp"] or 1) * (numbers["pp"] or 1) * (numbers["cp"] or 1)


def _with_deepspeed(
    base: Given, config: DeepSpeedConfig, flags: Flags, numbers: Numbers, model: Model, world: int | None
) -> Given:
    """Return what a DeepSpeed config adds; ``auto`` is what the flags say, as a trainer's arguments would."""
    from ranktop.budget.configs.deepspeed import Run, plan_pieces

    data = None if world is None else max(1, world // _model_parallel(numbers))
    known = Run(
        micro_batch=numbers["micro_batch"], accumulation=numbers["grad_accum"], precision=flags.precision or "bf16"
    )
    pieces = plan_pieces(config, world_size=data, model=model if model.family else None, run=known)
    optimizer = pieces.optimizer
    if optimizer is not None and optimizer.name in _TORCH_NAMES:
        optimizer = OptimizerPlan(name=_TORCH_NAMES[optimizer.name], count=1, options=optimizer.options)
    values = {
        "--precision": pieces.precision_name,
        "--micro-batch": pieces.micro_batch,
        "--grad-accum": pieces.accumulation,
        "--world-size": world,
    }
    return Given(
        file=base.file,
        own=pieces.strategy,
        setup=base.setup,
        zero=pieces.zero if pieces.zero.stage else None,
        optimizer=optimizer,
        values={**base.values, **{flag: value for flag, value in values.items() if value is not None}},
        notes=(*base.notes, *_told(pieces), *_automatic(config, flags, pieces)),
    )


def _automatic(config: DeepSpeedConfig, flags: Flags, pieces: Pieces) -> tuple[str, ...]:
    """Say what an ``auto`` precision was taken for, where no flag says it."""
    sections = {name: config.values.get(name) for name in ("fp16", "bf16", "bfloat16")}
    left = [name for name, given in sections.items() if isinstance(given, Mapping) and given.get("enabled") == "auto"]
    if flags.precision is not None or not left:
        return ()
    return (f"{' and '.join(left)} auto: {pieces.precision_name} taken; --precision says which",)


def _told(pieces: Pieces) -> tuple[str, ...]:
    return (*(f"no key {key!r} is known to DeepSpeed" for key in pieces.unknown), *pieces.notes)


def _accelerate(what: str | Mapping[str, Any], flags: Flags, numbers: Numbers, model: Model) -> Given:
    from ranktop.budget.configs.accelerate import read_accelerate

    path = Path(what).expanduser() if isinstance(what, str) else Path("Accelerate config")
    if isinstance(what, str):
        data = toml_of("--accelerate", path) if path.suffix == ".toml" else yaml_of("--accelerate", path)
    else:
        data = what
    setup = read_accelerate(data, shown(path))
    values = {
        "--precision": setup.precision,
        "--micro-batch": setup.micro_batch,
        "--grad-accum": setup.accumulation,
        "--world-size": setup.world_size,
        "--gpus-per-node": setup.gpus_per_node,
        "--seq-len": setup.sequence_length,
        "--checkpointing": setup.checkpointing,
        "--dp": setup.data,
        "--tp": setup.tensor,
        "--pp": setup.pipeline,
        "--cp": setup.context,
        "--ep": setup.expert,
        "--stack": setup.stack or None,
    }
    found = Given(
        file=shown(path),
        own=setup.strategy or None,
        setup=setup,
        values={flag: value for flag, value in values.items() if value is not None},
        notes=(*(f"no key {key!r} is known" for key in setup.unknown), *setup.notes),
    )
    world = found.agreed("--world-size", numbers["world_size"], None)
    if setup.deepspeed_file:
        beside = path.parent / Path(setup.deepspeed_file).expanduser()
        config = _read_deepspeed(f"--accelerate {shown(path)}: deepspeed_config_file", beside)
        return _with_deepspeed(found, config, flags, numbers, model, world)
    if setup.deepspeed is not None:
        from ranktop.budget.configs.deepspeed import DeepSpeedConfig

        config = DeepSpeedConfig(values=setup.deepspeed, where=shown(path))
        return _with_deepspeed(found, config, flags, numbers, model, world)
    return found
