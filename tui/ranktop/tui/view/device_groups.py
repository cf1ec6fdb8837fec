"""A device's readings in words, group by group: load, power, temperature, clocks, links, errors, modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ranktop.probes.reading import NvLink
from ranktop.tui.view.gauges import Gauges, in_a_word
from ranktop.tui.view.text import Glyphs, Line, Span, count, merge, plain

NEAR: Final = 5
"""Degrees below the slowdown temperature from which on it is near."""
BUSY: Final = 10
"""Percent of utilisation from which on a PCIe link below its best generation is no sign of rest."""
_LOUD: Final = {"bad": 2, "warn": 1}


@dataclass(frozen=True, slots=True)
class Piece:
    """One value in words."""

    text: str
    style: str = "number"
    main: bool = False
    """Belongs to what is watched, also where there is little room."""
    age: float | None = None
    """Seconds, once it is older than it should be."""
    parent: bool = False
    """The whole GPU's, though the device is a MIG instance."""
    spans: Line = ()
    """The same text in several styles."""


@dataclass(frozen=True, slots=True)
class Group:
    """Values that belong together."""

    title: str
    pieces: tuple[Piece, ...]

    @property
    def loud(self) -> int:
        """2 when something in it is bad, 1 when it needs a look, else 0."""
        return max((_LOUD.get(piece.style.partition(" ")[0], 0) for piece in self.pieces), default=0)


def groups(gauges: Gauges, glyphs: Glyphs) -> list[Group]:
    """Return the groups of which something is known, or said to be unknown, in their usual order."""
    if gauges.identity.kind != "cuda":
        return [group for group in (Group("CPU", tuple(_load(gauges, glyphs))),) if group.pieces]
    made = (
        ("util", _load(gauges, glyphs)), ("power", _power(gauges, glyphs)), ("temp", _temperature(gauges, glyphs)),
        ("clock", _clocks(gauges, glyphs)), ("slowed by", _throttle(gauges, glyphs)), ("PCIe", _pcie(gauges, glyphs)),
        ("NVLink", _nvlink(gauges, glyphs)), ("ECC", _ecc(gauges, glyphs)), ("rows", _rows(gauges)),
        ("recovery", _recovery(gauges)), ("modes", _modes(gauges)), ("driver", _driver(gauges)),
    )  # fmt: skip
    return [group for title, pieces in made if (group := Group(title, tuple(pieces))).pieces]


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _piece(gauges: Gauges, text: str, *fields: str, style: str = "number", main: bool = False) -> Piece:
    return Piece(text, style, main, gauges.old(*fields), gauges.of_parent(*fields))


def _missing(gauges: Gauges, field: str, glyphs: Glyphs) -> Iterator[Piece]:
    """Say in a word why a value that is watched is unknown; nothing when it is only not there."""
    reason = gauges.reason(field)
    if reason and not gauges.trouble:
        yield Piece(f"{glyphs.dash} {in_a_word(reason)}", "dim", True)


def _load(gauges: Gauges, glyphs: Glyphs) -> Iterator[Piece]:
    percent = gauges.get("utilization")
    if percent is None:
        yield from _missing(gauges, "utilization", glyphs)
    else:
        yield _piece(gauges, f"{_number(percent)} %", "utilization", main=True)
    bus = gauges.get("memory_utilization")
    if bus is not None:
        yield _piece(gauges, f"memory bus {_number(bus)} %", "memory_utilization", main=True)
    state = gauges.get("performance_state")
    if state is not None:
        yield _piece(gauges, f"P{state}", "performance_state")
    names = (("gpm_sm", "SM"), ("gpm_occupancy", "occupancy"), ("gpm_tensor", "tensor"), ("gpm_dram", "DRAM"))
    for field, name in names:
        value = gauges.get(field)
        if value is not None:
            yield _piece(gauges, f"{name} {_number(value)} %", field)


def _power(gauges: Gauges, glyphs: Glyphs) -> Iterator[Piece]:
    power, limit = gauges.get("power"), gauges.get("power_limit")
    if power is None:
        yield from _missing(gauges, "power", glyphs)
    else:
        of = "" if limit is None else f" of {_number(limit)}"
        yield _piece(gauges, f"{_number(power)}{of} W", "power", main=True)
    default = gauges.get("power_default_limit")
    if limit is not None and default is not None and abs(limit - default) >= 1:
        how = "lowered" if limit < default else "raised"
        yield _piece(gauges, f"limit {how} from {_number(default)} W", "power_limit", style="warn")
    lowest, highest = gauges.get("power_min_limit"), gauges.get("power_max_limit")
    if lowest is not None and highest is not None:
        yield _piece(gauges, f"can be {_number(lowest)} to {_number(highest)}", "power_max_limit", style="dim")
    energy = gauges.get("energy")
    if energy is not None:
        yield _piece(gauges, f"{energy / 3.6e6:,.1f} kWh since driver load", "energy", style="dim")


def _temperature(gauges: Gauges, glyphs: Glyphs) -> Iterator[Piece]:
    now, slows = gauges.get("temperature"), gauges.get("temperature_slowdown")
    if now is None:
        yield from _missing(gauges, "temperature", glyphs)
    else:
        style = "number" if slows is None or now < slows - NEAR else "warn" if now < slows else "bad"
        at = "" if slows is None else f", slows at {slows}"
        yield _piece(gauges, f"{now} {glyphs.degree}{at}", "temperature", style=style, main=True)
    off, most = gauges.get("temperature_shutdown"), gauges.get("temperature_max")
    limits = [f"{word} {value}" for word, value in (("off at", off), ("specified to", most)) if value is not None]
    if limits:
        yield _piece(gauges, ", ".join(limits), "temperature_shutdown", style="dim")
    memory, most = gauges.get("memory_temperature"), gauges.get("temperature_memory_max")
    if memory is not None:
        style = "number" if most is None or memory < most - NEAR else "warn" if memory < most else "bad"
        of = "" if most is None else f" of {most}"
        yield _piece(gauges, f"memory {memory}{of} {glyphs.degree}", "memory_temperature", style=style)


def _clocks(gauges: Gauges, glyphs: Glyphs) -> Iterator[Piece]:
    now, most = gauges.get("sm_clock"), gauges.get("max_sm_clock")
    if now is None:
        yield from _missing(gauges, "sm_clock", glyphs)
    else:
        of = "" if most is None else f" of {_number(most)}"
        yield _piece(gauges, f"{_number(now)}{of} MHz", "sm_clock", main=True)
    now, most = gauges.get("memory_clock"), gauges.get("max_memory_clock")
    if now is not None:
        of = "" if most is None else f" of {_number(most)}"
        yield _piece(gauges, f"memory {_number(now)}{of}", "memory_clock")


def _throttle(gauges: Gauges, glyphs: Glyphs) -> Iterator[Piece]:
    words = gauges.get("throttle")
    if words is None:
        yield from _missing(gauges, "throttle", glyphs)
        return
    wrong = gauges.throttled()
    for word in (*wrong, *(text for text in map(plain, words) if text not in wrong)):
        short = word.replace("hardware", "HW").replace("software", "SW")
        short = short.removesuffix(" slowdown") if short.count(" ") > 1 else short
        yield _piece(gauges, short, "throttle", style="bad bold" if word in wrong else "number", main=True)
    if not words:
        yield _piece(gauges, "nothing", "throttle", style="dim", main=True)


def _pcie(gauges: Gauges, glyphs: Glyphs) -> Iterator[Piece]:
    generation, width = gauges.get("pcie_generation"), gauges.get("pcie_width")
    best, widest = gauges.get("pcie_max_generation"), gauges.get("pcie_max_width")
    if generation is None and width is None:
        if "not supported" not in gauges.reason("pcie_generation"):
            yield from _missing(gauges, "pcie_generation", glyphs)
    else:
        now = f"{_generation(generation)}{_lanes(width)}".strip()
        narrow = width is not None and widest is not None and width < widest
        slow = generation is not None and best is not None and generation < best
        busy = (gauges.get("utilization") or 0) >= BUSY
        of = f" of {'' if best is None else best}{_lanes(widest)}".replace("of  ", "of ") if narrow or slow else ""
        rests = " at rest" if slow and not narrow and not busy else ""
        style = "warn" if narrow or (slow and busy) else "number"
        yield _piece(gauges, f"{now}{of}{rests}", "pcie_generation", "pcie_width", style=style, main=True)
    flows = [
        f"{word} {value / 1e9:.1f} GB/s"
        for word, field in (("out", "pcie_tx"), ("in", "pcie_rx"))
        if (value := gauges.get(field)) is not None
    ]
    if flows:
        yield _piece(gauges, ", ".join(flows), "pcie_tx", "pcie_rx")
    replays = gauges.get("pcie_replays")
    if replays is not None:
        yield _piece(gauges, f"{count(replays)} replays", "pcie_replays", style="dim" if not replays else "number")


def _generation(value: int | None) -> str:
    return "" if value is None else f"gen {value}"


def _lanes(value: int | None) -> str:
    return "" if value is None else f" x{value}"


def odd_links(links: Iterable[NvLink]) -> dict[int, str]:
    """Return the links that are down or have far more errors than the others, with what is odd in words.

    Where none is up NVLink is not in use, as without a bridge: nothing is odd then.
    """
    links = tuple(links)
    errors = {link.link: sum(abs(value) for value in (link.replay, link.recovery, link.crc) if value) for link in links}
    usual = sorted(errors.values())[len(errors) // 2] if errors else 0
    used = any(link.up for link in links)
    found: dict[int, str] = {}
    for link in links:
        counted = ((link.replay, "replays"), (link.recovery, "recoveries"), (link.crc, "CRC errors"))
        told = [f"{count(value)} {word}" for value, word in counted if value]
        if link.up is False and used:
            found[link.link] = ", ".join(["down", *told])
        elif errors[link.link] > 10 * (usual + 1):
            found[link.link] = ", ".join(told)
    return found


def link_strip(links: Iterable[NvLink], glyphs: Glyphs) -> Line:
    """Return one character a link: up, down, with far more errors than the others, or unknown."""
    links = tuple(links)
    odd = odd_links(links)
    spans: list[Span] = []
    for link in links:
        if link.up and link.link in odd:
            spans.append((glyphs.alert, "warn bold"))
        elif link.up:
            spans.append((glyphs.swatch, "good"))
        elif link.up is False:
            spans.append((glyphs.failed, "bad bold" if link.link in odd else "dim"))
        else:
            spans.append(("?", "dim"))
    return merge(spans)


def _nvlink(gauges: Gauges, glyphs: Glyphs) -> Iterator[Piece]:
    links = gauges.get("nvlinks")
    if links is None:
        if "not supported" not in gauges.reason("nvlinks"):
            yield from _missing(gauges, "nvlinks", glyphs)
        return
    if not links:
        return
    up, known = sum(link.up is True for link in links), sum(link.up is not None for link in links)
    text = f"{up or 'none'} of {len(links)} up" if known else f"{len(links)} links, state unknown"
    odd = list(odd_links(links).items())
    yield _piece(gauges, text, "nvlinks", style="warn" if 0 < up < known else "number", main=True)
    strip = link_strip(links, glyphs)
    yield Piece("".join(mark for mark, _ in strip), age=gauges.old("nvlinks"), spans=strip)
    for link, words in odd[:3]:
        yield _piece(gauges, f"link {link}: {words}", "nvlinks", style="warn", main=len(odd) == 1)
    if len(odd) > 3:
        yield _piece(gauges, f"and {len(odd) - 3} more", "nvlinks", style="warn")


def _ecc(gauges: Gauges, glyphs: Glyphs) -> Iterator[Piece]:
    enabled = gauges.get("ecc_enabled")
    if enabled is False:
        yield _piece(gauges, "off", "ecc_enabled", main=True)
        return
    wrong, mended = gauges.get("ecc_uncorrected"), gauges.get("ecc_corrected")
    if wrong is not None:
        yield _piece(
            gauges, f"{count(wrong)} uncorrected", "ecc_uncorrected", style="bad bold" if wrong else "number", main=True
        )
    elif enabled is not None or "not supported" not in gauges.reason("ecc_uncorrected"):
        yield from _missing(gauges, "ecc_uncorrected", glyphs)
    if mended is not None:
        yield _piece(gauges, f"{count(mended)} corrected", "ecc_corrected")
    life = [
        f"{count(value)} {word}"
        for field, word in (("ecc_aggregate_uncorrected", "uncorrected"), ("ecc_aggregate_corrected", "corrected"))
        if (value := gauges.get(field)) is not None
    ]
    if life:
        yield _piece(gauges, f"in its life {', '.join(life)}", "ecc_aggregate_corrected", style="dim")


def _recovery(gauges: Gauges) -> Iterator[Piece]:
    asked = gauges.get("recovery")
    if asked not in (None, "", "none"):
        yield _piece(gauges, plain(asked), "recovery", style="bad bold", main=True)
        yield Piece("asked for by the driver", "dim")


def _rows(gauges: Gauges) -> Iterator[Piece]:
    if gauges.get("remap_failed"):
        yield _piece(gauges, "remap failed", "remap_failed", style="bad bold", main=True)
        yield Piece("no rows are left to replace bad ones: replace the GPU", "dim")
    if gauges.get("remap_pending"):
        yield _piece(gauges, "remap needs reset", "remap_pending", style="warn", main=True)
    wrong, mended = gauges.get("remapped_uncorrected"), gauges.get("remapped_corrected")
    if wrong is not None or mended is not None:
        after = f", {count(wrong)} after uncorrected errors" if wrong else ""
        style = "number" if wrong or mended else "dim"
        yield _piece(
            gauges, f"{count((wrong or 0) + (mended or 0))} remapped{after}", "remapped_corrected", style=style
        )


def _modes(gauges: Gauges) -> Iterator[Piece]:
    persistence, mode, fan = gauges.get("persistence"), gauges.get("compute_mode"), gauges.get("fan")
    if persistence is not None:
        yield _piece(gauges, f"persistence {'on' if persistence else 'off'}", "persistence")
    if mode is not None:
        style = "warn" if mode == "prohibited" else "number"
        yield _piece(gauges, f"compute {plain(mode)}", "compute_mode", style=style)
    if fan is not None:
        yield _piece(gauges, f"fan {fan} %", "fan")


def _driver(gauges: Gauges) -> Iterator[Piece]:
    device = gauges.identity
    if device.driver:
        yield Piece(plain(device.driver))
    if device.cuda_driver:
        yield Piece(f"up to CUDA {plain(device.cuda_driver)}")
    if gauges.view.card is not None and gauges.view.card.versions.cuda:
        yield Piece(f"the job's is {plain(gauges.view.card.versions.cuda)}", "dim")
