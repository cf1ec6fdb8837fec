"""What a Python stack says of a rank that stands: where in the script it is, if it waits, saves or compiles."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final

from ranktop.tui.session.rank_view import RankView
from ranktop.wire.activity import SAVE, VALIDATION, kind_of
from ranktop.wire.schema import Call

LIBRARIES: Final = frozenset({
    "PIL", "accelerate", "aiohttp", "apex", "botocore", "composer", "cv2", "datasets", "deepspeed", "fsspec",
    "functorch", "h5py", "huggingface_hub", "lightning", "lightning_fabric", "megatron", "mlflow", "numpy", "pandas",
    "peft", "pyarrow", "pytorch_lightning", "requests", "safetensors", "tokenizers", "torch", "torchaudio",
    "torchdata", "torchvision", "tqdm", "transformer_engine", "transformers", "triton", "urllib3", "wandb",
    "webdataset", "zarr",
})  # fmt: skip
"""Packages that are hardly ever the place in the script that a person looks for."""

_COMMUNICATION: Final = ("torch/distributed/", "deepspeed/comm/")
_NOT_COMMUNICATION: Final = ("torch/distributed/checkpoint/", "torch/distributed/run.py")

_COMPILER: Final = (
    "torch/_inductor/async_compile.py", "torch/_inductor/codecache.py", "torch/_inductor/codegen/",
    "torch/_inductor/graph.py", "torch/_inductor/scheduler.py", "torch/_inductor/select_algorithm.py",
    "torch/_dynamo/convert_frame.py", "torch/_dynamo/output_graph.py", "torch/_dynamo/symbolic_convert.py",
    "triton/backends/", "triton/compiler/", "torch/utils/cpp_extension.py", "deepspeed/ops/op_builder/",
)  # fmt: skip
"""Files that run while something is compiled, and not when what was compiled runs."""

_SAVING: Final = re.compile(r"(^|_)(save|saving)(_|$)|(^|_)(full_)?state_dict$|^_?gather_state", re.IGNORECASE)
_LOADING: Final = re.compile(r"(^|_)load_(state_dict|checkpoint|model|weights)|from_pretrained|resume", re.IGNORECASE)
_VALIDATING: Final = re.compile(
    r"(^|_)(evals?|evaluat\w*|valid\w*|val)(_|$)|^(run_|do_)?test(ing)?(_(epoch|loop|model|one_epoch|set|step))?$",
    re.IGNORECASE,
)
_TRAINING: Final = re.compile("train|fit", re.IGNORECASE)


def script_call(view: RankView, calls: Sequence[Call]) -> Call | None:
    """Return the innermost call of the script itself, else the innermost of all; None for no calls."""
    script = view.card.script.rpartition("/")[2] if view.card is not None else ""
    for call in reversed(calls):
        if call.file == script or not _is_library(call):
            return call
    return calls[-1] if calls else None


def _is_library(call: Call) -> bool:
    first = call.file.partition("/")[0]
    return first in LIBRARIES or first.removesuffix(".py") in sys.stdlib_module_names or call.file.startswith("<")


def where(call: Call) -> str:
    """Write a call: ``load_batch (train.py:31)``."""
    place = f"{call.file}:{call.line}" if call.line else call.file
    return place if call.function.startswith("<module") else f"{call.function} ({place})"


def operation(calls: Sequence[Call]) -> str:
    """Return the collective that the innermost calls are in (``all_reduce``, ``barrier``); empty for none."""
    for call in reversed(calls):
        if not _communicates(call):
            return ""
        if call.file.endswith("/distributed_c10d.py") and not call.function.startswith("_"):
            return call.function
    return ""


def waits(calls: Sequence[Call]) -> bool | None:
    """Tell whether the innermost call waits for other ranks; None where that can't be told."""
    if not calls:
        return None
    last = calls[-1]
    if _communicates(last):
        return True
    # Autograd's engine runs, and waits for collectives, in one call without Python frames.
    return None if last.file == "torch/autograd/graph.py" else False


def _communicates(call: Call) -> bool:
    return call.file.startswith(_COMMUNICATION) and not call.file.startswith(_NOT_COMMUNICATION)


def occupation(view: RankView) -> str:
    """Return what a rank is busy with that takes longer than a step in sound jobs; empty for none that is known.

    ``compiling``, ``saving a checkpoint``, ``loading a checkpoint`` or ``validating``.
    """
    calls = view.stack.calls if view.stack is not None else ()
    if waits(calls):
        return ""
    said = said_occupation(view)
    if said:
        return said
    for call in reversed(calls):
        if call.file.startswith(_COMPILER):
            return "compiling"
        found = _saving_or_loading(call)
        if found:
            return found
        if _VALIDATING.search(call.function) and not _TRAINING.search(call.function) and _may_validate(call):
            return "validating"
    return "validating" if view.validating else ""


def said_occupation(view: RankView) -> str:
    """Return what the script itself says that a rank is busy with (``annotate``), where that is a known word."""
    sample = view.sample
    kind = kind_of(sample.activity) if sample is not None and view.end is None else ""
    return {VALIDATION: "validating", SAVE: "saving a checkpoint"}.get(kind, "")


def _saving_or_loading(call: Call) -> str:
    if call.file == "torch/utils/checkpoint.py":  # activations, not files
        return ""
    stored = call.file in ("torch/serialization.py", "torch/storage.py") or call.file.startswith(
        ("torch/distributed/checkpoint/", "safetensors/")
    )
    if _LOADING.search(call.function) or (stored and "load" in call.function):
        return "loading a checkpoint"
    if stored or _SAVING.search(call.function):
        return "saving a checkpoint"
    return ""


def _may_validate(call: Call) -> bool:
    return not call.file.startswith(("torch/", "numpy/", "triton/")) and not _is_stdlib(call)


def _is_stdlib(call: Call) -> bool:
    return call.file.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names
