"""Which plans fit: strategy x micro-batch x accumulation x checkpointing x offload x precision for one global batch.

``fit`` answers at once; ``Search`` does the same in pieces of a few milliseconds.
"""

from __future__ import annotations

from ranktop.budget.fitting.candidate import Candidate, Fit, Suggestion
from ranktop.budget.fitting.cost import ASSUMED_FLOPS, ASSUMED_HOST_LINK, ASSUMED_LINK, Cost, Speeds, speeds
from ranktop.budget.fitting.search import CHECKPOINTING, Search, global_batch
from ranktop.budget.run import STRATEGIES, Run

__all__ = ["ASSUMED_FLOPS", "ASSUMED_HOST_LINK", "ASSUMED_LINK", "CHECKPOINTING", "Candidate", "Cost", "Fit", "Search",
           "Speeds", "Suggestion", "fit", "global_batch", "speeds"]  # fmt: skip


def fit(
    run: Run,
    *,
    batch: int | None = None,
    strategies: tuple[str, ...] = STRATEGIES,
    present: str = "",
    at: Speeds | None = None,
    free: bool = False,
) -> Fit:
    """Search the plans for ``batch`` samples per step (None: the run's own).

    ``present`` is the strategy that runs now, to which the changes are told; ``free``: the run's axes are no wish.
    Raises BadInput without a device's memory, or for a batch that no layout can make.
    """
    search = Search(run, batch=batch, strategies=strategies, present=present, at=at, free=free)
    for _ in search:
        pass
    return search.answer()
