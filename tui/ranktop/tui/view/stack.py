"""Python stacks and tracebacks as lines, outermost call first as Python prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap

from ranktop.tui.view.text import Line, Span, cut, duration, fit, length, pad, plain
from ranktop.wire.schema import Call, Stack


def stack_lines(title: str, stack: Stack, width: int) -> list[Line]:
    """Write where a training thread stands, with how long it had waited then."""
    after = f" (taken {duration(stack.waited)} after its last step)" if math.isfinite(stack.waited) else ""
    said = f" {title}{after}"
    lines = [pad([(fit(said, width), "label bold")], width)]
    if not stack.calls:
        reason = plain(stack.reason) or "no call is known"
        return lines + [pad([(f"   {part}", "dim")], width) for part in wrap(reason, max(8, width - 4))]
    return lines + call_lines(stack.calls, width)


def call_lines(calls: Sequence[Call], width: int) -> list[Line]:
    """Write calls as ``file:line  function``, the innermost last and bright."""
    places = [f"{plain(call.file)}:{call.line}" for call in calls]
    first = min(max(map(len, places)), max(12, width // 2)) + 2
    lines: list[Line] = []
    for at, (call, place) in enumerate(zip(calls, places, strict=True)):
        last = at == len(calls) - 1
        shown = place if len(place) < first else "~" + place[-(first - 3) :]
        spans: list[Span] = [
            ("   ", ""), (fit(shown, first), "text bold" if last else "dim"),
            (plain(call.function), "text bold" if last else "text"),
        ]  # fmt: skip
        lines.append(cut(pad(spans, max(width, length(spans))), width)[0])
    return lines
