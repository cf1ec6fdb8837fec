"""``ranktop plan``: every strategy for one run, side by side."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Final

from ranktop.budget.model import BadInput
from ranktop.tui.plan_flags import PlanFlags, parser, read
from ranktop.tui.stdout import colour, columns, put

DONE: Final = 0
USAGE: Final = 2

TEXT: Final = "What a training run needs per GPU under every strategy: memory by category, traffic, and what fits."

EXAMPLES: Final = """\
examples:
  ranktop plan --model llama-3-8b --world-size 8 --gpu h100
  ranktop plan --model ./config.json --world-size 64 --deepspeed ds.json --strategy zero2,zero3 --json
  ranktop plan --params 7.5e9 --world-size 64
"""


def plan(arguments: Sequence[str]) -> int:
    """Run the command with the arguments behind its name and return the exit code: 0, or 2 for bad usage."""
    collects = gc.isenabled()
    # Plans hold no cycles, and the process ends with the answer: looking for garbage would be a twentieth of its time.
    gc.disable()
    try:
        flags = read(PlanFlags, parser(PlanFlags, "plan", TEXT, EXAMPLES), arguments)
        text = _text(flags)
    except BadInput as error:
        complain(str(error))
        return USAGE
    finally:
        if collects:
            gc.enable()
    put(text)
    return DONE


def _text(flags: PlanFlags) -> str:
    """Return what is printed, whole: a complaint leaves nothing half said."""
    from ranktop.budget.planning.request import request

    asked = request(flags)
    if flags.fit_plan is not None and not flags.fit:
        raise BadInput("--fit-plan is for --fit; give that too, or leave it out")
    if flags.fit:
        from ranktop.budget.planning.fitting import shown_number, text

        number = shown_number(flags.fit_plan)
        return text(asked, as_json=flags.json, width=columns(), number=number, colour=colour())
    from ranktop.budget.planning.answer import answer

    found = answer(asked)
    if flags.json:
        from ranktop.budget.planning.as_json import answer_json
        from ranktop.budget.planning.json_text import json_text

        return json_text(answer_json(found)) + "\n"
    from ranktop.budget.planning.page import page

    return page(found, columns(), colour())


def complain(text: str) -> None:
    """Print one line on standard error; what a user typed cannot break out of it."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    encoding = sys.stderr.encoding or "utf-8"
    print(f"ranktop: {line}".encode(encoding, "replace").decode(encoding), file=sys.stderr)
