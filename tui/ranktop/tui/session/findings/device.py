"""Devices that are lost, need a reset, do not answer or ail though they work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ranktop.tui.session.findings.device_words import ailments, trouble_sentence
from ranktop.tui.session.findings.finding import Evidence, Finding
from ranktop.tui.session.findings.groups import LIVELY
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.words import ranks_words
from ranktop.tui.session.gauges import Gauges
from ranktop.tui.session.rank_view import RankView

_SEVERITY: Final = {"lost": "critical", "reset required": "critical"}
_SHORT: Final = {"lost": "GPU lost", "reset required": "reset needed", "no answer": "no answer"}
_ADVICE: Final = {
    "lost": "The job cannot go on with it: dmesg shows the Xid; drain the node, it needs a reset or a reboot.",
    "reset required": "The job cannot go on with it: nvidia-smi --gpu-reset once nothing uses it, or a reboot.",
    "no answer": "See in dmesg whether the driver is in trouble; the numbers of this GPU are old until it answers.",
    "unavailable": "Ask ranktop doctor on that node what keeps it from being asked.",
}
_OF_AILMENTS: Final = (
    "Have the node looked after when the job is done: nvidia-smi -q shows its ECC and remapping counters."
)


def device(scene: Scene) -> Iterable[Finding]:
    """Find devices in trouble, one finding a device."""
    for members in by_device(scene.snapshot.ranks):
        view = members[0]
        gauges = Gauges.of(view)
        if gauges is None:
            continue
        if gauges.trouble and view.state.startswith("device "):
            yield _trouble(members, gauges, scene.now)
        elif view.state in LIVELY:
            ill = ailments(gauges)
            if ill:
                yield _ailing(members, gauges, ill)


def by_device(ranks: Iterable[RankView]) -> Iterable[tuple[RankView, ...]]:
    """Return the ranks with a GPU, those that share one together."""
    found: dict[tuple[str, str], list[RankView]] = {}
    for view in ranks:
        if view.card is None or view.card.device.kind != "cuda":
            continue
        uuid = view.card.device.uuid or f"of rank {view.rank}"
        found.setdefault((view.card.node, uuid), []).append(view)
    return (tuple(members) for members in found.values())


def _trouble(members: Sequence[RankView], gauges: Gauges, now: float) -> Finding:
    state = gauges.trouble
    ranks = tuple(view.rank for view in members)
    return Finding(
        rule="device",
        severity=_SEVERITY.get(state, "warning"),
        ranks=ranks,
        sentence=f"{ranks_words(ranks)}: {trouble_sentence(gauges)}",
        short=_SHORT.get(state, "GPU trouble"),
        subject=state,
        evidence=(
            *_which(members[0]),
            Evidence("last answer", gauges.silent_for, "s"),
            Evidence("reason", gauges.reason("device") or None),
        ),
        advice=_ADVICE.get(state, ""),
        since=now - gauges.silent_for if state in ("lost", "no answer") else None,
    )


def _ailing(members: Sequence[RankView], gauges: Gauges, ill: Sequence[tuple[str, str]]) -> Finding:
    ranks = tuple(view.rank for view in members)
    return Finding(
        rule="device",
        severity="warning",
        ranks=ranks,
        sentence=f"{ranks_words(ranks)}: this GPU works but ails: {', '.join(text for _, text in ill)}",
        short=ill[0][0][:14],
        subject="ailing",
        evidence=(
            *_which(members[0]),
            Evidence("uncorrected ECC errors", gauges.get("ecc_uncorrected")),
            Evidence("rows remapped for them", gauges.get("remapped_uncorrected")),
            Evidence("the driver asks for", gauges.get("recovery")),
        ),
        advice=_OF_AILMENTS,
    )


def _which(view: RankView) -> Iterable[Evidence]:
    """Say which device it is, for whoever has to find it."""
    assert view.card is not None
    identity = view.card.device
    yield Evidence("GPU", identity.uuid)
    if identity.pci_bus_id:
        yield Evidence("PCI bus id", identity.pci_bus_id)
    if view.card.node:
        yield Evidence("node", view.card.node)
