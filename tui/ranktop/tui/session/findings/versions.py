"""Ranks that run other code or other libraries than their peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ranktop.tui.session.findings.death import born_at
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.missing import STEPS
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.view.text import plain
from ranktop.wire.schema import Card

SUBJECTS: Final = {
    "torch": ("torch", "cuda", "nccl"),
    "python": ("python",),
    "deepspeed": ("deepspeed",),
    "ranktop": ("ranktop",),
}
"""Subject -> fields of ``Versions`` that come with it: a wheel of torch brings its CUDA and its NCCL."""

_NAMES: Final = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "python": "Python"}

_ADVICE: Final = {
    "torch": "Install the same wheel on all nodes: ranks with different NCCL or torch may hang or disagree silently.",
    "python": "Use the same environment on all nodes.",
    "deepspeed": "Install the same version on all nodes.",
    "ranktop": "Install the same version on all nodes, so that their numbers mean the same.",
}


def versions(scene: Scene) -> Iterable[Finding]:
    """Find what differs between ranks: libraries by subject, and the script itself."""
    if _gathering(scene):
        return
    cards = {view.rank: view.card for view in scene.snapshot.ranks if view.card is not None}
    for subject, fields in SUBJECTS.items():
        apart = {
            name: odd for name in fields if (odd := _odd({r: getattr(c.versions, name) for r, c in cards.items()}))
        }
        if apart:
            yield _begun(_libraries(subject, apart, cards), scene)
    yield from (_begun(finding, scene) for finding in _code(cards))


def _gathering(scene: Scene) -> bool:
    """Tell whether ranks are still on their way: of the first two that differ nobody can tell which is the odd one."""
    ranks = scene.snapshot.ranks
    if scene.snapshot.step >= STEPS or not any(view.state == "missing" for view in ranks):
        return False
    born = [at for view in ranks if (at := born_at(view, scene.now)) is not None]
    return not born or scene.now - min(born) < scene.limits["missing.patience"]


def _begun(finding: Finding, scene: Scene) -> Finding:
    """Date a finding: since the last of its ranks began."""
    views = [view for rank in finding.ranks if (view := scene.snapshot.rank(rank)) is not None]
    born = [at for view in views if (at := born_at(view, scene.now)) is not None]
    return replace(finding, since=max(born)) if born else finding


def _odd(values: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """Return value -> ranks where there are several, the most common first; unknown ones are left out.

    Of two that are equally common that of the lowest rank counts as the usual one.
    """
    known = {rank: plain(value) for rank, value in sorted(values.items()) if value}
    counted = [value for value, _ in Counter(known.values()).most_common()]
    if len(counted) < 2:
        return {}
    return {value: tuple(rank for rank, own in known.items() if own == value) for value in counted}


def _libraries(subject: str, apart: Mapping[str, dict[str, tuple[int, ...]]], cards: Mapping[int, Card]) -> Finding:
    name, told = next(iter(apart.items()))
    usual, *others = told
    what = _NAMES.get(name, name)
    ranks = tuple(sorted({rank for odd in apart.values() for value in list(odd)[1:] for rank in odd[value]}))
    parts = " and ".join(f"{ranks_words(told[value])} run{_s(told[value])} {what} {value}" for value in others)
    evidence = [
        Evidence(f"{_NAMES.get(field, field)} of {ranks_words(who)}", value)
        for field, odd in apart.items()
        for value, who in odd.items()
    ]
    return Finding(
        rule="versions",
        severity="warning",
        ranks=ranks,
        sentence=f"{parts}, {_rest(told[usual])} {usual}",
        short=f"{what} differs"[:14],
        subject=subject,
        evidence=(*evidence, *_nodes(ranks, cards)),
        advice=_ADVICE[subject],
        peers=told[usual],
    )


def _code(cards: Mapping[int, Card]) -> Iterable[Finding]:
    """Compare the bytes of the script among the ranks that run a script of the same name."""
    scripts: dict[str, dict[int, str]] = {}
    for rank, card in cards.items():
        scripts.setdefault(card.script, {})[rank] = card.code
    for script, codes in scripts.items():
        told = _odd(codes)
        if not told:
            continue
        usual, *others = told
        ranks = tuple(sorted(rank for code in others for rank in told[code]))
        name = plain(script) or "the script"
        yield Finding(
            rule="versions",
            severity="warning",
            ranks=ranks,
            sentence=f"{ranks_words(ranks)} run{_s(ranks)} another {name} than {_rest(told[usual])}",
            short="other code",
            subject="code",
            evidence=(
                *(Evidence(f"SHA-256 of {ranks_words(who)}", code) for code, who in told.items()),
                *_nodes(ranks, cards),
            ),
            advice="Copy the same script to all nodes and start again: ranks with different code do different work.",
            peers=told[usual],
        )


def _rest(usual: Sequence[int]) -> str:
    return f"the other {len(usual)} ranks" if len(usual) > 1 else f"rank {usual[0]}"


def _s(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) == 1 else ""


def _nodes(ranks: Sequence[int], cards: Mapping[int, Card]) -> Iterable[Evidence]:
    nodes = sorted({cards[rank].node for rank in ranks if cards[rank].node})
    if nodes:
        yield Evidence("node" if len(nodes) == 1 else "nodes", ", ".join(nodes[:8]))
