"""Which model is meant: a name, a config file, or plain numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ranktop.budget.model import BadInput, Model
from ranktop.budget.planning.flags import Flags, spelled
from ranktop.budget.planning.numbers import count, whole

SHAPE: Final = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
NEEDED: Final = ("layers", "hidden", "heads", "vocab")
MOST: Final = {"layers": 100_000, "hidden": 10**7, "heads": 10**5, "kv_heads": 10**5, "ffn": 10**8, "vocab": 10**8}
MOST_PARAMETERS: Final = 10**16

NOTHING: Final = "say which model: --model NAME, --model path/to/config.json, or --params 7.5e9"

OTHER_MODELS: Final = "; any other model: --params with its shape, or --trace MODULE:CLASS"

ENOUGH_ALIKE: Final = 0.1
"""A shape whose parameters differ by more from the number given beside it is not that model's."""

EXACT: Final = 0.0005
"""A number that is off by less is that model's."""

POSITIONS: Final = 2048
"""Tokens per sample of a model that is given by numbers alone."""


def model_of_flags(flags: Flags) -> tuple[Model, tuple[str, ...]]:
    """Return the model and what was taken for granted. Raises BadInput."""
    if flags.trace is not None and flags.model is None and flags.params is None:
        layers = whole("--layers", flags.layers, MOST["layers"]) if flags.layers is not None else 0
        return Model(name=flags.trace, layers=layers), ()
    shape = [name for name in SHAPE if getattr(flags, name) is not None]
    if flags.model is not None:
        if flags.params is not None:
            raise BadInput("--model and --params both say which model; leave one out")
        if shape:
            name = flags.model if isinstance(flags.model, str) else "given"
            raise BadInput(f"{spelled(shape[0])} is for --params: --model {name} has its own shape")
        return (_named(flags.model) if isinstance(flags.model, str) else _described(flags.model)), ()
    if shape:
        return _shaped(flags, shape)
    if flags.params is None:
        raise BadInput(NOTHING)
    parameters = count("--params", flags.params, MOST_PARAMETERS)
    return Model(count=parameters), ()


def _named(text: str) -> Model:
    """Return the model of a config file when it looks like a path, else the one of that name."""
    if not text.strip():
        raise BadInput(NOTHING)
    if not (text.endswith(".json") or text.startswith(("/", "./", "../", "~")) or os.path.exists(text.rstrip("/"))):
        from ranktop.budget.models.catalogue import find

        return find(text)
    # What most runs need no file for takes as long to load as three strategies to compare.
    from pathlib import Path

    from ranktop.budget.planning.files import json_of, shown

    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadInput(f"--model {shown(path)}: there is no config.json in that folder")
        path = path / "config.json"
    from ranktop.budget.models.huggingface import model_of

    name = path.parent.name if path.name == "config.json" else path.stem
    try:
        return model_of(json_of("--model", path), name or path.stem)
    except BadInput as error:
        told = str(error) + (OTHER_MODELS if "model_type" in str(error) else "")
        raise BadInput(told if shown(path) in told else f"--model {shown(path)}: {told}") from None


def _described(config: Mapping[str, Any]) -> Model:
    """Return the model of what a ``config.json`` holds. Raises BadInput."""
    from ranktop.budget.models.huggingface import model_of

    name = config.get("_name_or_path") or config.get("model_type") or "model"
    try:
        return model_of(config, str(name))
    except BadInput as error:
        told = str(error) + (OTHER_MODELS if "model_type" in str(error) else "")
        # The config's own text must not reach a terminal as it is.
        raise BadInput("".join(c if c.isprintable() else "?" for c in f"--model: {told}")) from None


def _shaped(flags: Flags, given: list[str]) -> tuple[Model, tuple[str, ...]]:
    """Return the known family of that shape whose number of parameters comes nearest to the one given."""
    missing = [spelled(name) for name in NEEDED if name not in given]
    if missing:
        raise BadInput(f"{spelled(given[0])} alone is no shape: give {', '.join(missing)} too")
    sizes = {name: whole(spelled(name), getattr(flags, name), MOST[name]) for name in given}
    if sizes["hidden"] % sizes["heads"]:
        raise BadInput(f"--heads {sizes['heads']} does not divide --hidden {sizes['hidden']}")
    if sizes["heads"] % sizes.get("kv_heads", 1):
        raise BadInput(f"--kv-heads {sizes['kv_heads']} does not divide --heads {sizes['heads']}")
    candidates = _candidates(sizes, flags)
    length = () if flags.seq_len else (f"{POSITIONS} tokens per sample (--seq-len)",)
    if flags.params is None:
        return candidates[0], (f"a shape alone: taken for a model like {_like(candidates[0])}", *length)
    from ranktop.budget.models.tensors import count as counted

    wanted = count("--params", flags.params, MOST_PARAMETERS)
    best = min(candidates, key=lambda model: abs(counted(model) - wanted))
    other = next(each for each in candidates if (each.family, each.tied) == (best.family, not best.tied))
    if best.family == "llama" and best.tied and abs(counted(other) - wanted) <= _rounding(flags.params, wanted):
        best, other = other, best
    off = counted(best) / wanted - 1
    if abs(off) > ENOUGH_ALIKE:
        raise BadInput(
            f"--params {flags.params} is not of that shape: it has {counted(best):,} parameters as a model like "
            f"{_like(best)}; correct one, or leave --params out"
        )
    there = counted(other) / wanted - 1
    instead = f"; with a {_head(other)} {100 * there:+.1f} %"
    told = f"counted as a model like {_like(best)}, {100 * off:+.1f} % from the number given"
    return best, (told + instead * (abs(off) >= EXACT and abs(there) <= ENOUGH_ALIKE), *length)


def _rounding(text: str, number: int) -> int:
    """Return by how much a number may be off that was rounded or cut to the digits typed: one of the last digit."""
    digits = "".join(c for c in text.lower().partition("e")[0] if c.isdigit()).lstrip("0")
    return int(10 ** max(0, len(str(number)) - len(digits))) if digits else 0


def _candidates(sizes: dict[str, int], flags: Flags) -> list[Model]:
    """Return the decoders of these sizes that are common, the most likely first."""
    hidden, heads = sizes["hidden"], sizes["heads"]
    grouped = sizes.get("kv_heads", heads) != heads
    wide = sizes.get("ffn", 4 * hidden) != 4 * hidden
    positions = whole("--seq-len", flags.seq_len, MOST["vocab"]) if flags.seq_len else POSITIONS
    models = [
        Model(
            family=family,
            layers=sizes["layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=sizes.get("kv_heads", heads),
            head_dim=hidden // heads,
            ffn=sizes.get("ffn", 4 * hidden),
            vocab=sizes["vocab"],
            positions=positions,
            tied=tied,
            options={"bias": True} if family == "gpt" else {},
        )
        for family in ("gpt", "llama")
        for tied in (False, True)
    ]
    return [model for model in models if model.family == "llama"] if grouped or wide else models


def _like(model: Model) -> str:
    known = {"gpt": "GPT-2 (LayerNorm, biases, learned positions)", "llama": "Llama (RMSNorm, gated MLP)"}
    return f"{known[model.family]}, {_head(model)}"


def _head(model: Model) -> str:
    return "tied head" if model.tied else "head of its own"
