"""A loss that is no number any more: NaN or infinite, since which step, on which of the ranks that tell one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.session.findings.finding import Evidence, Finding, Plot
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.progress import Told, losses, told
from ranktop.tui.view.text import count

PLOTTED: Final = 48
"""Losses in a plot."""

NAMED: Final = {"nan": "NaN", "inf": "infinite", "-inf": "minus infinite"}


def loss(scene: Scene) -> Iterable[Finding]:
    """Find a loss that is NaN or infinite; one that was so and is finite again is a note."""
    everyone = [one for view in scene.snapshot.ranks if (one := told(view)) is not None]
    telling = [one for one in everyone if one.odd or one.loss is not None]
    odd = [one for one in telling if one.odd]
    if odd:
        yield _now(odd, telling, scene)
    back = [one for one in telling if not one.odd and one.progress.bad_losses]
    if back and not odd:
        yield _before(back)


def _now(odd: Sequence[Told], telling: Sequence[Told], scene: Scene) -> Finding:
    what = " or ".join(sorted({NAMED.get(one.odd, one.odd) for one in odd}))
    steps = [one.progress.bad_since for one in odd if one.progress.bad_since is not None]
    step = min(steps, default=None)
    since = "" if step is None else f" since step {count(step)}"
    ranks = tuple(sorted(one.rank for one in odd))
    others = tuple(sorted(one.rank for one in telling if one.rank not in ranks))
    finite = next((one for one in telling if one.rank in others), None)
    where = f" on {ranks_words(ranks)}"
    if len(ranks) == len(telling):
        where = f" on all {len(ranks)} ranks that tell one" if len(ranks) > 1 else f" on rank {ranks[0]}"
        where += "" if len(ranks) > 1 else ", the only one that tells it"
    elif others:
        where += f"; finite on {ranks_words(others)}"
    return Finding(
        rule="loss",
        severity="critical",
        ranks=ranks,
        sentence=f"the loss is {what}{since}{where}",
        short=f"loss {NAMED[odd[0].odd].split()[-1]}" if odd[0].odd in NAMED else "loss",
        subject="not finite",
        evidence=tuple(_evidence(odd, finite)),
        advice=(
            "Stop and go back to a checkpoint from before that step; look at the batch of that step, a learning rate "
            "that is too high, or 16-bit overflow."
            if not others
            else "Look at the batch that these ranks had in that step: the next reduction carries it to all others."
        ),
        confidence="high",
        step=step,
        peers=others,
        plot=_plot(odd[0].rank, finite.rank if finite is not None else None, scene),
    )


def _plot(rank: int, other: int | None, scene: Scene) -> Plot | None:
    """The last losses of the rank, with no value where it told no number, beside those of one whose are finite."""
    own = _past(rank, scene)
    beside = _past(other, scene) if other is not None else {}
    steps = tuple(sorted({*own, *beside}))[-PLOTTED:]
    if len(steps) < 2:
        return None
    lines = [(f"rank {rank}", tuple(own.get(step) for step in steps))]
    if beside:
        lines.append((f"rank {other}", tuple(beside.get(step) for step in steps)))
    return Plot("loss", "step", "", steps, tuple(lines))


def _past(rank: int, scene: Scene) -> dict[int, float]:
    view = scene.snapshot.rank(rank)
    return dict(zip(*losses(view.history if view is not None else None), strict=True))


def _evidence(odd: Sequence[Told], finite: Told | None) -> Iterable[Evidence]:
    for one in odd[:4]:
        yield Evidence(f"rank {one.rank}: loss", NAMED.get(one.odd, one.odd))
        yield Evidence(f"rank {one.rank}: first at step", one.progress.bad_since)
        yield Evidence(f"rank {one.rank}: losses told that are no number", one.progress.bad_losses)
    first = odd[0].progress
    if first.gradient_norm is not None or "gradient_norm" in first.not_finite:
        said = first.not_finite.get("gradient_norm", "")
        yield Evidence(f"rank {odd[0].rank}: gradient norm", NAMED.get(said) or first.gradient_norm)
    if first.learning_rate is not None:
        yield Evidence("learning rate", first.learning_rate)
    if finite is not None:
        yield Evidence(f"rank {finite.rank}: loss", finite.loss)


def _before(back: Sequence[Told]) -> Finding:
    times = max(one.progress.bad_losses for one in back)
    steps = [one.progress.bad_since for one in back if one.progress.bad_since is not None]
    last = max(steps, default=None)
    when = "" if last is None else f", last from step {count(last)} on"
    ranks = tuple(sorted(one.rank for one in back))
    return Finding(
        rule="loss",
        severity="info",
        ranks=ranks,
        sentence=f"the loss was NaN or infinite {times} time{'' if times == 1 else 's'} on {ranks_words(ranks)}{when}; "
        "it is finite again",
        subject="was not finite",
        evidence=tuple(
            Evidence(f"rank {one.rank}: losses that were no number", one.progress.bad_losses) for one in back[:4]
        ),
        advice="With 16-bit loss scaling a few of these are usual; else look at the batches of those steps.",
        confidence="high",
        step=last,
    )
