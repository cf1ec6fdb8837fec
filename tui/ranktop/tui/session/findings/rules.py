"""All rules, in the order in which they are asked. A new rule is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ranktop.tui.session.findings.checkpointing import checkpointing
from ranktop.tui.session.findings.death import death
from ranktop.tui.session.findings.device import device
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.forecast import forecast
from ranktop.tui.session.findings.fragmentation import fragmentation
from ranktop.tui.session.findings.growth import growth
from ranktop.tui.session.findings.hang import hang
from ranktop.tui.session.findings.loss import loss
from ranktop.tui.session.findings.memory import memory
from ranktop.tui.session.findings.missing import missing
from ranktop.tui.session.findings.no_sync import no_sync
from ranktop.tui.session.findings.node import node
from ranktop.tui.session.findings.offload import offload
from ranktop.tui.session.findings.oom import oom
from ranktop.tui.session.findings.pause import pause
from ranktop.tui.session.findings.restart import restart
from ranktop.tui.session.findings.scene import Scene
from ranktop.tui.session.findings.silent import silent
from ranktop.tui.session.findings.straggler import straggler
from ranktop.tui.session.findings.strays import strays
from ranktop.tui.session.findings.throttle import throttle
from ranktop.tui.session.findings.tokens import tokens
from ranktop.tui.session.findings.unsharded import unsharded
from ranktop.tui.session.findings.versions import versions

Rule = Callable[[Scene], Iterable[Finding]]

RULES: Final[dict[str, Rule]] = {
    # Lifecycle, then devices, then time, then memory.
    "death": death,
    "restart": restart,
    "silent": silent,
    "missing": missing,
    "node": node,
    "versions": versions,
    "device": device,
    "throttle": throttle,
    "strays": strays,
    "hang": hang,
    "pause": pause,
    "straggler": straggler,
    "tokens": tokens,
    "loss": loss,
    "memory": memory,
    "growth": growth,
    "fragmentation": fragmentation,
    "unsharded": unsharded,
    "no_sync": no_sync,
    "checkpointing": checkpointing,
    "offload": offload,
    "forecast": forecast,
    "oom": oom,
}
"""Name -> rule. What one finding explains of another is settled afterwards (``explained``)."""
