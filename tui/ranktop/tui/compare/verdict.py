"""What a person reads first: one sentence a run, careful about noise, missing numbers and unfair comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ranktop.budget.terms import BUDGETED
from ranktop.tui.compare.comparison import Comparison
from ranktop.tui.compare.side import PHASES, Side
from ranktop.tui.compare.spread import FEW, Difference
from ranktop.tui.view.text import count, human

MOST_CAUSES: Final = 3
"""Categories and phases that are named as causes."""

CAUSE_SHARE: Final = 0.1
"""Share of the whole difference from which a part is named."""

NO_SHARE: Final = "0 %"
"""A share that is too small to be written."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of one run beside the first."""

    letter: str
    sentence: str
    because: tuple[str, ...]
    """Which categories make the difference, and which phases: a line each; empty where there is none."""
    memory: str
    """``less``, ``more``, ``same`` (within noise), ``unknown``, ``not comparable``."""
    time: str
    """``slower``, ``faster``, ``same``, ``unknown``, ``not comparable``."""


def verdicts(comparison: Comparison) -> list[Verdict]:
    """Return a verdict for every run but the first."""
    return [_verdict(comparison, other) for other in comparison.others]


def _verdict(comparison: Comparison, other: Side) -> Verdict:
    base = comparison.base
    hard = [caveat for caveat in comparison.caveats if caveat.hurts == "all" and other.letter in caveat.letters]
    if hard:
        sentence = f"{base.letter} and {other.letter} cannot be compared: {hard[0].why}."
        return Verdict(other.letter, sentence, (), "not comparable", "not comparable")
    memory, needs = _memory(comparison, other)
    time, steps = _time(comparison, other)
    because = (*_categories(comparison, other), *_phases(comparison, other))
    return Verdict(other.letter, f"{other.letter} {needs} and {steps}.", because, memory, time)


def _memory(comparison: Comparison, other: Side) -> tuple[str, str]:
    base = comparison.base
    away = comparison.needs_differ(other)
    each = f"per {other.device}"
    if away is None:
        who = [one.letter for one in (base, other) if one.held is None]
        return "unknown", f"can't be compared in memory (none was read of {' and '.join(who) or 'both'})"
    if not away.real:
        noise = f" (a difference of {human(abs(int(away.away)))} is noise)" if away.away else ""
        return "same", f"needs as much memory {each} as {base.letter}{noise}"
    word = "less" if away.away < 0 else "more"
    return word, f"needs {human(abs(int(away.away)))} {word} {each}"


def _time(comparison: Comparison, other: Side) -> tuple[str, str]:
    base = comparison.base
    by_rate = any(caveat.hurts == "batch" and other.letter in caveat.letters for caveat in comparison.caveats)
    name = "rate" if by_rate else "seconds"
    away = comparison.time_differs(name, other)
    if away is None or away.share is None:
        return "unknown", _not_timed(base, other, name)
    share, noise = percent(abs(away.share)), percent(away.noise / base.times[name].middle)
    if not away.real:
        what = f"trains as many {other.token_unit} a second" if by_rate else "its steps take as long"
        told = "" if share == NO_SHARE else f" (the difference of {share} is within the noise, {noise})"
        return "same", f"{what}{told}"
    if by_rate:
        word = "more" if away.away > 0 else "fewer"
        return "faster" if away.away > 0 else "slower", f"trains {share} {word} {other.token_unit} a second"
    word = "slower" if away.away > 0 else "faster"
    return word, f"its steps are {share} {word}"


def _not_timed(base: Side, other: Side, name: str) -> str:
    for one in (base, other):
        known = one.times.get(name)
        if known is None:
            return f"its speed can't be compared: {one.letter}: {one.reasons.get(name, 'not known')}"
    few = [one for one in (base, other) if one.times[name].count < FEW]
    told = " and ".join(f"{count(one.times[name].count)} of {one.letter}" for one in few)
    return f"its speed can't be compared: too few steps were timed ({told}; it takes {FEW})"


def _categories(comparison: Comparison, other: Side) -> Iterator[str]:
    whole = comparison.needs_differ(other)
    parts = _parts(whole, {name: comparison.category_differs(name, other) for name in BUDGETED})
    if parts:
        yield "memory: " + ", ".join(f"{name} {human(int(away), sign=True)}" for name, away in parts)


def _phases(comparison: Comparison, other: Side) -> Iterator[str]:
    whole = comparison.time_differs("seconds", other)
    parts = _parts(whole, {name: comparison.time_differs(name, other) for name in PHASES})
    if parts:
        yield f"time: {', '.join(f'{name} {seconds_away(away)}' for name, away in parts)} a step"


def _parts(whole: Difference | None, differences: Mapping[str, Difference | None]) -> list[tuple[str, float]]:
    """Return the parts that make a difference, the largest first; none where it is within noise."""
    if whole is None or not whole.real:
        return []
    found = [
        (name, part.away)
        for name, part in differences.items()
        if part is not None and part.real and abs(part.away) >= CAUSE_SHARE * abs(whole.away)
    ]
    return sorted(found, key=lambda part: -abs(part[1]))[:MOST_CAUSES]


def percent(share: float) -> str:
    """Write a share: ``9 %``, ``0.6 %``."""
    number = abs(100 * share)
    return f"{number:,.0f} %" if number >= 9.95 else f"{number:.1f} %".replace(".0 %", " %")


def seconds_away(value: float) -> str:
    """Write a difference of seconds with its sign: ``+0.034 s``, ``-1.2 ms``."""
    if abs(value) < 0.01:
        return f"{1000 * value:+.2g} ms"
    return f"{value:+.3g} s"
