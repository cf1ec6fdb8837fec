"""From readings at a few depths, batches and sequences to polynomials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ranktop.budget.activations.coefficients import NAMES, NOTHING, Polynomial, Terms, at
from ranktop.probes.trace_step import Reading

Point = tuple[int, int, int]
"""Depth, batch, sequence."""

DEPTHS: Final = (1, 2)
"""Depths that are read for the fit."""


GROWING: Final = ("saved", "after", "logits", "casts", "cached", "inputs")
"""What is linear in depth; temporaries are those of the deeper model, a single block's surroundings are no others'."""


@dataclass(frozen=True)
class Grid:
    """Where steps are read: every batch with every sequence at every depth, and two points to check the fit with."""

    batches: tuple[int, int]
    sequences: tuple[int, ...]

    def points(self) -> list[Point]:
        """Return what the fit needs, the point that the user asked for first."""
        return [(d, b, s) for d in DEPTHS for b in self.batches for s in self.sequences]

    def checks(self) -> list[Point]:
        """Return points that the fit does not see: deeper, and between the sequences at another batch."""
        step = sum(self.sequences[:2]) // 2 if len(self.sequences) > 1 else self.sequences[0]
        return [(DEPTHS[-1] + 1, self.batches[0], self.sequences[0]), (DEPTHS[-1], sum(self.batches), step)]


def grid(batch: int, sequence: int, sequences: tuple[int, ...] = ()) -> Grid:
    """Return where to read for a batch and a sequence; shorter sequences only, which every model takes.

    Halves keep what a sequence is divisible by, as far as it goes; a model whose input knows no sequence (images) is
    read at one, ``sequences=(sequence,)``.
    """
    if not sequences:
        step = 8 if sequence >= 64 else 1
        shorter = [max(1, sequence // 2 // step * step), max(1, sequence // 4 // step * step)]
        sequences = tuple(dict.fromkeys([sequence, *shorter]))
    return Grid((batch, 2 * batch), tuple(sorted(set(sequences), reverse=True)))


def fit(readings: Mapping[Point, Reading], where: Grid) -> Terms:
    """Return the terms through all readings of a grid, exactly."""
    fixed, per_layer = {}, {}
    deep = DEPTHS[-1]
    for name in NAMES:
        if name not in GROWING:
            fixed[name] = _floats(_polynomial(lambda b, s, name=name: getattr(readings[deep, b, s], name), where))  # type: ignore[misc]
            per_layer[name] = NOTHING
            continue
        low, high = (
            _polynomial(lambda b, s, d=d, name=name: getattr(readings[d, b, s], name), where)  # type: ignore[misc]
            for d in DEPTHS
        )
        slope = [(h - one) / (DEPTHS[1] - DEPTHS[0]) for h, one in zip(high, low, strict=True)]
        per_layer[name] = _floats(slope)
        fixed[name] = _floats([one - DEPTHS[0] * each for one, each in zip(low, slope, strict=True)])
    deepest = {(b, s): readings[deep, b, s] for b in where.batches for s in where.sequences}
    losses = _envelope(
        {place: tuple((alive, 0) for alive in read.loss_curve) for place, read in deepest.items()}, where
    )
    stages = _envelope({place: read.block_curve for place, read in deepest.items()}, where)
    return Terms(fixed=fixed, per_layer=per_layer, loss=tuple(one for one, _ in losses), stages=stages)


_SAMPLES: Final = [(b, s) for b in (1, 2, 4, 8, 16, 32, 64, 256, 1024) for s in (2**n for n in range(4, 21))]
"""Batches and sequences at which curves are compared."""


def _envelope(
    curves: Mapping[tuple[int, int], tuple[tuple[int, int], ...]], where: Grid
) -> tuple[tuple[Polynomial, int], ...]:
    """Return the polynomials of those events that are the highest somewhere, for each amount of gradients made.

    A maximum over events is no polynomial: at small batches a weight's gradient is the highest, at large ones an
    activation's. Each event by itself is one. Empty when another batch or sequence takes another way through backward.
    """
    shapes = {tuple(made for _, made in curve) for curve in curves.values()}
    if len(shapes) != 1:
        return ()
    kept: dict[tuple[int, Polynomial], None] = {}
    events = [
        (made, _floats(_polynomial(lambda b, s, i=i: curves[b, s][i][0], where)))  # type: ignore[misc]
        for i, made in enumerate(next(iter(shapes)))
    ]
    for stage in sorted({made for made, _ in events}):
        among = dict.fromkeys(terms for made, terms in events if made == stage)
        kept.update({(stage, max(among, key=lambda terms: at(terms, *place))): None for place in _SAMPLES})
    return tuple((terms, made) for made, terms in kept)


def _polynomial(value: Callable[[int, int], int], where: Grid) -> list[Fraction]:
    """Return the six coefficients through the values on a grid; fewer sequences give a lower degree."""
    low, high = where.batches
    at_low, at_high = ([value(b, s) for s in where.sequences] for b in where.batches)
    one, two = _interpolated(where.sequences, at_low), _interpolated(where.sequences, at_high)
    slope = [(t - o) / (high - low) for o, t in zip(one, two, strict=True)]
    return [*(o - low * each for o, each in zip(one, slope, strict=True)), *slope]


def _interpolated(xs: tuple[int, ...], ys: list[int]) -> list[Fraction]:
    """Return c0, c1, c2 of the polynomial of lowest degree through at most three points (Newton's form)."""
    found = [Fraction(0)] * 3
    basis = [Fraction(1)]
    differences = [Fraction(y) for y in ys[:3]]
    for order in range(len(differences)):
        for i, part in enumerate(basis):
            found[i] += differences[0] * part
        basis = [
            (basis[i - 1] if i else Fraction(0)) - (xs[order] * basis[i] if i < len(basis) else 0)
            for i in range(len(basis) + 1)
        ]
        differences = [
            (differences[i + 1] - differences[i]) / (xs[i + order + 1] - xs[i]) for i in range(len(differences) - 1)
        ]
    return found


def _floats(values: list[Fraction]) -> Polynomial:
    one, s, square, b, bs, bsquare = (float(value) for value in values)
    return (one, s, square, b, bs, bsquare)


def error(terms: Terms, point: Point, read: Reading) -> float:
    """Return by how much the prediction of all that lives around the loss misses a reading, relative."""
    depth, batch, sequence = point
    told = {name: terms.bytes(name, depth, batch, sequence) for name in NAMES}
    peak = sum(told[name] for name in ("saved", "logits", "casts", "inputs"))
    peak += max(told["loss_forward"] + told["cached"], told["loss_backward"])
    return abs(peak - read.peak) / max(1, read.peak)
