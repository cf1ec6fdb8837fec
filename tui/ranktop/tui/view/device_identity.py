"""One rank and its device by all their names, on one line where there is room."""

from __future__ import annotations

from ranktop.probes.reading import DeviceIdentity
from ranktop.tui.session.rank_view import RankView
from ranktop.tui.view.columns import device_name
from ranktop.tui.view.text import Glyphs, Line, Span, length, pad, plain

_UUID_PREFIX = 12
"""Characters of a UUID that tell devices of a node apart, ``GPU-5e1c0f2a``: where the whole has no room."""


def identity_lines(view: RankView, glyphs: Glyphs, width: int) -> list[Line]:
    """Return rank, node, torch's and NVML's index, UUID, bus id, MIG instance, NUMA node, name and pids.

    One line where they fit, shortened if need be on a wide screen; else they go on in further lines.
    """
    for shortened in (0, 1, 2):
        facts = _facts(view, shortened, glyphs)
        for gap in (f" {glyphs.dot} ", "  "):
            if 1 + length(((gap.join(facts), ""),)) <= width:
                return [_line(facts, gap, width)]
        if width < 100:
            break
    facts, gap = _facts(view, 1, glyphs), f" {glyphs.dot} "
    lines: list[Line] = []
    row: list[str] = []
    for fact in facts:
        if row and 1 + length(((gap.join([*row, fact]), ""),)) > width:
            lines.append(_line(row, gap, width, bool(lines)))
            row = []
        row.append(fact)
    return [*lines, _line(row, gap, width, bool(lines))]


def _line(facts: list[str], gap: str, width: int, further: bool = False) -> Line:
    first, *rest = facts
    spans: list[Span] = [(f" {first}", "head" if further else "head bold")]
    spans += [(f"{gap}{fact}", "head") for fact in rest]
    return pad(spans, width, "head")


def _facts(view: RankView, shortened: int, glyphs: Glyphs) -> list[str]:
    """Return the names; ``shortened`` 1 leaves the vendor and the bus's first domain out, 2 the end of the UUID."""
    facts = [f"rank {view.rank}"]
    card = view.card
    if card is None:
        return [*facts, "no card yet"]
    device = card.device
    place = device_name(view).partition(" ")[0]
    facts += [plain(card.node), place, "" if device.nvml_index is None else f"NVML {device.nvml_index}"]
    uuid = plain(device.uuid or "")
    facts.append(f"{uuid[:_UUID_PREFIX]}{glyphs.ellipsis}" if shortened > 1 and len(uuid) > _UUID_PREFIX + 1 else uuid)
    bus = plain(device.pci_bus_id or "")
    facts += [bus.removeprefix("0000:") if shortened else bus, _mig(device, shortened)]
    name = plain(device.name)
    if device.mig is not None and device.mig.profile:
        name = name.removesuffix(plain(device.mig.profile)).rstrip().removesuffix(" MIG")
    facts += ["" if device.numa_node is None else f"NUMA {device.numa_node}"]
    facts += [name.removeprefix("NVIDIA ") if shortened else name, _pids(view)]
    if view.restart:
        facts.append(f"restart {view.restart}")
    return [fact for fact in facts if fact]


def _mig(device: DeviceIdentity, shortened: int) -> str:
    mig = device.mig
    if mig is None:
        return ""
    words = ["MIG", "" if mig.index is None else str(mig.index), plain(mig.profile)]
    if shortened < 2:
        words += [] if mig.gpu_instance is None else [f"GI {mig.gpu_instance}"]
        words += [] if mig.compute_instance is None else [f"CI {mig.compute_instance}"]
    return " ".join(word for word in words if word)


def _pids(view: RankView) -> str:
    """Return the process id, the one by which the driver knows it, and those that other PID namespaces know it by."""
    assert view.card is not None
    pid = view.card.pid
    listed = view.sample.device.process_pid if view.sample is not None else None
    told = [] if listed in (None, pid) else [f"driver: {listed}"]
    others = [str(other) for other in view.card.pids if other not in (pid, listed)]
    told += [f"other namespaces: {', '.join(others)}"] if others else []
    return f"pid {pid} ({'; '.join(told)})" if told else f"pid {pid}"
