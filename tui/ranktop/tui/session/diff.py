"""What differs between two ranks beyond noise: pure arithmetic over their views, written out by the screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ranktop.budget.terms import BUDGETED, CATEGORIES
from ranktop.probes.reading import StepTimes
from ranktop.tui.session.expected import difference
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.groups import peer_groups, role_key
from ranktop.tui.session.gauges import Gauges
from ranktop.tui.session.rank_view import GONE, RankView
from ranktop.tui.session.state import Snapshot

PHASES: Final = ("data", "forward", "backward", "optimizer")
MIB: Final = 1024**2

LEAST_BYTES: Final = 8 * MIB
LEAST_SHARE: Final = 0.01
"""Bytes of a category differ by at least these: MiB, share of what the process holds."""

LEAST_SHARE_OF_CACHE: Final = 0.05
"""The same for the allocator's cache, which depends on the order of what was freed."""

LEAST_SECONDS: Final = 0.001
STEP_SHARE: Final = 0.02
"""Phases differ by at least these: seconds, share of the step."""

SPREADS: Final = 3.0
"""... and by this many median absolute deviations of either side."""

GAUGES: Final = (
    ("utilization", "utilization", "%", 10.0, 0.0), ("power", "power", "W", 40.0, 0.10),
    ("temperature", "temperature", "°C", 8.0, 0.0), ("memory_temperature", "memory temperature", "°C", 10.0, 0.0),
    ("sm_clock", "SM clock", "MHz", 60.0, 0.05), ("memory_clock", "memory clock", "MHz", 60.0, 0.05),
    ("power_limit", "power limit", "W", 1.0, 0.0), ("max_sm_clock", "highest SM clock", "MHz", 1.0, 0.0),
    ("max_memory_clock", "highest memory clock", "MHz", 1.0, 0.0), ("pcie_generation", "PCIe generation", "", 0.5, 0.0),
    ("pcie_width", "PCIe width", "lanes", 0.5, 0.0), ("pcie_replays", "PCIe replays", "", 50.0, 0.0),
    ("ecc_uncorrected", "uncorrected ECC errors", "", 0.5, 0.0),
    ("remapped_uncorrected", "rows remapped (uncorrected)", "", 0.5, 0.0),
)  # fmt: skip
"""Field of the device, name, unit, and by how much two readings differ without a reason: absolute, share."""

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two ranks differ."""

    group: str
    """``runs``, ``device``, ``memory``, ``steps``, ``findings``."""
    name: str
    left: Value
    right: Value
    """None: not known."""
    unit: str = ""
    """``B``, ``s``, ``W``, ...; empty for text and plain numbers."""

    @property
    def away(self) -> float | None:
        """``left - right`` where both are numbers."""
        if isinstance(self.left, (int, float)) and isinstance(self.right, (int, float)):
            return self.left - self.right
        return None


def typical_peer(rank: int, snapshot: Snapshot) -> int | None:
    """Return the peer that is closest to the medians of its group; None for a rank without a peer.

    Of a rank that has ended, the peers are those of the same role that still speak, or else those that ended too.
    """
    view = snapshot.rank(rank)
    if view is None:
        return None
    group = next((group for group in peer_groups(snapshot.ranks) if rank in group.ranks), None)
    members: Sequence[RankView] = group.members if group is not None else ()
    if not members:
        same = [other for other in snapshot.ranks if other.sample is not None and role_key(other) == role_key(view)]
        alive = [other for other in same if other.state not in GONE and other.rank != rank]
        members = alive or same
    others = [other for other in members if other.rank != rank]
    if not others:
        return None
    grave = {one for finding in snapshot.findings if finding.severity != "info" for one in finding.ranks}
    measures = {other.rank: _measures(other) for other in members}
    middles = [_middle(column) for column in zip(*measures.values(), strict=True)]
    return min(
        others, key=lambda other: (other.rank in grave, _distance(measures[other.rank], middles), other.rank)
    ).rank


def _measures(view: RankView) -> tuple[float | None, ...]:
    memory = view.memory(view.peak)
    held = None if memory is None else memory.used()
    times = [step.seconds for step in list(view.steps)[-16:] if step.seconds is not None]
    device = view.sample.device if view.sample is not None else None
    power = device.power if device is not None else None
    heat = device.temperature if device is not None else None
    return (held, median(times) if times else None, power, heat)


def _middle(column: Iterable[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return median(known) if known else None


def _distance(values: Sequence[float | None], middles: Sequence[float | None]) -> float:
    return sum(
        abs(value - middle) / (abs(middle) or 1.0)
        for value, middle in zip(values, middles, strict=True)
        if value is not None and middle is not None
    )


def differences(left: RankView, right: RankView, snapshot: Snapshot) -> tuple[Difference, ...]:
    """Return everything in which two ranks differ beyond noise, by group; empty when nothing does.

    What tells two ranks of a job apart anyway is left out: number, node, process, device's ids, place in the mesh.
    """
    found = [*_runs(left, right), *_memory(left, right), *_steps(left, right), *_device(left, right)]
    found += _findings(left, right, snapshot.findings)
    return tuple(found)


def _runs(left: RankView, right: RankView) -> Iterator[Difference]:
    one, other = left.card, right.card
    if left.state != right.state:
        yield Difference("runs", "state", left.state, right.state)
    if left.restart != right.restart:
        yield Difference("runs", "restarts", left.restart, right.restart)
    if one is None or other is None:
        return
    facts: list[tuple[str, Value, Value]] = [("script", one.script, other.script), ("code", one.code, other.code)]
    names = ("ranktop", "python", "torch", "cuda", "nccl", "deepspeed")
    facts += [(name, getattr(one.versions, name), getattr(other.versions, name)) for name in names]
    facts += [("backend", one.backend, other.backend), ("model", one.model, other.model)]
    if one.plan is not None and other.plan is not None:
        facts += [
            ("strategy", one.plan.strategy, other.plan.strategy),
            ("stage", one.plan.layout.pipeline_rank, other.plan.layout.pipeline_rank),
            ("micro-batch", one.plan.batch.micro_batch, other.plan.batch.micro_batch),
            ("sequence length", one.plan.batch.sequence_length, other.plan.batch.sequence_length),
            ("checkpointing", one.plan.checkpointing, other.plan.checkpointing),
        ]  # fmt: skip
    notes = (set(one.notes) ^ set(other.notes)) and (("; ".join(one.notes), "; ".join(other.notes)))
    facts += [("notes", *notes)] if notes else []
    yield from (Difference("runs", name, a or None, b or None) for name, a, b in facts if a != b)


def _memory(left: RankView, right: RankView) -> Iterator[Difference]:
    one, other = left.memory(left.peak), right.memory(right.peak)
    if one is None or other is None:
        return
    if left.peak != right.peak:
        yield Difference("memory", "peak moment", left.peak, right.peak)
    held = max(_sum(one), _sum(other))
    for name in CATEGORIES:
        a, b = getattr(one, name), getattr(other, name)
        if name == "free" or (a is None and b is None):
            continue
        if a is None or b is None:
            yield Difference("memory", name, a, b, "B")
            continue
        share = LEAST_SHARE_OF_CACHE if name == "cache" else LEAST_SHARE
        if abs(a - b) > max(LEAST_BYTES, share * held, _unrest(left, name) + _unrest(right, name)) and not (
            name in BUDGETED and _meant(left, right, name)
        ):
            yield Difference("memory", name, a, b, "B")


def _sum(memory: object) -> int:
    return sum(getattr(memory, name) or 0 for name in CATEGORIES if name != "free")


def _unrest(view: RankView, name: str) -> float:
    """Return by how much a category moves from step to step."""
    values = [value for step in view.footprints if (value := getattr(step.peak, name)) is not None]
    middle = median(values) if values else 0.0
    return SPREADS * median(abs(value - middle) for value in values) if values else 0.0


def _meant(left: RankView, right: RankView, name: str) -> bool:
    """Tell whether the budget expects the difference: both are as they should be."""
    sides = []
    for view in (left, right):
        memory, moment = view.memory(view.peak), view.peak
        if view.budget is None or memory is None or moment is None:
            return False
        sides.append(difference(getattr(memory, name), view.budget.at(moment).get(name)))
    return sides == [0, 0]


def _steps(left: RankView, right: RankView) -> Iterator[Difference]:
    one, other = left.steps, right.steps
    if not one or not other:
        return
    step = max(_median(one, "seconds")[0] or 0.0, _median(other, "seconds")[0] or 0.0)
    for name in ("seconds", *PHASES):
        (a, noise), (b, more) = _median(one, name), _median(other, name)
        if a is None or b is None:
            continue
        if abs(a - b) > max(LEAST_SECONDS, STEP_SHARE * step, SPREADS * (noise + more) / 2):
            yield Difference("steps", "step time" if name == "seconds" else name, a, b, "s")
    (a, noise), (b, more) = _median(one, "tokens"), _median(other, "tokens")
    if a is not None and b is not None and abs(a - b) > max(0.02 * max(a, b), SPREADS * (noise + more) / 2):
        yield Difference("steps", "tokens a step", a, b, "tokens")
    a, b = one[-1].micro_batches, other[-1].micro_batches
    if a != b:
        yield Difference("steps", "micro-batches a step", a, b)


def _median(steps: Sequence[StepTimes], name: str) -> tuple[float | None, float]:
    """Return the median and the median absolute deviation of what the last steps say."""
    values = [value for step in list(steps)[-32:] if (value := getattr(step, name)) is not None]
    if not values:
        return None, 0.0
    middle = median(values)
    return middle, median(abs(value - middle) for value in values)


def _device(left: RankView, right: RankView) -> Iterator[Difference]:
    if left.card is not None and right.card is not None:
        one, other = left.card.device, right.card.device
        for name, a, b in (
            ("name", one.name, other.name), ("total", one.total, other.total), ("driver", one.driver, other.driver),
            ("CUDA of the driver", one.cuda_driver, other.cuda_driver),
        ):  # fmt: skip
            if a != b:
                yield Difference("device", name, a or None, b or None, "B" if name == "total" else "")
    mine, theirs = Gauges.of(left), Gauges.of(right)
    if mine is None or theirs is None:
        return
    for field, name, unit, least, share in GAUGES:
        a, b = mine.get(field), theirs.get(field)
        if a is None and b is None:
            continue
        if a is None or b is None or abs(a - b) > max(least, share * max(abs(a), abs(b))):
            yield Difference("device", name, a, b, unit)
    a, b = mine.get("throttle"), theirs.get("throttle")
    if a is not None and b is not None and set(a) != set(b):
        yield Difference("device", "slowed by", ", ".join(a) or "nothing", ", ".join(b) or "nothing")
    a, b = (_links(gauges) for gauges in (mine, theirs))
    if a != b:
        yield Difference("device", "NVLinks up", a, b)


def _links(gauges: Gauges) -> int | None:
    links = gauges.get("nvlinks")
    return None if links is None else sum(bool(link.up) for link in links)


def _findings(left: RankView, right: RankView, findings: Iterable[Finding]) -> Iterator[Difference]:
    for finding in findings:
        mine, theirs = left.rank in finding.ranks, right.rank in finding.ranks
        if mine != theirs:
            said = finding.short or finding.sentence
            yield Difference("findings", finding.rule.replace("_", " "), said if mine else "", said if theirs else "")
