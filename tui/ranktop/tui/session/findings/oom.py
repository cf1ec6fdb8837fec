"""A rank that ran out of memory: what it asked for, what stood in the way, and what would have fitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ranktop.tui.session.expected import allocated
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.sizes import short_size, sized
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.session.remedies import remedies
from ranktop.tui.view.text import plain
from ranktop.wire.schema import Box

NEIGHBOUR: Final = 0.05
"""Share of the device from which on others count."""

WORTH: Final = 0.1
"""Share of what is missing that a change of plan must save to be told where none makes room."""


def oom(scene: Scene) -> Iterator[Finding]:
    """Yield a finding for each rank that left a box, or one for ranks that failed at the same place in a step."""
    together: dict[tuple[str, str], list[RankView]] = {}
    for view in scene.snapshot.ranks:
        if view.box is not None:
            cause = _cause(view.box)[0]
            together.setdefault((view.box.phase, cause), []).append(view)
    for (_, cause), views in together.items():
        yield _finding(cause, sorted(views, key=lambda view: (view.boxed or 0.0, view.rank)))


def _cause(box: Box) -> tuple[str, str, str]:
    """Return (cause, what stood in the way, what to do): ``device``, ``fragmented``, ``neighbour`` or ``full``."""
    cached = _cached(box)
    asked, limit, other = box.asked, box.limit, box.memory.other
    if asked is not None and limit is not None and asked > limit:
        whole = _own_limit(box) or "the device has"
        return "device", f"more than {whole}", (
            "This one allocation is larger than all of the memory: cut what is allocated at once (a smaller "
            "micro-batch, shorter sequences, the logits or the loss in chunks)."
        )  # fmt: skip
    if asked is not None and cached is not None and cached >= asked:
        largest = box.allocator.largest_free
        blocks = f", largest free block {sized(largest)}" if largest is not None else ""
        advice = (
            "Freed memory is in blocks that are too small: pad batches to a few lengths."
            if box.allocator.expandable
            else "Freed memory is in blocks that are too small: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        )
        return "fragmented", f"{sized(cached)} cached but fragmented{blocks}", advice
    own = _own_limit(box)
    if own:
        return "full", f"the limit is {own}", "Raise that limit where the machine has more."
    if other is not None and asked is not None and limit and box.memory.runtime is not None:
        missing = asked - (box.free or 0)
        if other >= max(missing, NEIGHBOUR * limit):
            return "neighbour", f"{sized(other)} of the device is held by other processes", (
                "End the other processes on this device, or give this rank another one."
            )  # fmt: skip
    return "full", "", ""


def _own_limit(box: Box) -> str:
    """Return whose the limit is where it is not the device's; then nobody else uses it up."""
    return plain(box.reasons.get("limit", "")) if box.limit is not None else ""


def _cached(box: Box) -> int | None:
    reserved, given = box.allocator.reserved, box.allocator.allocated
    if box.allocator.backend == "malloc":
        return None
    return reserved - given if reserved is not None and given is not None else box.memory.cache


def _finding(cause: str, views: Sequence[RankView]) -> Finding:
    view, box = views[0], views[0].box
    assert box is not None
    ranks = tuple(sorted(one.rank for one in views))
    way, advice = _cause(box)[1:]
    largest = box.allocator.largest_free
    block = f" (largest free block {sized(largest)})" if largest and cause != "fragmented" else ""
    facts = [f"asked for {sized(box.asked, 2)}"] if box.asked is not None else []
    if box.free is not None:
        of = f" of {sized(box.limit, 2)}" if box.limit is not None else ""
        facts.append(f"{sized(box.free, 2)} free{of}{block}")
    told = ", ".join([*facts, *([way] if way else [])])
    first = f"rank {view.rank} first: " if len(ranks) > 1 and told else ""
    where = f" in {box.phase}" if box.phase else ""
    fits = _fits(view, box) if cause != "device" else []
    plan = _plan_advice(box, fits, cause)
    fits = _worth_telling(box, fits)
    colon = ": " if told else ""
    return Finding(
        rule="oom", severity="critical", ranks=ranks, subject=cause,
        short=f"OOM {short_size(box.asked)}"[:14] if box.asked is not None else "OOM",
        sentence=f"{ranks_words(ranks)} ran out of memory{where} of step {box.step + 1}{colon}{first}{told}",
        evidence=_evidence(box, fits),
        advice=" ".join(filter(None, [advice, plan])) or "The rank's post-mortem has what it held.",
        confidence="high" if box.asked is not None else "medium",
        since=min((one.boxed for one in views if one.boxed is not None), default=None), step=box.step + 1,
    )  # fmt: skip


def _fits(view: RankView, box: Box) -> list[tuple[str, int]]:
    """Return the changes of plan that make room for what was asked for, else those that save most."""
    if view.card is None:
        return []
    table = view.sample.table if view.sample is not None else None
    return remedies(view.card, _missing(box), table.moments if table is not None else {})


def _missing(box: Box) -> int:
    return max(0, (box.asked or 0) - (box.free or 0))


def _worth_telling(box: Box, fits: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    return [one for one in fits if one[1] >= WORTH * _missing(box)]


def _plan_advice(box: Box, fits: Sequence[tuple[str, int]], cause: str) -> str:
    """Say which changes of plan make room; where none does, that, unless something else is in the way."""
    if not fits:
        return ""
    missing = _missing(box)
    worth = ", ".join(f"{words} (-{sized(saved)})" for words, saved in _worth_telling(box, fits))
    if any(saved >= missing for _, saved in fits):
        return f"By the budget, less memory at the peak: {worth}."
    if cause != "full":
        return ""
    most = f"; what saves most: {worth}" if worth else ""
    return f"By the budget no single change of plan makes room for the {sized(missing)} that are missing{most}."


def _evidence(box: Box, fits: Sequence[tuple[str, int]]) -> tuple[Evidence, ...]:
    found = [
        Evidence("asked for", box.asked, "B"),
        Evidence("free", box.free, "B"),
        Evidence("limit", box.limit, "B"),
        Evidence("in tensors", allocated(box.memory), "B"),
        Evidence("cached by the allocator", _cached(box), "B"),
        Evidence("largest free block", box.allocator.largest_free, "B"),
        Evidence("of other processes", box.memory.other, "B"),
        Evidence("error", box.error[:200]),
    ]
    kept = [one for one in found if one.value is not None]
    inputs = [Evidence("inputs", ", ".join(box.inputs))] if box.inputs else []
    return (*kept, *inputs, *(Evidence(f"saved by {words}", saved, "B") for words, saved in fits))
