"""Loss, learning rate, tokens a second and what is left, in words: of the job in a line, of a rank in a block."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from ranktop.tui.session.progress import JobProgress, Rate, Told, learning_rates, losses, told
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.view.chart import spark
from ranktop.tui.view.text import Glyphs, Line, Span, count, duration, length, pad, plain, short_count
from ranktop.wire.activity import VALIDATION, kind_of

GAP: Final = 2
"""Cells between two parts of the line."""

MOST_WANTED: Final = 4
"""Parts for which the first ones are shortened: loss, learning rate, what is left, tokens a second."""

CURVE_WIDTH: Final = 32
"""Cells of a block from which on loss and learning rate have a line and a curve each."""

LEAST_SPAN: Final = 0.05
"""Of a loss: less than that is no rise or fall that is drawn over the whole height."""

OF_ALL_RANKS: Final = ("transformers Trainer",)
"""Sources whose loss is the mean over the ranks: it is no rank's own."""

ODD: Final = {"nan": "NaN", "inf": "infinite", "-inf": "-infinite"}


def number(value: float) -> str:
    """Write a loss: four digits that count."""
    return f"{value:#.4g}".rstrip(".")


def rate_words(rate: Rate, glyphs: Glyphs) -> str:
    """Write tokens a second, and how they are known unless the script told them; empty for none."""
    if rate.value is None:
        return ""
    text = f"{short_count(round(rate.value))} tokens/s" if rate.value >= 10 else f"{rate.value:.2g} tokens/s"
    return f"{glyphs.about}{text} computed" if rate.source == "batch" else text


def learning_rate_words(value: float) -> str:
    """Write a learning rate: ``3e-4``, ``2.28e-5``, ``0.1``."""
    if value == 0 or abs(value) >= 0.01:
        return f"{value:.3g}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def loss_words(one: Told, *, ended: bool = False, step_is_told: bool = False) -> list[str]:
    """Return the loss with whose it is, which step's and, when it is old, its age: the longest form first.

    ``step_is_told``: beside it stands the step that it belongs to.
    """
    if one.loss is None and not one.odd:
        return []
    loss = f"loss {ODD[one.odd] if one.odd in ODD else number(one.loss or 0.0)}"
    told_there = step_is_told and one.loss_step == one.progress.step
    step = "" if one.loss_step is None or told_there else f"step {count(one.loss_step)}"
    old = f"{duration(one.loss_age)} ago" if one.stale and one.loss_age is not None and not ended else ""
    whose = "" if one.progress.source in OF_ALL_RANKS else f"rank {one.rank}"
    texts = [", ".join(fact for fact in facts if fact) for facts in ((whose, step, old), (step, old))]
    return list(dict.fromkeys(f"{loss} ({text})" if text else loss for text in texts))


def left_words(job: JobProgress) -> list[str]:
    """Return how far it has come and how long it takes yet, the longest form first."""
    progress = job.told.progress
    step, total = progress.step, progress.total_steps
    if step is None or not total:
        return [] if step is None or job.told.loss_step == step else [f"step {count(step)}"]
    of = f"step {count(step)} of {count(total)}"
    if job.remaining is None or step >= total:
        return [of]
    left = f"{duration(job.remaining)} left"
    return [f"{of}, {left}", f"{of}, {left.removesuffix(' left')}"]


def line(job: JobProgress, glyphs: Glyphs, width: int, *, ended: bool = False) -> Line:
    """Return one line about the job in ``width`` cells: what there is no room for is left out, from the end."""
    one = job.told
    style = "bad bold" if one.odd else "dim" if one.stale and not ended else "bold"
    left = left_words(job)
    loss = loss_words(one, ended=ended, step_is_told=bool(left))
    rate = one.progress.learning_rate
    lr = [(f"lr {learning_rate_words(rate)}", "text")] if rate is not None else []
    rest: list[Span] = [(text, "text") for text in _others(job, glyphs)]
    parts: list[Span] = []
    # What is left is shortened for the tokens' sake; whose loss it is goes only where nothing else would stand.
    for said, of in ((loss[:1], left[:1]), (loss[:1], left[-1:]), (loss[-1:], left[-1:])):
        parts = [*((text, style) for text in said), *lr, *((text, "text") for text in of), *rest]
        wanted = MOST_WANTED if said == loss[:1] and of == left[:1] else 2
        if _cells(parts[:wanted]) <= width:
            break
    while parts and _cells(parts) > width:
        parts.pop()
    spans: list[Span] = [(" ", "")]
    for at, span in enumerate(parts):
        spans += [(" " * GAP if at else "", ""), span]
    return pad(spans, width)


def _cells(parts: list[Span]) -> int:
    return 2 + length(parts) + GAP * (len(parts) - 1)


def _others(job: JobProgress, glyphs: Glyphs) -> Iterable[str]:
    progress = job.told.progress
    if text := rate_words(job.rate, glyphs):
        yield text
    for name, value in progress.values.items():
        at = progress.steps.get(name)
        yield f"{plain(name)} {number(value)}" + (f" (step {count(at)})" if at is not None else "")
    if progress.epoch is not None:
        yield f"epoch {progress.epoch:.2f}"
    if progress.gradient_norm is not None:
        yield f"grad norm {progress.gradient_norm:.3g}"


def short_loss(job: JobProgress) -> Span:
    """Return the loss alone, for where there is no line for all of it; empty for none."""
    one = job.told
    forms = loss_words(one)
    if not forms:
        return ("", "")
    step = "" if one.loss_step in (None, one.progress.step) else f" (step {count(one.loss_step or 0)})"
    style = "head bad bold" if one.odd else "head dim" if one.stale else "head bold"
    return (forms[-1] if one.stale else f"{forms[-1].partition(' (')[0]}{step}", style)


def block(view: RankView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return lines about what a rank has told, with small curves over its steps; none where it told nothing."""
    one = told(view)
    if one is None:
        return []
    wide, room = width >= CURVE_WIDTH, max(0, width - 18)
    loss: list[Span] = []
    if one.loss is not None or one.odd:
        text = ODD.get(one.odd) or number(one.loss or 0.0)
        style = "bad bold" if one.odd else "dim" if one.stale else "number"
        loss = [(f"{'loss':<9}", "dim"), (f"{text:>7}  ", style)]
        if wide:
            loss.append((_curve(losses(view.history)[1], room, glyphs), "spark"))
    rate = one.progress.learning_rate
    lr: list[Span] = []
    if rate is not None:
        words = learning_rate_words(rate)
        if loss and not wide:
            loss += [("lr ", "dim"), (words, "number")]
        else:
            curve = spark(_thinned(learning_rates(view.history), room), room, glyphs) if wide else ""
            lr = [(f"{'lr':<9}", "dim"), (f"{words:>7}  ", "number"), (curve, "spark")]
    return [pad(spans, width) for spans in (loss, lr) if spans]


def _curve(past: list[float], width: int, glyphs: Glyphs) -> str:
    """Draw how a loss has fallen: from its least to its most, and no less than a twentieth of it."""
    shown = _thinned(past, width)
    if len(shown) < 2:
        return ""
    high = max(shown)
    span = max(high - min(shown), LEAST_SPAN * abs(high)) or 1.0
    return spark([value - high + span * (1 + 1 / 8) for value in shown], width, glyphs, span * (1 + 1 / 8))


def _thinned(values: list[float], width: int) -> list[float]:
    """Return all of a series in ``width`` values: the mean of each part."""
    if len(values) <= width or width <= 0:
        return values
    edges = [len(values) * at // width for at in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def activity_word(view: RankView) -> str:
    """Return what the script says that a rank does, in a row's room; empty while it says nothing."""
    sample = view.sample
    if sample is None or not sample.activity:
        return ""
    kind = kind_of(sample.activity)
    return ("validating" if kind == VALIDATION else "saving") if kind else plain(sample.activity)


def doing(view: RankView) -> str:
    """Return what a rank's training thread is in: the script's own word, else the phase."""
    sample = view.sample
    return activity_word(view) or (f"in {plain(sample.phase)}" if sample is not None and sample.phase else "")
