"""Blocks of the detail panel beside the memory table: steps, collectives, card, rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from textwrap import wrap
from typing import Final

from ranktop.budget.terms import CATEGORIES, NOT_BUDGETED
from ranktop.probes.reading import GroupPosition, StepTimes
from ranktop.tui.session.nodes import NODE_LOST
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.state import Snapshot
from ranktop.tui.view.chart import spark
from ranktop.tui.view.plan import optimizer, place, precision, strategy
from ranktop.tui.view.progress import block, doing
from ranktop.tui.view.scale import Shown
from ranktop.tui.view.text import (
    Glyphs,
    Line,
    Span,
    count,
    duration,
    fit,
    human,
    length,
    pad,
    plain,
    seconds,
    short_count,
)
from ranktop.wire.schema import Card

PHASES: Final = ("data", "forward", "backward", "optimizer")
PHASE_BAR: Final = 10
MIN_SPARK: Final = 8
SLOW: Final = 2.0
"""Seconds of a step from which on it is told in which phase a rank is: of a shorter one, any of them at random."""
LATE: Final = 2.0
"""Times that a step's own length has to pass, besides, before a short one is told as well."""
HANGING: Final = 32
"""Cells from which on the names of rules have a column of their own."""


def steps_block(view: RankView, snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Line]:
    """Show the last step's phases with a small history, collective positions and the agent's own cost."""
    lines = _phases(view, width, glyphs)
    lines += _collectives(view, snapshot, width, glyphs)
    lines += _allocator(view, width)
    return lines


def _phases(view: RankView, width: int, glyphs: Glyphs) -> list[Line]:
    sample = view.sample
    if sample is None:
        return [pad([("no sample yet", "dim")], width)]
    if not view.steps:
        said = f", {doing(view)}" if doing(view) else ""
        return [pad([(f"no step finished yet{said}", "dim")], width), *block(view, width, glyphs)]
    last = view.steps[-1]
    history = max(0, width - 19 - PHASE_BAR)
    bar_cells = PHASE_BAR if history >= MIN_SPARK else max(0, width - 18)
    history = history if history >= MIN_SPARK else 0
    first: list[Span] = [("step ", "label"), (count(sample.step), "bold"), (f"  {seconds(last.seconds)} s  ", "number")]
    said = _doing_now(view, last)
    if said and view.end is None and length(first) + len(said) <= width:
        first.append((said, "dim"))
    lines = [pad(first, width)]
    whole = last.seconds or sum(getattr(last, name) or 0.0 for name in PHASES) or 1.0
    for name in PHASES:
        value = getattr(last, name)
        trail = spark([getattr(step, name) for step in view.steps], history, glyphs, _top(view.steps, name))
        bar = "" if value is None else _share_bar(value / whole, bar_cells, glyphs)
        lines.append(
            pad([(f"{name:<10}", "dim"), (f"{seconds(value, glyphs.dash):>6}  ", "number"),
                 (fit(bar, bar_cells), "phase"), (f" {trail}", "axis")], width)
        )  # fmt: skip
    if last.micro_batches > 1:
        lines.append(pad([(f"{last.micro_batches} micro-batches a step", "dim")], width))
    return lines + block(view, width, glyphs)


def _doing_now(view: RankView, last: StepTimes) -> str:
    """Return what the training thread is in; nothing while steps follow each other faster than that could be read."""
    sample = view.sample
    if sample is None or sample.activity or last.seconds is None or last.seconds >= SLOW:
        return doing(view)
    return doing(view) if (sample.step_age or 0.0) > LATE * last.seconds + SLOW else ""


def _top(steps: Iterable[StepTimes], name: str) -> float:
    return max((getattr(step, name) or 0.0 for step in steps), default=0.0)


def _share_bar(share: float, width: int, glyphs: Glyphs) -> str:
    share = max(0.0, min(1.0, share))
    if glyphs.ascii:
        return "=" * round(share * width)
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + (glyphs.horizontal[eighths % 8] if eighths % 8 else "")


def _collectives(view: RankView, snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Line]:
    sample = view.sample
    if sample is None:
        return []
    found = sample.collectives
    if not found.groups:
        reason = plain(found.reason or "no process group")
        return [pad([("collectives ", "label"), (reason, "dim")], width)]
    # Samples of a running job are up to an interval apart, so only a standstill says who is behind. Of a rank whose
    # node is out of reach nothing new is known.
    still = (snapshot.state == "stalled" or view.stale) and view.state != NODE_LOST
    furthest = _furthest(snapshot) if still else {}
    title = pad([("collectives ", "label"), ("done +in flight", "dim")], width)
    return [title, *(pad(_group(group, furthest, glyphs, width), width) for group in found.groups)]


def _group(group: GroupPosition, furthest: Mapping[tuple[str, str], int], glyphs: Glyphs, width: int) -> list[Span]:
    name = plain(group.description or group.name)
    of = "" if group.size is None else f" ({group.size})"
    ahead = furthest.get((group.name, group.description), 0) - (group.enqueued or 0)
    done = glyphs.dash if group.completed is None else count(group.completed)
    room = 11 if width >= 32 else 9
    spans: list[Span] = [(fit(name + of if len(name + of) <= room else name, room) + " ", "dim"), (done, "number")]
    if group.enqueued is not None and group.completed is not None and ahead <= 0:
        spans.append((f" +{count(max(0, group.enqueued - group.completed))}", "dim"))
    if group.enqueued is not None and ahead > 0:
        spans.append((f" {count(ahead)} behind", "warn"))
    return spans


def _furthest(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    most: dict[tuple[str, str], int] = {}
    for view in snapshot.ranks:
        for group in view.sample.collectives.groups if view.sample else ():
            key = (group.name, group.description)
            most[key] = max(most.get(key, 0), group.enqueued or 0)
    return most


def _allocator(view: RankView, width: int) -> list[Line]:
    sample = view.sample
    if sample is None:
        return []
    cost = f"{sample.cost.cpu_s * 1000:.1f} ms, {count(sample.cost.dropped)} dropped"
    if sample.cost.errors:
        cost += f", {count(sample.cost.errors)} errors"
    facts: list[tuple[str, str, str]] = []
    trouble = ((sample.ooms, "out of memory"), (sample.retries, "retries"))
    told = ", ".join(f"{count(number)} {word}" for number, word in trouble if number)
    if told:
        facts.append(("allocator", told, "bad"))
    facts.append(("agent", cost, "warn" if sample.cost.dropped or sample.cost.errors else "dim"))
    if sample.peak_allocated is not None:
        facts.append(("peak", f"{human(sample.peak_allocated)} at most", "dim"))
    if sample.inactive_split:
        facts.append(("split", f"{human(sample.inactive_split)} unused", "dim"))
    return [pad([(f"{name:<9} ", "label"), (text, style)], width) for name, text, style in facts]


def card_block(view: RankView, width: int) -> list[Line]:
    """Show what the rank says of itself: model, strategy, precision, optimizer, batch, versions, notes."""
    card = view.card
    if card is None:
        return [pad([("no card yet", "dim")], width)]
    lines: list[Line] = []
    for name, text in _card_facts(card):
        for at, row in enumerate(_wrapped(plain(text), max(8, width - 12))):
            lines.append(pad([(f"{name if at == 0 else '':<11} ", "label"), (row, "text")], width))
    lines += [
        pad([(f"{plain(event.what):<11} ", "label"), (plain(event.detail), "text")], width) for event in view.marks[-3:]
    ]
    return lines


@lru_cache(maxsize=512)
def _wrapped(text: str, width: int) -> tuple[str, ...]:
    """Break between words; one that is longer than a line (a dotted name, a path) behind a dot, slash or underscore."""
    words: list[str] = []
    for word in text.split():
        rest = word
        while len(rest) > width and (cut := 1 + max(rest.rfind(mark, 0, width) for mark in "./_")):
            words.append(rest[:cut])
            rest = rest[cut:]
        words.append(rest)
    return tuple(wrap(" ".join(words), width))


def _card_facts(card: Card) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    model = card.model
    if card.inventory is not None and len(card.inventory):
        numel, trained = _numels_of(card)
        model += f", {short_count(numel)} parameters in {count(len(card.inventory))} tensors"
        model += f", {short_count(trained)} of them trained" if trained < numel else ""
    facts.append(("model", model or "not seen yet"))
    facts.append(("trainer", card.trainer))
    plan = card.plan
    if plan is not None:
        facts.append(("strategy", strategy(plan)))
        facts += [("place", words) for words in [place(plan)] if words]
        facts.append(("precision", _precision(card)))
        kept = ", ".join(dict.fromkeys(state.name for state in plan.optimizer.states))
        facts.append(("optimizer", (optimizer(plan) or "none seen") + (f": {kept}" if kept else "")))
        facts.append(("batch", _batch(card)))
        facts.append(("checkpoints", plan.checkpointing or "cannot be seen"))
    versions = card.versions
    named = (("torch", versions.torch), ("CUDA", versions.cuda), ("NCCL", versions.nccl),
             ("deepspeed", versions.deepspeed), ("python", versions.python), ("ranktop", versions.ranktop))  # fmt: skip
    facts.append(("versions", ", ".join(f"{name} {text}" for name, text in named if text)))
    facts.append(("launched by", " ".join(word for word in (card.job.launcher, card.backend) if word)))
    facts += [("note", note) for note in (*card.notes, *(plan.notes if plan else ()))]
    if card.simulated:
        facts.append(("note", "simulated: these numbers were not measured"))
    return [(name, text) for name, text in facts if text]


_numels: dict[tuple[str, int, int, int], tuple[int, int]] = {}


def _numels_of(card: Card) -> tuple[int, int]:
    """Return how many numbers the model has, and how many of them are trained (an adapter's, say)."""
    key = (card.job.id, card.rank, card.pid, card.revision)
    if key not in _numels:
        if len(_numels) > 4096:
            _numels.clear()
        own = card.inventory
        _numels[key] = (own.numel, own.trainable_numel) if own is not None else (0, 0)
    return _numels[key]


def _precision(card: Card) -> str:
    assert card.plan is not None
    kept = card.plan.precision
    roles = (
        ("gradients", kept.gradients),
        ("reduce", kept.reduce),
        ("autocast", kept.autocast),
        ("master", kept.master),
    )
    return ", ".join([precision(card.plan), *(f"{role} {name}" for role, name in roles if name)])


def _batch(card: Card) -> str:
    assert card.plan is not None
    batch = card.plan.batch
    facts = []
    if batch.micro_batch is not None:
        length = "" if batch.sequence_length is None else f" x {count(batch.sequence_length)} tokens"
        facts.append(f"{batch.micro_batch}{length} a forward")
    if batch.accumulation is not None:
        facts.append(f"accumulation {batch.accumulation}")
    return ", ".join(facts) or "not seen"


def rules_block(row: Shown, width: int) -> list[Line]:
    """Show by which rule each expected number came, and why a number is missing."""
    lines: list[Line] = []
    reasons = row.view.sample.reasons if row.view.sample else {}
    device = row.view.sample.device.reasons if row.view.sample else {}
    unbudgeted: list[str] = []
    for name in CATEGORIES:
        amount = row.amounts.get(name)
        if amount is not None and amount.rule and amount.rule != NOT_BUDGETED:
            lines += _rule(name, plain(amount.rule), width)
            if amount.slack:
                lines += _rule("", f"within {human(amount.slack)}", width)
        elif name != "free" and (amount is None or amount.bytes is None):
            unbudgeted.append(name)
        if getattr(row.memory, name) is None and name in reasons:
            lines += _rule(name, f"not measured: {plain(reasons[name])}", width)
    if unbudgeted:
        lines += _rule("others", f"{NOT_BUDGETED}: {', '.join(unbudgeted)}", width)
    missing: dict[str, list[str]] = {}
    for name, reason in device.items():
        missing.setdefault(plain(reason), []).append(name.replace("_", " "))
    for reason, names in missing.items():
        lines += _rule("device", f"{', '.join(names)}: {reason}", width)
    return lines or [pad([("no rule yet: the model has not been seen", "dim")], width)]


def _rule(name: str, text: str, width: int) -> list[Line]:
    if width >= HANGING:
        rows = wrap(text, width - 12) or [""]
        return [
            pad([(f"{name if at == 0 else '':<11} ", "label"), (row, "text")], width) for at, row in enumerate(rows)
        ]
    lead = f"{name} " if name else "  "
    rows = wrap(text, max(8, width), initial_indent=" " * len(lead), subsequent_indent="  ") or [lead]
    first = [(lead, "label"), (rows[0][len(lead) :], "text")]
    return [pad(first, width), *(pad([(row, "text")], width) for row in rows[1:])]


def stale_note(view: RankView) -> str:
    """Say how old the rank's values are, once they are older than they should be."""
    if view.age is None or not view.stale:
        return ""
    return f"values are {duration(view.age)} old"
