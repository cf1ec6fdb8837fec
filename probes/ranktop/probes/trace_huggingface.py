"""Builds a model from a Hugging Face ``config.json`` at a chosen depth."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ranktop.budget.model import BadInput
from ranktop.probes.trace_model import Recipe, one_line

_DEPTHS: Final = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def recipe(path: Path, given: dict[str, Any], layers: int | None, attention: str) -> Recipe:
    """Return how to build the model of a configuration (a file, or a folder with a ``config.json``).

    ``given`` overrides fields of the configuration. Raises BadInput when it cannot be read, when transformers is not
    installed, or when transformers does not know such a model.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        fields = json.loads(file.read_text())
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"{file} is not valid JSON: {error}") from error
    try:
        import transformers
    except ImportError as error:
        raise BadInput(f"a config.json needs transformers, which this Python lacks: {one_line(error)}") from error
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise BadInput(f"{file} has no model_type: it is not a Hugging Face configuration")
    fields = {**fields, **given}
    kind = fields.pop("model_type")
    try:
        config = transformers.AutoConfig.for_model(kind, **fields)
    except Exception as error:
        raise BadInput(f"{file}: {one_line(error)}") from error
    maker = _maker(transformers, config)
    depth = next((name for name in _DEPTHS if isinstance(getattr(config, name, None), int)), None)
    if depth is None:
        raise BadInput(f"{file}: no field says how many layers it has ({', '.join(_DEPTHS)} are looked for)")
    full = getattr(config, depth)
    wanted = "eager" if attention == "eager" else "sdpa"

    def build(n: int) -> Any:
        return maker(_at_depth(config, n, full), wanted)

    return Recipe(name=str(kind), build=build, layers=layers or full, config=config)


def _maker(transformers: Any, config: Any) -> Any:
    architectures = getattr(config, "architectures", None) or []
    named = next((getattr(transformers, name) for name in architectures if hasattr(transformers, name)), None)
    make = named._from_config if named is not None else transformers.AutoModelForCausalLM.from_config

    def made(config: Any, attention: str) -> Any:
        try:
            return make(config, attn_implementation=attention)
        except ValueError:
            if attention == "eager":
                raise
            # So does transformers itself for an architecture without SDPA when nothing is asked for.
            return make(config, attn_implementation="eager")

    return made


def _at_depth(config: Any, depth: int, full: int) -> Any:
    """Return a copy of a configuration with another depth; lists with one entry per layer are cut to it."""
    made = copy.deepcopy(config)
    for name, value in list(vars(made).items()):
        if isinstance(value, (list, tuple)) and len(value) == full and full > 1 and name != "architectures":
            setattr(made, name, (list(value) * (depth // full + 1))[:depth])
    for name in _DEPTHS:
        if isinstance(getattr(made, name, None), int):
            setattr(made, name, depth)
    # Training keeps no cache of keys and values; transformers' Trainer switches it off as well.
    made.use_cache = False
    if getattr(made, "is_encoder_decoder", False) and getattr(made, "decoder_start_token_id", None) is None:
        made.decoder_start_token_id = 0
    return made


@contextmanager
def nothing_packed() -> Iterator[None]:
    """Let transformers take samples for whole ones: it would look into the positions, which fake tensors do not have.

    Unable to look, it would build a mask for packed samples, and attention would keep it.
    """
    masks = sys.modules.get("transformers.masking_utils")
    look = getattr(masks, "find_packed_sequence_indices", None)
    if masks is None or look is None:
        yield
        return
    masks.find_packed_sequence_indices = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        masks.find_packed_sequence_indices = look  # type: ignore[attr-defined]
