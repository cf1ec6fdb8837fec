"""Ranks made by hand for rules that look at one moment: what a rank says, how it ended, what its GPU does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ranktop.probes.reading import DeviceDetail, DeviceIdentity, DeviceReading
from ranktop.tui.session.findings.finding import Finding
from ranktop.tui.session.findings.rules import Rule
from ranktop.tui.session.findings.scene import Scene, scene
from ranktop.tui.session.processes import places
from ranktop.tui.session.rank_view import RankView, end_state, is_stale
from ranktop.tui.session.state import Snapshot
from ranktop.wire.schema import Card, End, Job, Sample, Versions

NOW = 1000.0
JOB = Job(id="abc", name="train", world_size=4)
VERSIONS = Versions(ranktop="0.1.0", python="3.12.4", torch="2.13.0", cuda="12.8", nccl="2.27.5")


def gpu(rank: int) -> DeviceIdentity:
    return DeviceIdentity(
        kind="cuda", uuid=f"GPU-{rank}", name="H100", total=80 * 2**30, pci_bus_id=f"0000:{rank}1:00.0"
    )


def rank(number: int, *, step: int = 20, age: float = 0.4, uptime: float = 300.0, **changes: Any) -> RankView:
    """A rank that runs well; ``card``, ``device`` and ``detail`` change fields of its card, reading and detail."""
    card = Card(
        job=JOB, rank=number, local_rank=number % 8, node=f"n{number // 8}", pid=100 + number, device=gpu(number),
        versions=VERSIONS, script="train.py", code="aaaaaaaa", pids=(100 + number,),
    )  # fmt: skip
    for name, value in changes.pop("card", {}).items():
        card = _set(card, name, value)
    reading = DeviceReading(
        total=80 * 2**30, sm_clock=1755, temperature=60, power=600.0, throttle=(), process_pid=100 + number
    )
    reading = replace(reading, **changes.pop("device", {}))
    sample = Sample(rank=number, uptime=uptime, step=step, step_age=0.5, device=reading, phase="backward")
    end = changes.get("end")
    detail = replace(DeviceDetail(max_sm_clock=1980, ecc_uncorrected=0, recovery="none"), **changes.pop("detail", {}))
    state = end_state(end) if isinstance(end, End) else "silent" if is_stale(sample, age) else "ok"
    if state == "ok" and reading.state in ("lost", "reset required", "no answer", "unavailable"):
        state = f"device {reading.state}"
    view = RankView(rank=number, state=state, age=age, card=card, sample=sample, detail=detail, detail_age=1.0)
    return replace(view, **changes)


def absent(number: int) -> RankView:
    return RankView(rank=number, state="missing", age=None)


def ended(
    number: int, how: str, code: int | None = None, detail: str = "", *, at: float = 990.0, **more: Any
) -> RankView:
    end = End(rank=number, how=how, code=code, detail=detail)
    return rank(number, end=end, ended=at, **more)


def at(ranks: Iterable[RankView], *, state: str = "running", now: float = NOW) -> Scene:
    views = tuple(ranks)
    step = max((view.sample.step for view in views if view.sample), default=0)
    return scene(Snapshot(now=now, job=JOB, state=state, ranks=views, step=step, places=places(views)))


def found(rule: Rule, *ranks: RankView, state: str = "running") -> list[Finding]:
    told = list(rule(at(ranks, state=state)))
    assert all(advised(one) for one in told)
    return told


def advised(finding: Finding) -> bool:
    """Whether its advice is sentences, as all advice is; some need none."""
    advice = finding.advice
    return not advice or (advice[0].isupper() and advice[-1] in ".?" and advice[-2] not in ".?")


def the(rule: Rule, *ranks: RankView, state: str = "running") -> Finding:
    """The only finding of a rule."""
    (one,) = found(rule, *ranks, state=state)
    return one


def evidence(finding: Finding) -> dict[str, object]:
    return {fact.name: fact.value for fact in finding.evidence}


def _set(card: Card, name: str, value: object) -> Card:
    import msgspec

    return msgspec.structs.replace(card, **{name: value})
