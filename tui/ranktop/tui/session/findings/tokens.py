"""Ranks that get more or fewer tokens than their peers in each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ranktop.tui.session.findings.finding import Evidence, Finding, Plot
from ranktop.tui.session.findings.groups import FEW
from ranktop.tui.session.findings.pace import FEWEST, Paced, median
from ranktop.tui.session.findings.pace import of as paces
from ranktop.tui.session.findings.scene import Scene

ERRORS: Final = 4.0
"""Standard errors of its own median by which a rank must be away: lengths that vary are alike in the long run."""

ERROR_OF_MEDIAN: Final = 1.858
"""Standard error of a median x sqrt(values) in median absolute deviations (1.2533 x 1.4826)."""

TELLING: Final = 24
"""Steps below which lengths that vary say nothing of who has more: so few do not even tell how much they vary."""

NEWEST: Final = 8
"""Newest steps in which it must hold as well: of two ranks the known steps may differ, and batches may grow."""

PLOTTED: Final = 64


def tokens(scene: Scene) -> Iterable[Finding]:
    """Find ranks whose median tokens per step are steadily off those of their peers."""
    for paced in paces(scene):
        counts = {rank: _counts(paced, rank) for rank in paced.members}
        counts = {rank: values for rank, values in counts.items() if len(values) >= FEWEST}
        if len(counts) < 2:
            continue
        medians = {rank: median(values) for rank, values in counts.items()}
        middle = median(medians.values())
        for rank, own in medians.items():
            peers = middle
            if len(medians) < FEW:
                peers = median([value for peer, value in medians.items() if peer != rank])
            if peers <= 0 or not _steadily_off(
                counts[rank], own, peers, scene.limits["tokens.min_share"], few=len(medians) < FEW
            ):
                continue
            if _still_off(counts, rank):
                yield _finding(paced, rank, medians, peers)


def _counts(paced: Paced, rank: int) -> list[float]:
    tokens = paced.members[rank].tokens
    return [value for value in tokens if value is not None] if None in tokens else list(tokens)  # type: ignore[arg-type]


def _steadily_off(values: list[float], own: float, peers: float, share: float, *, few: bool) -> bool:
    ratio, more, fewer = own / peers, 1 + share, 1 - share
    # Of two or three ranks only those with more are told: the others' few are the same finding once more.
    if ratio < more and (few or ratio > fewer):
        return False
    if abs(own - peers) < ERRORS * _error(values, own):
        return False
    middle = len(values) // 2
    halves = (median(values[:middle]) / peers, median(values[middle:]) / peers)
    return min(halves) >= more if ratio > 1 else max(halves) <= fewer


def _error(values: list[float], own: float) -> float:
    return float(ERROR_OF_MEDIAN * median([abs(value - own) for value in values]) / len(values) ** 0.5)


def by_luck(paced: Paced, rank: int) -> bool:
    """Tell whether a rank has other tokens than its peers only as lengths that vary make it in so few steps."""
    counts = [_counts(paced, rank), *(_counts(paced, other.rank) for other in paced.others(rank))]
    if len(counts[0]) < FEWEST:
        return True
    medians = [median(values) for values in counts if values]
    errors = [_error(values, median(values)) for values in counts if values]
    if len(counts[0]) < TELLING and median(errors) > 0.01 * medians[0]:
        return True
    return abs(medians[0] - median(medians[1:])) < ERRORS * max(errors[0], median(errors[1:]))


def _still_off(counts: dict[int, list[float]], rank: int) -> bool:
    """Tell whether the newest steps alone, which are the same of all ranks, show it too."""
    newest = {other: median(values[-NEWEST:]) for other, values in counts.items()}
    peers = median([value for other, value in newest.items() if other != rank])
    off = newest[rank] / peers - 1 if peers > 0 else 0.0
    usual = median(counts[rank]) / median([median(values) for other, values in counts.items() if other != rank]) - 1
    return off / usual >= 0.5 if usual else False


def _finding(paced: Paced, rank: int, medians: dict[int, float], peers: float) -> Finding:
    own = medians[rank]
    more = 100 * (own / peers - 1)
    ranks = sorted(sorted(medians, key=lambda one: abs(one - rank))[:PLOTTED])
    of_peers = " ".join(part for part in ("its peers", paced.role) if part)
    return Finding(
        rule="tokens",
        severity="info",
        ranks=(rank,),
        sentence=(
            f"rank {rank} gets {own:,.0f} tokens per step, {abs(more):.0f} % {'more' if more > 0 else 'fewer'} than "
            f"{of_peers} ({peers:,.0f})"
        ),
        short=f"tok {more:+.0f}%",
        subject="more" if more > 0 else "fewer",
        evidence=(
            Evidence("tokens per step", own, "tokens"),
            Evidence(f"median of {len(medians) - 1} peer{'' if len(medians) == 2 else 's'}", peers, "tokens"),
            Evidence("steps compared", len(_counts(paced, rank)), "steps"),
        ),
        advice="Balance the batches by tokens, not by samples: the rank with the most sets the pace of all.",
        confidence="low" if len(medians) < FEW else "high",
        peers=tuple(other for other in sorted(medians) if other != rank),
        plot=Plot(
            "tokens per step", "rank", "tokens", tuple(ranks),
            (("tokens", tuple(medians[one] for one in ranks)), ("median", (peers,) * len(ranks))),
        ),
    )  # fmt: skip
