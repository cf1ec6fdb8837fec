"""A comparison as ``ranktop compare --json`` prints it: a public contract (schema 1, ``docs/compare.md``)."""

from __future__ import annotations

from typing import Any, Final

from ranktop.budget.terms import BUDGETED, CATEGORIES, Amount
from ranktop.tui.compare.comparison import TIMED, Comparison
from ranktop.tui.compare.held import Held
from ranktop.tui.compare.losses import LossOfRun
from ranktop.tui.compare.side import Side
from ranktop.tui.compare.spread import Difference, Spread
from ranktop.tui.compare.verdict import Verdict, verdicts
from ranktop.tui.status_findings import finding_facts

SCHEMA: Final = 1

KEYS: Final = tuple(name for name in CATEGORIES if name not in ("free", "other"))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison in the documented form."""
    window = comparison.window
    return {
        "schema": SCHEMA,
        "steps": {
            "first": window.first if window.last >= window.first else None,
            "last": window.last if window.last >= window.first else None,
            "warm_up": window.warm_up,
            "same": len(window.common) if window.common is not None else None,
            "words": window.words(),
        },
        "needs_by": "allocator_peak" if comparison.by_peak else "peak_moment",
        "caveats": [
            {"hurts": one.hurts, "runs": list(one.letters), "sentence": one.sentence} for one in comparison.caveats
        ],
        "loss_step": comparison.loss_step,
        "runs": [
            {**_run(comparison, one), "loss": _loss(loss)}
            for one, loss in zip(comparison.sides, comparison.losses, strict=True)
        ],
        "differences": [
            _difference(comparison, other, verdict)
            for other, verdict in zip(comparison.others, verdicts(comparison), strict=True)
        ],
        "plan": [
            {"name": name, "values": dict(zip((one.letter for one in comparison.sides), values, strict=True))}
            for name, values in comparison.plans
        ],
        "findings": [{"runs": list(letters), **finding_facts(one)} for one, letters in comparison.findings()],
    }


def _run(comparison: Comparison, one: Side) -> dict[str, Any]:
    run, held = one.run, one.held
    plan = one.card.plan if one.card is not None else None
    device = one.card.device if one.card is not None else None
    return {
        "run": one.letter,
        "source": run.source,
        "id": run.job.id,
        "name": run.job.name,
        "simulated": one.card.simulated if one.card is not None else None,
        "state": run.state,
        "state_at_end": run.at_end or None,
        "host": run.host or None,
        "started": run.started,
        "ended": run.ended,
        "world_size": run.job.world_size,
        "strategy": plan.strategy if plan is not None else None,
        "strategy_words": _words(one),
        "device": {"kind": device.kind, "name": device.name or None, "total": device.total} if device else None,
        "needs": comparison.needs(one),
        "memory": _held(held) if held is not None else None,
        "groups": [_held(group) for group in one.groups],
        "allocator_peak": one.peak.peak if one.peak is not None else None,
        "allocator_peak_step": one.peak.peak_step if one.peak is not None else None,
        "times": {name: _spread(one.times.get(name)) for name in TIMED if name != "rate"},
        "rate": _spread(one.times.get("rate")),
        "tokens": one.tokens,
        "token_unit": one.token_unit,
        "sent": {"bytes": one.sent.bytes, "calls": one.sent.calls, "calls_seen": one.sent.seen},
        "reasons": {**one.reasons, **({"sent": one.sent.reason} if one.sent.reason else {})},
        "notes": list(run.notes),
    }


def _loss(loss: LossOfRun | None) -> dict[str, Any] | None:
    if loss is None:
        return None
    return {"rank": loss.rank, "last": loss.last, "last_step": loss.last_step, "at_step": _spread(loss.at)}


def _words(one: Side) -> str | None:
    from ranktop.budget.words import strategy_words

    return strategy_words(one.card.plan) if one.card is not None and one.card.plan is not None else None


def _held(held: Held) -> dict[str, Any]:
    return {
        "role": held.role or None,
        "rank": held.rank,
        "ranks": list(held.ranks),
        "step": held.step,
        "moment": held.moment,
        "held": held.held,
        "measured": {name: getattr(held.memory, name) for name in KEYS},
        "expected": {name: _bytes(held.expected.get(name)) for name in BUDGETED},
        "expected_total": held.expected_sum,
    }


def _bytes(amount: Amount | None) -> int | None:
    return amount.bytes if amount is not None else None


def _spread(value: Spread | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"median": value.middle, "spread": value.spread, "error": value.error, "steps": value.count}


def _difference(comparison: Comparison, other: Side, verdict: Verdict) -> dict[str, Any]:
    return {
        "run": other.letter,
        "to": comparison.base.letter,
        "verdict": verdict.sentence,
        "because": list(verdict.because),
        "memory": verdict.memory,
        "time": verdict.time,
        "needs": _away(comparison.needs_differ(other), whole=True),
        "categories": {name: _away(comparison.category_differs(name, other), whole=True) for name in KEYS},
        "times": {name: _away(comparison.time_differs(name, other)) for name in TIMED if name != "rate"},
        "rate": _away(comparison.time_differs("rate", other)),
        "loss": _away(comparison.loss_differs(other)),
    }


def _away(away: Difference | None, *, whole: bool = False) -> dict[str, Any] | None:
    if away is None:
        return None
    return {
        "difference": int(away.away) if whole else away.away,
        "share": away.share,
        "noise": int(away.noise) if whole else away.noise,
        "real": away.real,
    }


__all__ = ["KEYS", "SCHEMA", "comparison_json"]
