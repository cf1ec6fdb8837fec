"""What can be made to go wrong in a simulated job."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

LATE: Final = 30
"""Step at which what ends or stops a job happens unless it is told otherwise: there is something to see before."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One entry of the list of faults."""

    what: str
    """In words."""
    by: float = 0.0
    """How much, by default; 0 where there is nothing to measure."""
    means: str = ""
    """What ``by`` measures."""
    start: int = 1
    """Step in which it begins, by default."""
    everyone: bool = False
    """It is not one rank's."""


KINDS: Final[dict[str, Kind]] = {
    "straggler": Kind("computes more slowly than its peers", 0.12, "more time for forward, backward and optimizer"),
    "data": Kind("waits for its data", 0.15, "seconds a step, as a share of a healthy one"),
    "throttle": Kind("has its clocks held down by heat", 0.2, "more time for what the device computes"),
    "pcie": Kind("has a degraded PCIe link", 0.15, "seconds a step, as a share of a healthy one"),
    "starved": Kind("gets too little CPU", 0.15, "seconds a step, as a share of a healthy one"),
    "tokens": Kind("gets more tokens", 0.5, "more tokens, time and activations"),
    "activations": Kind("holds more activations", 0.1, "more activations"),
    "leak": Kind("keeps tensors from step to step, until it runs out of memory", 0.003, "share of the device, a step"),
    "copy": Kind("holds another copy of the model", 1.0, "copies of the whole model in bf16"),
    "fragmentation": Kind("has its cache in pieces that fit nothing", 0.2, "share of the device"),
    "strays": Kind("has the other ranks of its node on its device", 1.0, "contexts of each"),
    "nan": Kind("has a loss that is NaN", start=LATE),
    "unsharded": Kind("holds the whole model: sharding did not happen", everyone=True),
    "no_sync": Kind("accumulates whole gradients (no_sync)", everyone=True),
    "hang": Kind("leaves out a collective: all wait for it", start=LATE),
    "stop": Kind("is stopped (SIGSTOP) and says nothing more", start=LATE),
    "kill": Kind("is killed (SIGKILL); the launcher ends the others", start=LATE),
    "oom": Kind("runs out of device memory; the launcher ends the others", start=LATE),
    "oomkill": Kind("is killed by the kernel's OOM killer; the launcher ends the others", start=LATE),
    "restart": Kind("fails; the launcher starts all ranks again", start=LATE),
    "lost": Kind("loses its GPU", start=LATE),
    "missing": Kind("never appears"),
    "version": Kind("runs another version of torch"),
    "code": Kind("runs another version of the script"),
}
"""Name -> fault."""

ENDING: Final = ("hang", "stop", "kill", "oom", "oomkill", "restart", "lost")
"""Those after which no step is finished."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one rank."""

    name: str
    rank: int = -1
    """-1: not chosen yet, or everyone's."""
    by: float = 0.0
    start: int = 1
    """Step in which it begins, counted from 1."""

    def at(self, step: int) -> bool:
        """Tell whether it is there in a step."""
        return step >= self.start


def parse(text: str) -> Fault:
    """Read ``NAME[:rank=K][:by=X][:from=STEP]``; ValueError says in one line what is wrong with it."""
    name, *options = text.split(":")
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(f"no fault {name!r}; there are {', '.join(KINDS)}")
    fault = Fault(name, -1, kind.by, kind.start)
    for option in options:
        key, _, value = option.partition("=")
        try:
            if key == "rank" and not kind.everyone:
                fault = replace(fault, rank=_whole(value, 0))
            elif key == "by" and kind.by:
                fault = replace(fault, by=_share(value))
            elif key == "from":
                fault = replace(fault, start=_whole(value, 1))
            else:
                raise KeyError
        except KeyError:
            known = [word for word, has in (("rank", not kind.everyone), ("by", kind.by), ("from", True)) if has]
            raise ValueError(f"fault {text!r}: no option {option!r}; {name} has {', '.join(known)}") from None
        except ValueError:
            raise ValueError(f"fault {text!r}: {option!r} is no value that {key} can have") from None
    return fault


def _whole(text: str, least: int) -> int:
    if (value := int(text)) < least:
        raise ValueError
    return value


def _share(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value


def placed(faults: Iterable[Fault], ranks: int, seed: int) -> tuple[Fault, ...]:
    """Give every fault a rank that has none yet, as long as there are such; ValueError for a rank that is not there."""
    chosen = list(faults)
    taken = {fault.rank for fault in chosen}
    random_of = random.Random(f"faults {seed}")
    for at, fault in enumerate(chosen):
        if fault.rank >= ranks:
            raise ValueError(f"fault {fault.name!r}: there is no rank {fault.rank} among {ranks}")
        if fault.rank >= 0 or KINDS[fault.name].everyone:
            continue
        free = [rank for rank in range(ranks) if rank not in taken] or list(range(ranks))
        rank = free[0] if fault.name == "strays" else random_of.choice(free)
        taken.add(rank)
        chosen[at] = replace(fault, rank=rank)
    return tuple(chosen)


def table() -> str:
    """Return the list of faults for people."""
    lines = [f"{'fault':<15}{'from step':>9}  {'by':<8}the rank ..."]
    for name, kind in KINDS.items():
        by = f"{kind.by:g}" if kind.by else "-"
        meaning = f" (by: {kind.means})" if kind.means else ""
        who = "every rank " if kind.everyone else ""
        lines.append(f"{name:<15}{kind.start:>9}  {by:<8}{who}{kind.what}{meaning}")
    return "\n".join(lines)
