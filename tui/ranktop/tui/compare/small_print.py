"""What stands below the tables: findings that only some runs have, and what a reader must know to trust the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ranktop.tui.compare.comparison import Comparison
from ranktop.tui.compare.held import Held
from ranktop.tui.compare.side import Side
from ranktop.tui.compare.spread import ENOUGH, FEW
from ranktop.tui.view.text import count, human, plain, ranges

MARKS: Final = {"critical": "✖", "warning": "!", "info": "·"}
STYLES: Final = {"critical": "bad", "warning": "warn", "info": "dim"}
MOST_FINDINGS: Final = 8


def findings(comparison: Comparison) -> list[tuple[str, str]]:
    """Return (sentence, style) of the findings that not all runs have."""
    found = comparison.findings()
    told = [
        (f"{letters} {MARKS.get(finding.severity, '·')} {plain(finding.sentence)}", STYLES.get(finding.severity, ""))
        for finding, letters in found[:MOST_FINDINGS]
    ]
    if len(found) > MOST_FINDINGS:
        told.append((f"and {len(found) - MOST_FINDINGS} more; --json has all", "dim"))
    return told


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield the small print, a sentence each."""
    compared = comparison.window.words()
    yield f"Compared: {compared}. {_counts(comparison)}"
    if _too_few(comparison):
        yield f"Fewer than {ENOUGH} steps: a spell of slow ones may look like a difference of several percent."
    if any(one.held is not None for one in comparison.sides):
        yield _what_memory_is(comparison)
    for one in comparison.sides:
        yield from _of_groups(one)
        yield from _of_peak(one, comparison)
        for note in one.run.notes:
            yield f"{one.letter}: {plain(note)}."
    yield from _missing(comparison)
    yield "≈: within noise. ±: spread of the steps (robust standard deviation)."


def _counts(comparison: Comparison) -> str:
    counts = {one.times["seconds"].count for one in comparison.sides if "seconds" in one.times}
    if len(counts) == 1:
        return f"{count(next(iter(counts)))} steps of each were timed (medians)."
    told = ", ".join(
        f"{one.letter} {count(one.times['seconds'].count) if 'seconds' in one.times else 0}" for one in comparison.sides
    )
    return f"Timed steps: {told} (medians)."


def _too_few(comparison: Comparison) -> bool:
    """Whether a spell of slow steps may be all that was seen of a run."""
    counts = [one.times["seconds"].count for one in comparison.sides if "seconds" in one.times]
    return bool(counts) and FEW <= min(counts) < ENOUGH


def _what_memory_is(comparison: Comparison) -> str:
    ranks = ", ".join(
        f"{one.letter} rank {one.held.rank} at {one.held.moment.replace('_', ' ')} of step {count(one.held.step)}"
        for one in comparison.sides
        if one.held is not None
    )
    needs = "Needs: the allocator's running peak and runtime" if comparison.by_peak else "Needs: tensors and runtime"
    return f"Memory of the fullest rank at its peak: {ranks}. {needs}, without the cache."


def _of_groups(one: Side) -> Iterator[str]:
    if len(one.groups) > 1:
        told = "; ".join(_group(held) for held in one.groups)
        yield f"{one.letter}, fullest rank per peer group: {told}."


def _group(held: Held) -> str:
    return f"{held.role} {human(held.held)} (rank {held.rank} of {ranges(held.ranks)})"


def _of_peak(one: Side, comparison: Comparison) -> Iterator[str]:
    """The running peak may be of loading or of validation, which no comparison of steps shows."""
    held = one.peak if comparison.by_peak else None
    if held is None or held.needs is None:
        return
    if held.peak_step < comparison.window.first:
        when = "before the first step ended" if held.peak_step < 1 else f"by step {count(held.peak_step)}"
        yield f"{one.letter}: its running peak was reached {when}, before the compared steps."


def _missing(comparison: Comparison) -> Iterator[str]:
    names = {"memory": "memory", "seconds": "step time", "rate": "tokens a second"}
    for one in comparison.sides:
        for name, why in one.reasons.items():
            yield f"{one.letter}: {names.get(name, name)} not known: {plain(why)}."
        if one.sent.bytes is None and one.sent.reason:
            yield f"{one.letter}: what is sent in a step is not known: {plain(one.sent.reason)}."
