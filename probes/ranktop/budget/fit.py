"""Which plans fit: a search over strategies, micro-batches, checkpointing and precision for one global batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.project import project
from ranktop.budget.run import STRATEGIES, Projection, Run

CHECKPOINTING: Final = ("none", "selective", "full")

ASSUMED_LINK: Final = 50e9
"""Bytes per second that a GPU is taken to send where the run does not say: 400 Gbit/s."""

ASSUMED_HOST_LINK: Final = 25e9
"""Bytes per second between a GPU and host memory: PCIe 4 x16, as it is reached."""

ASSUMED_FLOPS: Final = 200e12
"""Operations per second that a GPU is taken to reach, to weigh recomputation against communication."""

_LESS_PRECISION: Final = {
    "fp32": ("amp-bf16", "bf16-master"),
    "amp-fp16": ("fp16-master",),
    "amp-bf16": ("bf16-master",),
}
"""What may be tried instead of a precision when nothing fits with it: as exact in its updates, smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One plan for the wanted global batch."""

    run: Run
    projection: Projection
    changes: tuple[str, ...]
    """What differs from the run as it was given, in words."""
    sending: float
    """Seconds at least per step that one GPU sends, at the run's link speed or the assumed one."""
    copying: float
    """Seconds at least per step of copies between device and host because of offloading."""
    recomputing: float
    """Seconds per step of repeated forward computation, at the assumed speed."""

    @property
    def cost(self) -> float:
        """Seconds per step beyond the computation that every plan has."""
        return self.sending + self.copying + self.recomputing

    @property
    def missing(self) -> int:
        """Bytes by which it does not fit; 0 when it does."""
        return max(0, -(self.projection.headroom or 0))


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer of a search."""

    global_batch: int
    """Samples per optimizer step, over all ranks."""
    fitting: tuple[Candidate, ...]
    """Those that fit, cheapest first."""
    nearest: Candidate | None
    """When nothing fits: what needs the least more memory."""
    tried: int
    """Plans looked at."""


def global_batch(run: Run) -> int:
    """Return the samples per optimizer step of a run as given, data parallel over what tp, pp and cp leave."""
    model_parallel = (run.tensor or 1) * (run.pipeline or 1) * run.context
    return run.micro_batch * run.accumulation * max(1, run.world_size // model_parallel)


def fit(run: Run, *, batch: int | None = None, strategies: tuple[str, ...] = STRATEGIES, present: str = "") -> Fit:
    """Search the plans for ``batch`` samples per step (None: the run's own). Raises BadInput without a capacity.

    ``present`` is the strategy that runs now, to which the changes are told.
    """
    if run.device_memory is None:
        raise BadInput("to say what fits, the memory of a device is needed: give --device-memory or --gpu")
    wanted = global_batch(run) if batch is None else batch
    if wanted < 1:
        raise BadInput(f"a global batch must be at least 1, not {wanted}")
    found = list(_search(run, wanted, strategies, run.precision, present))
    for precision in _LESS_PRECISION.get(run.precision, ()):
        if any(not candidate.missing for candidate in found):
            break
        found += _search(run, wanted, strategies, precision, present)
    fitting = sorted((c for c in found if c.projection.fits), key=lambda c: (round(c.cost, 4), len(c.changes)))
    short = [c for c in found if c.projection.fits is False]
    nearest = min(short, key=lambda c: (c.missing, c.cost)) if short and not fitting else None
    return Fit(wanted, tuple(fitting), nearest, len(found))


def _search(run: Run, batch: int, strategies: tuple[str, ...], precision: str, present: str) -> Iterator[Candidate]:
    for strategy in strategies:
        if strategy in ("single", "ps") and run.world_size > 1:
            continue
        for checkpointing in CHECKPOINTING:
            tried = replace(run, precision=precision, checkpointing=checkpointing)
            candidate = _best(tried, run, batch, strategy, present)
            if candidate is not None:
                yield candidate


def _best(changed: Run, run: Run, batch: int, strategy: str, present: str) -> Candidate | None:
    """Return the plan with the largest micro-batch that fits, or with one sample when none does."""
    first = project(replace(changed, micro_batch=1, accumulation=1), strategy)
    rank = first.rank
    if rank is None or batch % rank.plan.layout.data:
        return None
    each = batch // rank.plan.layout.data
    stages = rank.plan.layout.pipeline
    # A pipeline wants at least as many micro-batches as stages, or its stages wait for each other.
    most = min(first.max_micro_batch or 1, max(1, each // stages))
    micro = next(n for n in range(most, 0, -1) if each % n == 0)
    while True:
        asked = replace(changed, micro_batch=micro, accumulation=each // micro)
        found = project(asked, strategy)
        if found.rank is None or found.fits is None:
            return None
        if found.fits or micro == 1:
            return _candidate(asked, run, found, present)
        micro = next(n for n in range(micro - 1, 0, -1) if each % n == 0)


def _candidate(asked: Run, run: Run, found: Projection, present: str) -> Candidate:
    rank = found.rank
    if rank is None:
        raise NoRule("a refused strategy has no plan")
    layout = rank.plan.layout
    parameters = run.model.count or _parameters(run)
    tokens = asked.micro_batch * asked.accumulation * (asked.sequence_length or run.model.positions or 1)
    again = {"full": 1.0, "selective": 0.1}.get(asked.checkpointing, 0.0)
    flops = 2 * parameters * tokens * again / (layout.tensor * layout.pipeline * layout.context)
    away = (rank.budget.host.bytes or 0) + (rank.budget.nvme.bytes or 0)
    return Candidate(
        run=asked,
        projection=found,
        changes=_changes(asked, run, found.strategy, present),
        sending=found.sent / (run.link or ASSUMED_LINK),
        copying=away / ASSUMED_HOST_LINK,
        recomputing=flops / ASSUMED_FLOPS,
    )


def _parameters(run: Run) -> int:
    from ranktop.budget.models.tensors import tensors

    if run.inventory is not None and not run.model.family:
        return run.inventory.numel
    return sum(tensor.numel for tensor in tensors(run.model))


def _changes(asked: Run, run: Run, strategy: str, present: str) -> tuple[str, ...]:
    told = [f"{present} → {strategy}" if present else strategy] if strategy != present else []
    pairs = (
        ("precision", run.precision, asked.precision),
        ("checkpointing", run.checkpointing, asked.checkpointing),
        ("micro-batch", run.micro_batch, asked.micro_batch),
        ("accumulation", run.accumulation, asked.accumulation),
    )
    told += [f"{name} {before} → {after}" for name, before, after in pairs if before != after]
    return tuple(told)
