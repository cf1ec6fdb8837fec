"""The jobs of this machine: does the hub answer, which ranks are heard, what do their agents say."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from ranktop.tui.cli import matching
from ranktop.tui.doctor.check import Check, Result, failed, passed, skipped, warned
from ranktop.tui.doctor.scene import Scene, plural, ranges
from ranktop.tui.session.rank_view import GONE, RankView
from ranktop.tui.session.receiver import HubSource
from ranktop.tui.session.source import Link
from ranktop.tui.session.state import Session
from ranktop.wire.codec import clean
from ranktop.wire.endpoints import JobEntry, find_jobs

ANSWER_SECONDS: Final = 3.0
"""How long a hub is waited for."""
MOST_JOBS: Final = 8
"""Jobs that are asked, the newest first."""
_REMARKS: Final = ("host memory:",)
"""How notes begin that only say how a measurement is to be read."""
_START: Final = "torchrun ... -m ranktop.agent train.py"


@dataclass(slots=True)
class Reached:
    """What asking one job's hub gave."""

    entry: JobEntry
    session: Session = field(default_factory=Session)
    seconds: float | None = None
    """Until the hub's first answer; None when there was none."""
    link: Link = field(default_factory=Link)


def look_for_jobs(scene: Scene) -> list[Result]:
    """Find the jobs, or the one that is wanted."""
    found = find_jobs()
    jobs = matching(found.jobs, scene.job)
    results = [_problem(text) for text in found.problems]
    facts = {"jobs": [{"id": job.id, "name": job.name, "ended": job.ended} for job in found.jobs]}
    if not jobs and scene.job is not None:
        there = ", ".join(f"{job.id} ({clean(job.name)})" for job in found.jobs) or "none"
        results.insert(0, failed(f"no job {scene.job!r} on this machine; there are: {there}", _START, **facts))
    elif not jobs:
        results.insert(0, skipped("no job on this machine", f"start one with {_START}", **facts))
    else:
        more = f"; the newest {MOST_JOBS} are asked" if len(jobs) > MOST_JOBS else ""
        results.insert(0, passed(f"{plural(len(jobs), 'job')} found{more}", **facts))
    scene.shared["jobs"] = ask(jobs[:MOST_JOBS], min(ANSWER_SECONDS, scene.left()))
    return results


def _problem(text: str) -> Result:
    found, _, advice = text.rpartition(": ")
    return warned(clean(found or text), clean(advice) if found else "see its hub.log", problem=clean(text))


def ask(jobs: list[JobEntry], seconds: float) -> list[Reached]:
    """Ask the hubs of all jobs at the same time for what they hold."""
    asked = [Reached(entry) for entry in jobs]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=_ask, args=(reached, until), daemon=True) for reached in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until + 0.5 - time.monotonic()))
    return asked


def _ask(reached: Reached, until: float) -> None:
    started = time.monotonic()
    source = HubSource(reached.entry.directory)
    try:
        while time.monotonic() < until and not reached.session.ranks:
            source.poll(0.1)
            reached.session.feed(source.drain())
            if reached.session.job is not None and reached.seconds is None:
                reached.seconds = time.monotonic() - started
        reached.link = source.link()
    except Exception as error:  # told on the hub's line
        reached.link = Link(state="lost", detail=f"{type(error).__name__}: {error}")
    finally:
        source.close()


def look_at_hubs(scene: Scene) -> list[Result]:
    """Tell whether each job's hub answers."""
    return [_hub(reached) for reached in scene.shared.get("jobs", ())]


def _hub(reached: Reached) -> Result:
    entry, label = reached.entry, _label(reached)
    facts = {"job": entry.id, "name": entry.name, "hub_pid": entry.hub_pid, "seconds": reached.seconds}
    if reached.seconds is None:
        detail = reached.link.detail if reached.link.state == "lost" else "its hub does not answer"
        advice = f"see {entry.directory / 'hub.log'}; the job's agents start another hub when this one dies"
        return failed(f"{clean(entry.name)}: {clean(detail)}", advice, label=label, **facts)
    return passed(f"{clean(entry.name)}: its hub answered in {reached.seconds * 1000:.0f} ms", label=label, **facts)


def look_at_ranks(scene: Scene) -> list[Result]:
    """Tell which ranks are heard and how old their last word is."""
    return [_ranks(reached) for reached in _answered(scene)]


def _ranks(reached: Reached) -> Result:
    views = reached.session.snapshot().ranks
    states = Counter(view.state for view in views)
    by_state = {state: [view.rank for view in views if view.state == state] for state in states}
    ages = [view.age for view in views if view.age is not None and view.state not in GONE]
    facts = {"job": reached.entry.id, "world_size": len(views), "states": by_state, "oldest": max(ages, default=None)}
    label = _label(reached)
    heard = sum(view.state != "missing" for view in views)
    found = f"{heard} of {plural(len(views), 'rank')} heard"
    if ages and "silent" not in states:
        found += f", the last word at most {max(ages):.1f} s old"
    if not heard:
        advice = f"is the script run by the agent ({_START}), and RANKTOP_DISABLE not set?"
        return failed(found, advice, label=label, **facts)
    if missing := by_state.get("missing"):
        advice = "of another node: ranktop doctor there, and docs/nodes.md; of this one: see their standard error"
        return warned(f"{found}; never heard: {ranges(missing)}", advice, label=label, **facts)
    if silent := by_state.get("silent"):
        oldest = max(ages, default=0.0)
        advice = "is the process stopped or swapped out? `py-spy dump --pid` shows where it is"
        return warned(f"{found}; silent for up to {oldest:.0f} s: {ranges(silent)}", advice, label=label, **facts)
    broken = {state: ranks for state, ranks in by_state.items() if state in GONE - {"ended"}}
    if broken:
        words = ", ".join(f"{ranges(ranks)} {state}" for state, ranks in broken.items())
        return warned(f"{found}; {words}", "`ranktop status` tells how each rank ended", label=label, **facts)
    return passed(found, label=label, **facts)


def look_at_agents(scene: Scene) -> list[Result]:
    """Tell what the agents note, lose and get wrong, and whether they are of this version."""
    results: list[Result] = []
    for reached in _answered(scene):
        views = [view for view in reached.session.snapshot().ranks if view.state != "missing"]
        results += [
            _notes(reached, views),
            _losses(reached, views),
            *_devices(reached, views),
            _versions(reached, views),
        ]
    return results


def _notes(reached: Reached, views: list[RankView]) -> Result:
    notes = _grouped((clean(note), view.rank) for view in views if view.card is not None for note in view.card.notes)
    facts = {"job": reached.entry.id, "notes": notes}
    amiss = {note: ranks for note, ranks in notes.items() if not note.startswith(_REMARKS)}
    if not amiss:
        return passed("the agents note nothing amiss", label=_label(reached), **facts)
    words = "; ".join(f"{note} (rank {ranges(ranks)})" for note, ranks in amiss.items())
    return warned(
        f"the agents note: {words}", "docs/measuring.md tells what that costs", label=_label(reached), **facts
    )


def _losses(reached: Reached, views: list[RankView]) -> Result:
    costs = [(view.rank, view.sample.cost) for view in views if view.sample is not None]
    dropped = {rank: cost.dropped for rank, cost in costs if cost.dropped}
    errors = {rank: cost.errors for rank, cost in costs if cost.errors}
    facts = {
        "job": reached.entry.id,
        "dropped": dropped,
        "errors": errors,
        "refused": reached.link.bad,
        "lost": reached.link.lost,
    }
    words = []
    if dropped:
        words.append(f"{plural(sum(dropped.values()), 'message')} dropped by rank {ranges(list(dropped))}")
    if errors:
        words.append(f"{plural(sum(errors.values()), 'error')} inside the agent of rank {ranges(list(errors))}")
    if reached.link.bad:
        words.append(f"{plural(reached.link.bad, 'message')} refused as unreadable")
    if not words:
        return passed("no message dropped, refused or lost", label=_label(reached), **facts)
    advice = f"see {reached.entry.directory / 'hub.log'}; a machine without a free CPU drops messages"
    return warned("; ".join(words), advice, label=_label(reached), **facts)


def _devices(reached: Reached, views: list[RankView]) -> list[Result]:
    bad = _grouped(
        (f"{view.sample.device.state}: {clean(view.sample.device.reasons.get('device', ''))}".rstrip(": "), view.rank)
        for view in views
        if view.sample is not None and view.end is None and view.sample.device.state not in ("ok", "pending")
    )
    if not bad:
        return []
    words = "; ".join(f"device {state} (rank {ranges(ranks)})" for state, ranks in bad.items())
    return [warned(words, "see the driver's lines above", label=_label(reached), job=reached.entry.id, devices=bad)]


def _versions(reached: Reached, views: list[RankView]) -> Result:
    mine = version("ranktop")
    cards = [(view.rank, view.card.versions) for view in views if view.card is not None]
    theirs = _grouped((versions.ranktop or "unknown", rank) for rank, versions in cards)
    torch = _grouped((versions.torch, rank) for rank, versions in cards if versions.torch)
    facts = {"job": reached.entry.id, "viewer": mine, "agents": theirs, "torch": torch}
    label = _label(reached)
    if not cards:
        return skipped("no agent has told its version", label=label, **facts)
    if set(theirs) != {mine}:
        words = ", ".join(f"{name} (rank {ranges(ranks)})" for name, ranks in theirs.items())
        return warned(f"agents of ranktop {words}, this viewer is {mine}", "install the same version on both sides",
                      label=label, **facts)  # fmt: skip
    if len(torch) > 1:
        words = ", ".join(f"{name} (rank {ranges(ranks)})" for name, ranks in torch.items())
        return warned(f"ranks run different versions of torch: {words}", "give all nodes the same environment",
                      label=label, **facts)  # fmt: skip
    beside = f", torch {next(iter(torch))}" if torch else ""
    return passed(f"agents and viewer are both ranktop {mine}{beside}", label=label, **facts)


def _answered(scene: Scene) -> list[Reached]:
    return [reached for reached in scene.shared.get("jobs", ()) if reached.seconds is not None]


def _label(reached: Reached) -> str:
    return reached.entry.id[:12]


def _grouped(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for text, rank in pairs:
        found[text].append(rank)
    return dict(found)


CHECKS = (
    Check("jobs.found", "jobs", look_for_jobs),
    Check("jobs.hub", "hub", look_at_hubs),
    Check("jobs.ranks", "ranks", look_at_ranks),
    Check("jobs.agents", "agents", look_at_agents),
)
