"""``ranktop explain STRATEGY``: what one strategy does for one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ranktop.budget.model import BadInput, NoRule
from ranktop.budget.planning.flags import Flags, meant, spelled
from ranktop.budget.run import STRATEGIES
from ranktop.tui.plan import DONE, USAGE, complain
from ranktop.tui.plan_flags import parser, read
from ranktop.tui.stdout import colour, columns, put

LONGEST: Final = 120
"""Cells beyond which a line of text is hard to read."""

TEXT: Final = """\
What a strategy does for this run: who holds what, by which formula, what is
sent, what changes it, and what is often got wrong about it. The flags are those
of ranktop plan."""

EXAMPLES: Final = f"""\
strategies:
  {", ".join(STRATEGIES[:10])},
  {", ".join(STRATEGIES[10:])}

examples:
  ranktop explain zero2 --model llama-3-8b --world-size 8 --gpu h100
  ranktop explain pp-1f1b --model ./config.json --world-size 16 --micro-batch 2 | less
"""


def explain(arguments: Sequence[str]) -> int:
    """Run the command with the arguments behind its name and return the exit code: 0, or 2 for bad usage."""
    reader = parser(Flags, "explain", TEXT, EXAMPLES)
    reader.usage = "ranktop explain STRATEGY --model NAME|PATH [flags]"
    try:
        rest, strategy = _strategy(list(arguments))
        if {"-h", "--help"} & set(rest):
            reader.parse_args(["--help"])
        flags = read(Flags, reader, rest)
        text = _text(flags, _known(strategy if strategy is not None else flags.strategy))
    except (BadInput, NoRule) as error:
        complain(str(error))
        return USAGE
    put(text)
    return DONE


def _strategy(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return the other arguments and the strategy, which stands first or anywhere that no flag's value does."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[1:], arguments[0]
    from ranktop.budget.planning.request import strategy_named

    for at, argument in enumerate(arguments):
        before = arguments[at - 1] if at else ""
        if strategy_named(argument) in STRATEGIES and before != spelled("strategy"):
            return arguments[:at] + arguments[at + 1 :], argument
    return arguments, None


def _known(name: str | None) -> str:
    """Return the one strategy that is meant. Raises BadInput with those there are."""
    from ranktop.budget.planning.request import strategy_named

    word = strategy_named(name or "")
    if not word:
        raise BadInput(f"say which strategy, as in ranktop explain zero2; there are {', '.join(STRATEGIES)}")
    if word not in STRATEGIES:
        raise BadInput(f"no strategy {name!r}{meant(word, STRATEGIES)}; there are {', '.join(STRATEGIES)}")
    return word


def _text(flags: Flags, strategy: str) -> str:
    """Return what is printed, whole. Raises BadInput, and NoRule with the reason why the strategy cannot run this."""
    from ranktop.budget.explain import explain as explained
    from ranktop.budget.fit import speeds
    from ranktop.budget.planning.answer import run_for
    from ranktop.budget.planning.notes import device_line, model_line, run_line
    from ranktop.budget.planning.request import request
    from ranktop.tui.theme import speaks_unicode
    from ranktop.tui.view.explain import explain_lines
    from ranktop.tui.view.explain_text import Paper
    from ranktop.tui.view.text import ASCII, UNICODE

    asked = request(replace(flags, strategy=strategy))
    run = run_for(asked, strategy)
    at = speeds(run.link, asked.device, several_nodes=run.world_size > run.gpus_per_node)
    found = explained(run, strategy, at=at)
    if found.projection.refused:
        raise NoRule(f"{strategy} is not possible here: {found.projection.refused}")
    width, colours = min(columns(), LONGEST), colour()
    glyphs = UNICODE if speaks_unicode() else ASCII
    lines = explain_lines(found, width, glyphs, not colours, (*asked.assumed, *asked.notes))
    paper = Paper(width, glyphs, not colours)
    head = [line for text in (model_line(asked), f"{run_line(asked)}; {device_line(asked)}")
            for line in paper.told(text, "dim")]  # fmt: skip
    if not colours:
        return "".join(f"{''.join(text for text, _ in line).rstrip()}\n" for line in (*head, *lines))
    from ranktop.tui.printing import printed

    return "".join(f"{printed(line)}\n" for line in (*head, *lines))
