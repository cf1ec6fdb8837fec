"""Numbers and legends of the grid of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.metrics import LEVELS, METRICS, Field, speaking
from ranktop.tui.view.options import Options
from ranktop.tui.view.text import Line, Span, Unit, beside, count, length, pad, short_count, unit_for


@dataclass(frozen=True, slots=True)
class Words:
    """Writes the values of one metric, all in the same unit."""

    unit: Unit | None
    """Of sizes; None for other metrics."""
    name: str
    """The unit's name as it stands behind a number."""
    signed: bool
    width: int
    """Cells of the longest value that is on the screen."""

    @classmethod
    def of(cls, found: Field) -> Words:
        """Choose the unit that suits the values."""
        metric = found.metric
        unit = None
        if metric.unit == "B":
            largest = max((abs(value) for value in found.values.values()), default=0.0)
            unit = unit_for(int(max(largest, found.reach)))
        name = unit.name if unit is not None else metric.unit
        plain = cls(unit, name, metric.zero and metric.unit == "B", 0)
        ends = [found.values[rank] for rank in (*found.order[:1], *found.order[-1:])]
        return cls(unit, name, plain.signed, max((len(plain.short(value)) for value in ends), default=1))

    def short(self, value: float | None) -> str:
        """Write a value without its unit."""
        if value is None:
            return ""
        sign = "+" if self.signed and value else ""
        if self.unit is not None:
            number = value / self.unit.bytes
            return f"{number:{sign},.0f}" if abs(number) >= 1000 else f"{number:{sign}.1f}"
        if self.name == "s":
            return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
        if self.name == "tokens":
            return count(round(value)) if value < 100_000 else short_count(round(value))
        return f"{value:,.0f}"

    def full(self, value: float) -> str:
        """Write a value with its unit."""
        return f"{self.short(value)} {self.name}"

    def difference(self, away: float) -> str:
        """Write a distance with sign and unit."""
        if self.unit is not None:
            return _signed(f"{abs(away) / self.unit.bytes:.1f} {self.name}", away)
        if self.name == "s":
            return _signed(f"{abs(away) * 1000:.1f} ms" if abs(away) < 0.1 else f"{abs(away):.3g} s", away)
        return _signed(f"{count(round(abs(away)))} {self.name}", away)

    def away(self, found: Field, rank: int) -> tuple[str, ...]:
        """Say how far a rank is from its peers, the longest form first."""
        away, middle = found.away(rank), found.middles.get(rank)
        if away is None or middle is None:
            return ("no peer to compare with", "no peer")
        if found.metric.key == "difference":
            return ("measured - expected, at its peak",)
        if found.metric.key == "arrival":
            return ("of the time others wait for it more than for its peers", "of the time others wait for it")
        share = f" ({away / middle:+.0%})" if middle and 0.005 <= abs(away / middle) < 100 else ""
        there = self.difference(away)
        return (
            f"{there}{share} from the median of its peers, {self.full(middle)}",
            f"{there}{share}, its peers {self.full(middle)}",
            f"{there}{share}", there,
        )  # fmt: skip


def _signed(text: str, away: float) -> str:
    """Put the sign before a distance; what rounds to nothing has none."""
    number = text.split()[0]
    return text if not number.strip("0.") else f"{'+' if away > 0 else '-'}{text}"


def metric_tabs(chosen: int, options: Options, width: int) -> Line:
    """Name the metrics, the chosen one in reverse; only that one where they don't all fit."""
    spans: list[Span] = [(" ", "")]
    for at, metric in enumerate(METRICS):
        title = metric.title if metric.key != "difference" else f"{options.glyphs.delta} expected"
        spans += [(f" {title} ", "accent reverse bold" if at == chosen else "dim"), (" ", "")]
    if length(spans) > width:
        title = METRICS[chosen].title
        spans = [(f" {title} ", "accent reverse bold"), (f"  {chosen + 1} of {len(METRICS)} metrics ", "dim"),
                 ("m", "key"), (" next  ", "dim"), ("[", "key"), (" previous", "dim")]  # fmt: skip
        spans.insert(0, (" ", ""))
    return pad(spans, width)


def scale_lines(
    snapshot: Snapshot, found: Field, words: Words, ringed: int, options: Options, width: int,
    shapes: Sequence[tuple[str, str]],
) -> list[Line]:  # fmt: skip
    """Say what the shades mean, and the smallest, the middle and the largest value with their ranks."""
    if not found.order:
        return [pad([(f" {why_unknown(found, snapshot)}", "dim")], width), _shape_line(shapes, ringed, width)]
    steps: list[Span] = [(str(level), f"heat{level}") for level in range(LEVELS)]
    middle = "0" if found.metric.zero else "median of peers" if width >= 70 else "median"
    low = words.difference(-found.reach)
    spans: list[Span] = [(f" {low} ", "dim"), *steps, (f" {words.difference(found.reach)}", "dim"),
                         (f"   4 5 = {middle}", "dim")]  # fmt: skip
    first, last = found.order[0], found.order[-1]
    facts = (
        ("min", found.values[first], f"rank {first}"), ("median", median(found.values.values()), ""),
        ("max", found.values[last], f"rank {last}"),
    )  # fmt: skip
    said: list[Span] = [(" ", "")]
    for name, value, who in facts:
        said += [(f"{name} ", "label"), (words.full(value), "number"), (f" {who}" if who else "", "dim"), ("   ", "")]
    if length(said) + length(_shape_spans(shapes)) > width:
        said = [(f" {words.short(found.values[first])} to {words.full(found.values[last])}", "number")]
    return [beside(spans, [(f"{_ringed(ringed)} ", "label")], width), beside(said, _shape_spans(shapes), width)]


def why_unknown(found: Field, snapshot: Snapshot) -> str:
    """Say why no rank has a value."""
    key = found.metric.key
    if not any(view.sample is not None for view in snapshot.ranks):
        return "no sample of any rank yet"
    if not speaking(snapshot):
        return "no value of now: every rank has ended, is silent, or its node is lost"
    reasons = {
        "own": f"own work: {'fewer than 8 steps yet, or no peers' if snapshot.step else 'no step finished yet'}",
        "arrival": "arrival lag: not enough looks at the collectives yet (steps of 50 ms and more, ranks of one node)",
        "tokens": "tokens: no step has told how many its inputs hold",
        "difference": "difference: nothing is expected, for the model or its strategy is not known",
        "step": "step time: no step finished yet",
    }
    return reasons.get(key, f"{found.metric.title}: not told by these devices")


def _ringed(number: int) -> str:
    return f"{count(number)} rank{'' if number == 1 else 's'} with findings" if number else "no rank with a finding"


def _shape_spans(shapes: Sequence[tuple[str, str]]) -> list[Span]:
    return [part for mark, word in shapes for part in ((f"{mark} ", "text"), (f"{word}  ", "dim"))]


def _shape_line(shapes: Sequence[tuple[str, str]], ringed: int, width: int) -> Line:
    return beside([(" ", ""), *_shape_spans(shapes)], [(f"{_ringed(ringed)} ", "label")], width)
