"""Why a rank is slow: the likeliest cause, the gravest first, with the numbers that speak for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ranktop.probes.reading import DeviceDetail
from ranktop.tui.session.findings.finding import Evidence
from ranktop.tui.session.findings.pace import Pace, median
from ranktop.tui.session.findings.slowness import Slow
from ranktop.tui.session.rank_view import RankView

HELD_DOWN: Final = frozenset({
    "hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake",
    "board limit", "reliability",
})  # fmt: skip
"""Throttle reasons that never belong to sound work. ``software power cap`` counts when clocks are low as well."""

LOW_CLOCK: Final = 0.95
"""Share of its peers' SM clock from which a rank's is low."""

MORE_TOKENS: Final = 1.05
TOKENS_EXPLAIN: Final = (0.5, 1.6)
"""How much of the work that the tokens would make the gap may be."""

DATA_EXPLAINS: Final = 0.7
"""Share of the gap that lies in the data phase, from which slow data is the cause."""

STARVED: Final = 0.1
"""Share of the time without a CPU from which that may be the cause."""

STARVED_MORE: Final = 1.5
"""... as a multiple of its peers'."""

STARVED_EXPLAINS: Final = 0.5
"""Share of the cost that it must make up for beyond its peers'."""

LATELY: Final = 20
"""Samples over which clocks and starving are judged."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank is slow."""

    name: str
    """Subject of the finding: the rule that tells of it by itself (``throttle``, ``tokens``), else ``link``, ``data``,
    ``cpu`` or the phase."""
    words: str
    """To close the sentence."""
    evidence: tuple[Evidence, ...] = ()
    advice: str = ""
    known: bool = True
    """False: only where it is slow is known."""


def cause_of(slow: Slow) -> Cause:
    """Return the first cause that holds, else the phase with the cause unknown."""
    for ask in _CHAIN:
        cause = ask(slow)
        if cause is not None:
            return cause
    return _phase(slow)


def _others(slow: Slow) -> list[RankView]:
    return [pace.view for pace in slow.paced.others(slow.rank)]


def _typical(views: Iterable[RankView], of: Callable[[RankView], float | None]) -> float | None:
    values = [value for view in views if (value := of(view)) is not None]
    return median(values) if values else None


def _data_share(slow: Slow) -> float:
    """Share of the cost that lies in the data phase."""
    if not slow.way:
        return float(slow.phase == "data")
    return slow.excess("data") / slow.cost if slow.cost > 0 and "data" in slow.way else 0.0


def _clock_of(view: RankView) -> float | None:
    return _lately([glimpse.clock for glimpse in list(view.glimpses)[-LATELY:]])


def _lately(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known: one sample alone may have met anything."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _clocks(slow: Slow) -> Cause | None:
    sample = slow.pace.view.sample
    if sample is None:
        return None
    reasons = sample.device.throttle or ()
    grave = [reason for reason in reasons if reason in HELD_DOWN]
    clock, peers = _clock_of(slow.pace.view), _typical(_others(slow), _clock_of)
    low = clock is not None and peers is not None and clock <= LOW_CLOCK * peers
    if not grave and not (low and _data_share(slow) < DATA_EXPLAINS):
        return None
    told = [*grave, *(reason for reason in reasons if low and reason == "software power cap")]
    words = "its clocks are held down" if grave else "its clocks are lower"
    if told:
        words += f" ({', '.join(told)})"
    if low and clock is not None and peers is not None:
        words += f", {clock:,.0f} MHz beside {peers:,.0f}"
    return Cause(
        "throttle", words,
        (
            Evidence("throttle", ", ".join(reasons) if sample.device.throttle is not None else None),
            Evidence("SM clock", clock, "MHz"),
            Evidence("median SM clock of its peers", peers, "MHz"),
            Evidence("temperature", sample.device.temperature, "°C"),
            Evidence("power", sample.device.power, "W"),
        ),
        "Look at the cooling, power supply and power limit of this GPU; until that is mended leave its node out.",
    )  # fmt: skip


def _links_up(detail: DeviceDetail) -> int | None:
    if detail.nvlinks is None:
        return None
    return sum(link.up is True for link in detail.nvlinks)


def _link(slow: Slow) -> Cause | None:
    detail = slow.pace.view.detail
    if detail is None:
        return None
    details = [view.detail for view in _others(slow) if view.detail is not None]
    parts: list[str] = []
    facts: list[Evidence] = []

    def below(name: str, value: int | None, most: int | None, usual: list[int]) -> None:
        peers = median(usual) if usual else most
        if value is None or peers is None or value >= peers or (most is not None and value >= most):
            return
        parts.append(f"{name} {value} instead of {peers:.0f}")
        facts.extend((Evidence(name, value), Evidence(f"{name} of its peers", peers)))

    below(
        "PCIe generation", detail.pcie_generation, detail.pcie_max_generation,
        [one.pcie_generation for one in details if one.pcie_generation is not None],
    )  # fmt: skip
    below(
        "PCIe width", detail.pcie_width, detail.pcie_max_width,
        [one.pcie_width for one in details if one.pcie_width is not None],
    )  # fmt: skip
    total = len(detail.nvlinks) if detail.nvlinks is not None else None
    up = [links for one in details if (links := _links_up(one)) is not None]
    below("NVLinks up", _links_up(detail), max([total or 0, *up]) or None, up)
    if not parts:
        return None
    advice = "Reseat or replace the card or its riser, or leave the node out; nvidia-smi -q shows the link."
    return Cause("link", f"its link is degraded: {', '.join(parts)}", tuple(facts), advice)


def tokens_of(pace: Pace) -> float | None:
    """Return the median tokens of a rank's last steps; None when they are not known."""
    values = [tokens for tokens in pace.tokens if tokens is not None]
    return median(values) if values else None


def _tokens(slow: Slow) -> Cause | None:
    own = tokens_of(slow.pace)
    known = [tokens for pace in slow.paced.others(slow.rank) if (tokens := tokens_of(pace)) is not None]
    peers = median(known)
    if own is None or not peers or own < MORE_TOKENS * peers:
        return None
    more = own / peers - 1
    compute = slow.paced.middle(slow.rank, "forward")
    if "forward" not in slow.way or slow.arrival is not None:
        # Its backward is seen as well; that of the rank that waits least comes closest to work alone.
        compute += slow.pace.phase("backward") / (1 + more)
    expected = more * compute
    if expected <= 0 or not TOKENS_EXPLAIN[0] <= slow.cost / expected <= TOKENS_EXPLAIN[1]:
        return None
    return Cause(
        "tokens", f"it has {100 * more:.0f} % more tokens",
        (Evidence("tokens per step", own, "tokens"), Evidence("median tokens of its peers", peers, "tokens")),
        "Balance the batches by tokens, not by samples: bucket or pack sequences of similar length across the ranks.",
    )  # fmt: skip


def _data(slow: Slow) -> Cause | None:
    if _data_share(slow) < DATA_EXPLAINS:
        return None
    starved = _starved_of(slow.pace.view)
    return Cause(
        "data", "its data loading is slow",
        (Evidence("waited for a CPU", None if starved is None else 100 * starved, "%"),),
        "Give its loader more workers or prefetching, and look at the storage and at the CPU load of its node.",
    )  # fmt: skip


def _starved_of(view: RankView) -> float | None:
    return _lately([glimpse.starved for glimpse in list(view.glimpses)[-LATELY:]])


def _cpu(slow: Slow) -> Cause | None:
    own, peers = _starved_of(slow.pace.view), _typical(_others(slow), _starved_of)
    usual = peers or 0.0
    explained = (own or 0.0) - usual >= STARVED_EXPLAINS * slow.cost / slow.paced.step
    if own is None or own <= max(STARVED, STARVED_MORE * usual) or not explained:
        return None
    return Cause(
        "cpu", f"its training thread waits for a CPU {100 * own:.0f} % of the time",
        (
            Evidence("waited for a CPU", 100 * own, "%"),
            Evidence("the same of its peers", None if peers is None else 100 * peers, "%"),
        ),
        "Look for other processes on its cores; bind the rank to cores of its own and lower OMP_NUM_THREADS.",
    )  # fmt: skip


def place(slow: Slow) -> str:
    """Return the phase that it is slow in; all in which ranks wait for each other when its phases don't show it."""
    if slow.phase:
        return slow.phase
    plan = slow.pace.view.card.plan if slow.pace.view.card is not None else None
    strategy = plan.strategy if plan is not None else ""
    if strategy in ("ddp", "zero0", "dp"):
        return "backward"
    if strategy in ("zero1", "zero2", "zero-redundancy"):
        return "backward or optimizer"
    return "forward, backward or optimizer" if strategy == "zero3" else "forward or backward"


def _phase(slow: Slow) -> Cause:
    advice = "Compare its host and device with its peers': other processes, clocks, memory; profile this rank."
    return Cause(place(slow), "cause unknown", (), advice, known=False)


_CHAIN: Final[tuple[Callable[[Slow], Cause | None], ...]] = (_clocks, _link, _tokens, _data, _cpu)
