"""Every key of the ranks screen, once: bindings, hints and the help screen are made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Key:
    """One action with the keys that call it."""

    id: str
    keys: str
    """Textual's key names, separated by commas."""
    shown: str
    action: str
    words: str
    group: str
    priority: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The keys one by one, by Textual's names."""
        return tuple(self.keys.split(","))


KEYS: Final = (
    Key("rank-up", "up,k", "↑ k", "move(-1)", "one rank up", "move"),
    Key("rank-down", "down,j", "↓ j", "move(1)", "one rank down", "move"),
    Key("page-up", "pageup", "PgUp", "page(-1)", "one screen up", "move"),
    Key("page-down", "pagedown", "PgDn", "page(1)", "one screen down", "move"),
    Key("first-rank", "home", "Home", "edge(-1)", "to the first rank", "move"),
    Key("last-rank", "end", "End", "edge(1)", "to the last rank", "move"),
    Key("sort", "o", "o", "sort", "sort by the next column", "order"),
    Key("reverse", "O", "O", "reverse", "reverse the order", "order"),
    Key("filter", "slash", "/", "filter", "show ranks by number, node, device or state; ! = out of line", "order"),
    Key("clear", "escape", "Esc", "clear", "drop the filter", "order"),
    Key("next-moment", "m,right_square_bracket", "m ]", "moment(1)", "next moment of the step, peak and now", "look"),
    Key("previous-moment", "left_square_bracket", "[", "moment(-1)", "previous moment", "look"),
    Key("scale", "z", "z", "zoom", "what the full bar is: auto, device, process, tensors", "look"),
    Key("detail", "enter", "Enter", "detail", "detail of the selected rank on or off", "look"),
    Key("detail-page", "tab", "Tab", "side(1)", "next side of the detail: steps, device, card, rules", "look"),
    Key("rules", "e", "e", "rules", "explain: the rule behind each expected number", "look"),
    Key("strategies", "s", "s", "strategies", "this job under every strategy", "screens"),
    Key("device", "d", "d", "device", "all that the selected rank's device says", "screens"),
    Key("freeze", "space", "Space", "freeze", "freeze the picture; again to go on", "look"),
    Key("imbalance", "i", "i", "imbalance", "all ranks at a glance: who is far from its peers, and in what", "screens"),
    Key("diff", "c", "c", "diff", "the selected rank beside a typical peer: what differs", "screens"),
    Key("postmortem", "p", "p", "postmortem", "post-mortem of a rank that ran out of memory or died", "screens"),
    Key("findings-too", "f", "f", "findings", "findings: what is out of line, and why", "screens"),
    Key("findings", "exclamation_mark", "!", "findings", "findings, from every screen", "program"),
    Key("theme", "t", "t", "theme", "next theme: dark, light, the terminal's own colours", "program"),
    Key("help", "question_mark", "?", "help", "this help", "program"),
    Key("suspend", "ctrl+z", "Ctrl+Z", "suspend_process", "back to the shell; fg returns", "program"),
    Key("quit", "q", "q", "quit", "quit", "program"),
    Key("quit-now", "ctrl+c", "Ctrl+C", "quit", "quit, also while typing", "program", priority=True),
)  # fmt: skip

REPLAY_KEYS: Final = (
    Key("replay", "R", "R", "replay('live')", "look back: this job's recording; again: live", "replay"),
    Key("replay-pause", "space", "Space", "replay('pause')", "of a recording: play, pause", "replay"),
    Key("replay-back", "comma", ", .", "replay('step', -1)", "pause, a second back; on", "replay"),
    Key("replay-on", "full_stop", ".", "replay('step', 1)", "pause, a second on", "back"),
    Key("replay-minute-back", "left_parenthesis", "( )", "replay('skip', -60)", "a minute back; on", "replay"),
    Key("replay-minute-on", "right_parenthesis", ")", "replay('skip', 60)", "a minute on", "back"),
    Key("replay-slower", "less_than_sign", "< >", "replay('speed', -1)", "slower; faster: 0.25x to 1024x", "replay"),
    Key("replay-faster", "greater_than_sign", ">", "replay('speed', 1)", "faster", "back"),
    Key("replay-finding-back", "left_curly_bracket", "{ }", "replay('finding', -1)",
        "pause where the last finding began; the next one", "replay"),
    Key("replay-finding", "right_curly_bracket", "}", "replay('finding', 1)", "pause where the next finding begins",
        "back"),
    Key("replay-start", "0", "0 - 9", "replay('share', 0)", "to the beginning, to 10 %, ... to 90 %", "replay"),
    *(Key(f"replay-{tenth}0", str(tenth), str(tenth), f"replay('share', {tenth})", f"to {tenth}0 %", "back")
      for tenth in range(1, 10)),
    Key("replay-end", "dollar_sign", "$", "replay('share', 10)", "to the end", "replay"),
)  # fmt: skip
"""Keys of a recording, on every screen."""

STRATEGY_KEYS: Final = (
    Key("strategy-up", "up,k", "↑ k", "move(-1)", "one strategy up", "move"),
    Key("strategy-down", "down,j", "↓ j", "move(1)", "one strategy down", "move"),
    Key("strategy-page-up", "pageup", "PgUp", "move(-10)", "ten up", "move"),
    Key("strategy-page-down", "pagedown", "PgDn", "move(10)", "ten down", "move"),
    Key("strategy-first", "home", "Home", "move(-100)", "to the job's own strategy", "move"),
    Key("strategy-last", "end", "End", "move(100)", "to the last one", "move"),
    Key("explain", "enter,e", "Enter e", "explain", "explain the selected strategy for this job", "look"),
    Key("what-fits", "g", "g", "fit", "search the plans that fit, for the same global batch", "look"),
    Key("world", "w", "w", "change('world_size', 1)", "twice the ranks (W: half)", "what if"),
    Key("world-back", "W", "W", "change('world_size', -1)", "half the ranks", "back"),
    Key("batch", "b", "b", "change('micro_batch', 1)", "twice the micro-batch (B: half)", "what if"),
    Key("batch-back", "B", "B", "change('micro_batch', -1)", "half the micro-batch", "back"),
    Key("length", "l", "l", "change('sequence_length', 1)", "twice the sequence length (L: half)", "what if"),
    Key("length-back", "L", "L", "change('sequence_length', -1)", "half the sequence length", "back"),
    Key("precision", "p", "p", "change('precision', 1)", "next precision (P: previous)", "what if"),
    Key("precision-back", "P", "P", "change('precision', -1)", "previous precision", "back"),
    Key("checkpointing", "c", "c", "change('checkpointing', 1)", "next checkpointing (C: previous)", "what if"),
    Key("checkpointing-back", "C", "C", "change('checkpointing', -1)", "previous checkpointing", "back"),
    Key("optimizer", "o", "o", "change('optimizer', 1)", "next optimizer (O: previous)", "what if"),
    Key("optimizer-back", "O", "O", "change('optimizer', -1)", "previous optimizer", "back"),
    Key("offload", "f", "f", "change('offload', 1)", "FSDP's states on the CPU or not (ZeRO's have rows)", "what if"),
    Key("offload-back", "F", "F", "change('offload', -1)", "the same, back", "back"),
    Key("as-it-runs", "x", "x", "as_it_runs", "drop all changes: the job as it runs", "what if"),
    Key("ranks", "escape,r,s", "Esc r", "back", "back to the ranks", "screens"),
)  # fmt: skip
"""Keys of the strategies screen, beside the program's."""

EXPLAIN_KEYS: Final = (
    Key("explain-up", "up,k", "↑ k", "scroll(-1)", "one line up", "move"),
    Key("explain-down", "down,j", "↓ j", "scroll(1)", "one line down", "move"),
    Key("explain-page-up", "pageup,b", "PgUp b", "scroll(-15)", "a page up", "move"),
    Key("explain-page-down", "pagedown,space", "PgDn Space", "scroll(15)", "a page down", "move"),
    Key("explain-top", "home", "Home", "scroll(-100000)", "to the top", "move"),
    Key("explain-end", "end", "End", "scroll(100000)", "to the end", "move"),
    Key("explain-back", "escape,enter,e", "Esc Enter", "back", "back to the strategies", "screens"),
)  # fmt: skip
"""Keys of a strategy's explanation."""

FIT_KEYS: Final = (
    Key("fit-up", "up,k", "↑ k", "move(-1)", "one plan up", "move"),
    Key("fit-down", "down,j", "↓ j", "move(1)", "one plan down", "move"),
    Key("fit-page-up", "pageup", "PgUp", "move(-10)", "ten up", "move"),
    Key("fit-page-down", "pagedown", "PgDn", "move(10)", "ten down", "move"),
    Key("fit-first", "home", "Home", "move(-1000)", "to the cheapest plan", "move"),
    Key("fit-last", "end", "End", "move(1000)", "to the last one", "move"),
    Key("fit-open", "enter", "Enter", "open", "the lines that ask for the selected plan", "look"),
    Key("fit-form", "tab", "Tab", "form(1)", "the same in another form: JSON, YAML, code", "look"),
    Key("fit-back", "escape,g", "Esc g", "back", "back to the plans, from them to the strategies", "screens"),
)  # fmt: skip
"""Keys of the plans that fit."""

DEVICE_KEYS: Final = (
    Key("device-up", "up,k", "↑ k", "scroll(-1)", "one line up", "move"),
    Key("device-down", "down,j", "↓ j", "scroll(1)", "one line down", "move"),
    Key("device-page-up", "pageup", "PgUp", "scroll(-15)", "a page up", "move"),
    Key("device-page-down", "pagedown", "PgDn", "scroll(15)", "a page down", "move"),
    Key("device-top", "home", "Home", "scroll(-100000)", "to the top", "move"),
    Key("device-end", "end", "End", "scroll(100000)", "to the end", "move"),
    Key("device-previous", "left,p", "← p", "rank(-1)", "the previous rank's device", "move"),
    Key("device-next", "right,n", "→ n", "rank(1)", "the next rank's device", "move"),
    Key("device-freeze", "space", "Space", "freeze", "freeze the picture; again to go on", "look"),
    Key("device-findings", "f", "f", "findings", "findings: what is out of line, and why", "screens"),
    Key("device-back", "escape,d,r", "Esc d r", "back", "back to the ranks", "screens"),
)  # fmt: skip
"""Keys of the device screen."""

FINDINGS_KEYS: Final = (
    Key("finding-up", "up,k", "↑ k", "move(-1)", "one finding up", "move"),
    Key("finding-down", "down,j", "↓ j", "move(1)", "one finding down", "move"),
    Key("finding-page-up", "pageup", "PgUp", "move(-10)", "ten up", "move"),
    Key("finding-page-down", "pagedown", "PgDn", "move(10)", "ten down", "move"),
    Key("finding-first", "home", "Home", "move(-100000)", "to the gravest", "move"),
    Key("finding-last", "end", "End", "move(100000)", "to the last one", "move"),
    Key("finding-open", "enter,right", "Enter →", "open", "the evidence behind the selected finding", "look"),
    Key("finding-freeze", "space", "Space", "freeze", "freeze the picture; again to go on", "look"),
    Key("finding-rank", "r", "r", "rank", "to its rank on the ranks screen", "screens"),
    Key("finding-imbalance", "i", "i", "imbalance", "all ranks at a glance", "screens"),
    Key("finding-back", "escape,f,left", "Esc f", "back", "back", "screens"),
)  # fmt: skip
"""Keys of the findings screen."""

EVIDENCE_KEYS: Final = (
    Key("evidence-up", "up,k", "↑ k", "scroll(-1)", "one line up", "move"),
    Key("evidence-down", "down,j", "↓ j", "scroll(1)", "one line down", "move"),
    Key("evidence-page-up", "pageup", "PgUp", "scroll(-15)", "a page up", "move"),
    Key("evidence-page-down", "pagedown", "PgDn", "scroll(15)", "a page down", "move"),
    Key("evidence-top", "home", "Home", "scroll(-100000)", "to the top", "move"),
    Key("evidence-end", "end", "End", "scroll(100000)", "to the end", "move"),
    Key("evidence-previous", "left", "←", "finding(-1)", "the finding before", "move"),
    Key("evidence-next", "right,n", "→ n", "finding(1)", "the next finding", "move"),
    Key("evidence-rank", "tab", "Tab", "turn(1)", "the next of its ranks, for the keys below", "look"),
    Key("evidence-freeze", "space", "Space", "freeze", "freeze the picture; again to go on", "look"),
    Key("evidence-ranks", "enter,r", "Enter r", "ranks", "to the chosen rank on the ranks screen", "screens"),
    Key("evidence-diff", "c", "c", "diff", "the chosen rank beside a typical peer: what differs", "screens"),
    Key("evidence-postmortem", "p", "p", "postmortem", "post-mortem of the chosen rank, if it died", "screens"),
    Key("evidence-device", "d", "d", "device", "all that the chosen rank's device says", "screens"),
    Key("evidence-imbalance", "i", "i", "imbalance", "all ranks at a glance", "screens"),
    Key("evidence-back", "escape,f", "Esc f", "back", "back to the findings", "screens"),
)  # fmt: skip
"""Keys of one finding's evidence."""

IMBALANCE_KEYS: Final = (
    Key("grid-up", "up,k", "↑ k", "move(-1, 0)", "one row up", "move"),
    Key("grid-down", "down,j", "↓ j", "move(1, 0)", "one row down", "move"),
    Key("grid-left", "left,h", "← h", "move(0, -1)", "one rank left", "move"),
    Key("grid-right", "right,l", "→ l", "move(0, 1)", "one rank right", "move"),
    Key("grid-page-up", "pageup", "PgUp", "move(-8, 0)", "eight rows up", "move"),
    Key("grid-page-down", "pagedown", "PgDn", "move(8, 0)", "eight rows down", "move"),
    Key("grid-first", "home", "Home", "edge(-1)", "to the first rank", "move"),
    Key("grid-last", "end", "End", "edge(1)", "to the last rank", "move"),
    Key("grid-next", "n", "n N", "ringed(1)", "to the next rank with a finding (N: previous)", "move"),
    Key("grid-previous", "N", "N", "ringed(-1)", "to the previous rank with a finding", "back"),
    Key("grid-metric", "m,right_square_bracket", "m ]", "metric(1)", "next metric", "look"),
    Key("grid-metric-back", "left_square_bracket", "[", "metric(-1)", "previous metric", "look"),
    Key("grid-axes", "x", "x", "axes", "nodes and their ranks, or the axes of the job's mesh", "look"),
    Key("grid-zoom", "enter", "Enter", "zoom", "the ranks of this row with their values; again: to the rank", "look"),
    Key("grid-freeze", "space", "Space", "freeze", "freeze the picture; again to go on", "look"),
    Key("grid-ranks", "r", "r", "ranks", "to the selected rank on the ranks screen", "screens"),
    Key("grid-diff", "c", "c", "diff", "the selected rank beside a typical peer: what differs", "screens"),
    Key("grid-device", "d", "d", "device", "all that the selected rank's device says", "screens"),
    Key("grid-postmortem", "p", "p", "postmortem", "post-mortem of the selected rank, if it died", "screens"),
    Key("grid-findings", "f", "f", "findings", "findings: what is out of line, and why", "screens"),
    Key("grid-back", "escape,i", "Esc i", "back", "out of a row, then back", "screens"),
)  # fmt: skip
"""Keys of the grid of all ranks."""

DIFF_KEYS: Final = (
    Key("diff-up", "up,k", "↑ k", "scroll(-1)", "one line up", "move"),
    Key("diff-down", "down,j", "↓ j", "scroll(1)", "one line down", "move"),
    Key("diff-page-up", "pageup", "PgUp", "scroll(-15)", "a page up", "move"),
    Key("diff-page-down", "pagedown", "PgDn", "scroll(15)", "a page down", "move"),
    Key("diff-top", "home", "Home", "scroll(-100000)", "to the top", "move"),
    Key("diff-end", "end", "End", "scroll(100000)", "to the end", "move"),
    Key("diff-next", "n,right", "→ n", "partner(1)", "the next rank beside it", "look"),
    Key("diff-previous", "N,left", "← N", "partner(-1)", "the previous rank beside it", "look"),
    Key("diff-swap", "tab", "Tab", "swap", "swap the two ranks", "look"),
    Key("diff-typical", "o", "o", "typical", "beside the most typical of its peers again", "look"),
    Key("diff-freeze", "space", "Space", "freeze", "freeze the picture; again to go on", "look"),
    Key("diff-postmortem", "p", "p", "postmortem", "post-mortem of the left rank, if it died", "screens"),
    Key("diff-findings", "f", "f", "findings", "findings: what is out of line, and why", "screens"),
    Key("diff-ranks", "r", "r", "ranks", "to the rank on the ranks screen", "screens"),
    Key("diff-back", "escape,c", "Esc c", "back", "back", "screens"),
)  # fmt: skip
"""Keys of two ranks side by side."""

POSTMORTEM_KEYS: Final = (
    Key("postmortem-up", "up,k", "↑ k", "scroll(-1)", "one line up", "move"),
    Key("postmortem-down", "down,j", "↓ j", "scroll(1)", "one line down", "move"),
    Key("postmortem-page-up", "pageup", "PgUp", "scroll(-15)", "a page up", "move"),
    Key("postmortem-page-down", "pagedown", "PgDn", "scroll(15)", "a page down", "move"),
    Key("postmortem-top", "home", "Home", "scroll(-100000)", "to the top", "move"),
    Key("postmortem-end", "end", "End", "scroll(100000)", "to the end", "move"),
    Key("postmortem-next", "n,right", "→ n", "death(1)", "the next rank that died", "look"),
    Key("postmortem-previous", "left", "←", "death(-1)", "the previous rank that died", "look"),
    Key("postmortem-freeze", "space", "Space", "freeze", "freeze the picture; again to go on", "look"),
    Key("postmortem-diff", "c", "c", "diff", "the rank beside a typical peer: what differs", "screens"),
    Key("postmortem-findings", "f", "f", "findings", "findings: what is out of line, and why", "screens"),
    Key("postmortem-ranks", "r", "r", "ranks", "to the rank on the ranks screen", "screens"),
    Key("postmortem-back", "escape,p", "Esc p", "back", "back", "screens"),
)  # fmt: skip
"""Keys of a post-mortem."""

GROUPS: Final = {
    "move": "Move", "order": "Order and filter", "look": "Look", "what if": "What if", "screens": "Screens",
    "program": "Program", "replay": "Look back",
}  # fmt: skip
"""Groups that the help shows, with their titles."""


PROGRAM: Final = tuple(key for key in KEYS if key.group == "program")
"""Keys of every screen."""

SCREENS: Final = {
    "ranks": KEYS, "strategies": STRATEGY_KEYS, "explanation": EXPLAIN_KEYS, "fit": FIT_KEYS, "device": DEVICE_KEYS,
    "findings": FINDINGS_KEYS, "evidence": EVIDENCE_KEYS, "imbalance": IMBALANCE_KEYS, "diff": DIFF_KEYS,
    "post-mortem": POSTMORTEM_KEYS,
}  # fmt: skip
"""Screen -> its own keys."""

BY_ID: Final = {key.id: key for keys in (*SCREENS.values(), REPLAY_KEYS) for key in keys}


def shown_keys(keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """Return a screen's keys with those of the replay and of the program behind them."""
    return (*(key for key in keys if key.group != "program"), *REPLAY_KEYS, *PROGRAM)
