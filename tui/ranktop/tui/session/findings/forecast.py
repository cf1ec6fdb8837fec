"""Out of memory before it happens: the optimizer's first step, the longest batch, saving a whole state dict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ranktop.budget.optimizers.names import by_name
from ranktop.budget.terms import Amount, Budget, Memory
from ranktop.tui.session.findings.alternatives import alternative
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.groups import Group
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import MIB, sized
from ranktop.tui.session.findings.windows import settled, shares_host
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.footprints import Footprint
from ranktop.tui.session.rank_view import RankView
from ranktop.wire.schema import Card

THERE: Final = 0.1
"""Share of the optimizer's state from which on it has been made."""
LONGER: Final = 1.05
"""Ratio of tokens from which on a batch is longer."""
UNKNOWN: Final = "AdamW"
"""What is assumed of an optimizer that has not been seen: it has not stepped yet."""


def forecast(scene: Scene) -> Iterator[Finding]:
    """Yield what will not fit."""
    yield from _first_steps(scene)
    for group in scene.groups:
        yield from _longest_batch(group)
        yield from _saving(group)


@dataclass(frozen=True, slots=True)
class Coming:
    """What one rank's first optimizer step will take."""

    view: RankView
    state: int
    temporaries: int
    gradients: int
    """Not made yet."""
    spare: int
    """What the process itself gives back before: its cache, and activations."""
    free: int
    assumed: bool
    """The optimizer has not been seen."""

    @property
    def needs(self) -> int:
        """Bytes in all."""
        return self.state + self.temporaries + self.gradients


def _first_steps(scene: Scene) -> Iterator[Finding]:
    hosts: dict[str, list[Coming]] = defaultdict(list)
    for group in scene.groups:
        own: list[Coming] = []
        if not any(_due(view) for view in group.members):
            continue
        budget, assumed = _with_optimizer(group.members[0])
        for view in group.members:
            one = _coming(view, budget, assumed)
            if one is not None and view.card is not None:
                # Ranks of a node share its memory where that is the host's.
                (hosts[view.card.node] if shares_host(view) else own).append(one)
        short = [one for one in own if one.needs > one.free + one.spare]
        if short:
            worst = max(short, key=lambda one: one.needs - one.free - one.spare)
            yield _first_step(short, [worst], " each" * (len(short) > 1))
    for coming in hosts.values():
        if sum(one.needs for one in coming) > min(one.free for one in coming) + sum(one.spare for one in coming):
            yield _first_step(coming, coming, " together" * (len(coming) > 1))


def _due(view: RankView) -> bool:
    """Whether its first optimizer step is still to come, as far as the sample tells."""
    sample = view.sample
    return sample is not None and not sample.now.optimizer and sample.now.parameters not in (None, 0)


def _with_optimizer(view: RankView) -> tuple[Budget | None, bool]:
    card = view.card
    if card is None or card.plan is None:
        return None, False
    if card.plan.optimizer.count or card.plan.groups:
        return view.budget, False
    if view.sample is not None and view.sample.step > 0:
        return None, False
    return alternative(card, replace(card.plan, optimizer=by_name(UNKNOWN)), "an optimizer"), True


def _coming(view: RankView, budget: Budget | None, assumed: bool) -> Coming | None:
    sample = view.sample
    if budget is None or sample is None or not _due(view) or sample.now.free is None:
        return None
    end, step, now = budget.at("step_end"), budget.at("optimizer_step"), sample.now
    state = end["optimizer"].bytes if "optimizer" in end else None
    if not state or (now.optimizer or 0) >= THERE * state:
        return None
    extra = _bytes(step, "activations") - _bytes(end, "activations")
    missing = max(0, _bytes(budget.at("backward_end"), "gradients") - (now.gradients or 0))
    spare = (now.cache or 0) + (now.activations or 0)
    return Coming(view, state, max(0, extra), missing, spare, now.free or 0, assumed)


def _bytes(table: Mapping[str, Amount], category: str) -> int:
    amount = table.get(category)
    return 0 if amount is None else amount.bytes or 0


def _first_step(all_of: list[Coming], coming: list[Coming], each: str) -> Finding:
    """Tell of the ranks ``all_of`` by the numbers of those in ``coming``, which share a device."""
    needs = sum(one.needs for one in coming)
    free = min(one.free for one in coming) + sum(one.spare for one in coming)
    ranks = tuple(sorted(one.view.rank for one in all_of))
    assumed = coming[0].assumed
    doubt = f" if its optimizer is {UNKNOWN}" if assumed else ""
    sums = [
        Evidence("optimizer state", sum(one.state for one in coming), "B"),
        Evidence("temporaries of the step", sum(one.temporaries for one in coming), "B"),
        Evidence("gradients to come", sum(one.gradients for one in coming), "B"),
    ]
    return Finding(
        rule="forecast", severity="warning" if assumed else "critical", ranks=ranks, subject="first step",
        short="won't fit",
        sentence=f"{ranks_words(ranks)} will not fit at the first optimizer step{doubt}: "
        f"needs {sized(needs)}{each}, {sized(free)} free",
        evidence=(Evidence("needed", needs, "B"), Evidence("free by then", free, "B"), *sums),
        advice="The optimizer makes its state in its first step. Shard it (ZeRO-1, FSDP), or use one with less state "
        "(8-bit AdamW, SGD); a smaller batch does not help here.",
        confidence="low" if assumed else "high",
    )  # fmt: skip


def _longest_batch(group: Group) -> Iterator[Finding]:
    """Tell ranks apart that have not yet met a batch as long as their peers have, and have no room for it."""
    longest: dict[int, Footprint] = {}
    for view in group.members:
        told = [step for step in settled(view) if step.tokens]
        if told:
            longest[view.rank] = max(told, key=lambda step: step.tokens or 0)
    most = max((step.tokens or 0 for step in longest.values()), default=0)
    for view in group.members:
        step = longest.get(view.rank)
        if step is None or not step.tokens or most < LONGER * step.tokens:
            continue
        needs, free = _more(step.peak, most / step.tokens - 1), _room(step.peak)
        if needs is not None and free is not None and needs > free:
            yield _too_long(view, most, step.tokens, needs, free)


def _more(peak: Memory, longer: float) -> int | None:
    return None if peak.activations is None else int(peak.activations * longer)


def _room(memory: Memory) -> int | None:
    return None if memory.free is None or memory.free < 0 else memory.free + (memory.cache or 0)


def _too_long(view: RankView, most: int, own: int, needs: int, free: int) -> Finding:
    return Finding(
        rule="forecast", severity="critical", ranks=(view.rank,), subject="longest batch", short="won't fit",
        sentence=f"rank {view.rank} will not fit the longest batch that a peer has had ({most:,} tokens): "
        f"needs {sized(needs)} more than its own {own:,}, {sized(free)} free",
        evidence=(
            Evidence("needed more", needs, "B"),
            Evidence("free or cached at its peak", free, "B"),
            Evidence("longest batch of a peer", most, "tokens"),
            Evidence("its own longest", own, "tokens"),
        ),
        advice="Cap the length or the tokens of a batch, sort batches by length, or checkpoint activations.",
        confidence="medium",
    )  # fmt: skip


def _saving(group: Group) -> Iterator[Finding]:
    """Tell that gathering the whole state dict would not fit where rank 0 saves it from its GPU."""
    view = group.members[0]
    card = view.card
    plan = card.plan if card is not None else None
    if card is None or plan is None or plan.host or view.rank != 0 or plan.layout.shard < 2:
        return
    if plan.fsdp is None and not (plan.zero is not None and plan.zero.gather_weights_on_save):
        return
    steps = settled(view, 1)
    rest = steps[-1].rest if steps else None
    needs, free = _gathered(view, card), _room(rest) if rest is not None else None
    if needs is not None and free is not None and needs > free and needs > MIB:
        yield Finding(
            rule="forecast", severity="info", ranks=(0,), subject="saving",
            sentence=f"saving the whole state dict from the GPU would not fit rank 0: gathers {sized(needs)}, "
            f"{sized(free)} free",
            evidence=(Evidence("gathered", needs, "B"), Evidence("free or cached between steps", free, "B")),
            advice="Save a sharded state dict (torch.distributed.checkpoint), or gather it on the CPU "
            "(StateDictOptions(full_state_dict=True, cpu_offload=True)).",
            confidence="medium",
        )  # fmt: skip


def _gathered(view: RankView, card: Card) -> int | None:
    """Return the bytes that saving takes beside what is held between the steps; None without a rule."""
    if view.budget is None or card.inventory is None:
        return None
    save, rest = view.budget.at("checkpoint_save"), view.budget.at("step_start")
    sizes = []
    for category in ("activations", "buffers"):
        one, other = save.get(category), rest.get(category)
        if one is None or one.bytes is None:
            return None
        sizes.append(one.bytes - ((other.bytes or 0) if other is not None else 0))
    return max(0, sum(sizes))
