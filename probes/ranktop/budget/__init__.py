"""The expected side: what a training run should hold per rank, by its strategy's own rules. Standard library only.

For notebooks and scripts::

    from ranktop.budget import compare

    table = compare("llama-3-8b", world_size=8, gpu="h100")
    print(table)            # the table of ``ranktop plan``; a notebook shows it as HTML
    table["zero2"].total    # bytes of the fullest rank at its peak
    table.to_pandas(), table.to_dict(), table.search()

Sizes are bytes (integers), times seconds (floats); None = not known, with a reason beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranktop.budget.devices import names as gpu_names
    from ranktop.budget.model import BadInput
    from ranktop.budget.models.catalogue import names as model_names
    from ranktop.budget.notebook.ask import compare
    from ranktop.budget.notebook.comparison import Comparison, Estimate
    from ranktop.budget.notebook.found import Candidates
    from ranktop.budget.run import CHECKPOINTING, PRECISIONS, STRATEGIES

__all__ = [
    "CHECKPOINTING", "PRECISIONS", "STRATEGIES", "BadInput", "Candidates", "Comparison", "Estimate", "compare",
    "gpu_names", "model_names",
]  # fmt: skip

_HOME: Final = {
    "compare": ("notebook.ask", "compare"),
    "Comparison": ("notebook.comparison", "Comparison"),
    "Estimate": ("notebook.comparison", "Estimate"),
    "Candidates": ("notebook.found", "Candidates"),
    "BadInput": ("model", "BadInput"),
    "STRATEGIES": ("run", "STRATEGIES"),
    "PRECISIONS": ("run", "PRECISIONS"),
    "CHECKPOINTING": ("run", "CHECKPOINTING"),
    "model_names": ("models.catalogue", "names"),
    "gpu_names": ("devices", "names"),
}
"""Name -> the module that has it, and what it is called there."""


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is asked for: an agent imports its own parts of this package and no more."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, own = _HOME[name]
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), own)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
