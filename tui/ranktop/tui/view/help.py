"""The help text: how to read a row, and every key."""

from __future__ import annotations

from textwrap import wrap

from ranktop.budget.terms import CATEGORIES
from ranktop.tui import keymap
from ranktop.tui.keys import (
    DEVICE_KEYS,
    DIFF_KEYS,
    EVIDENCE_KEYS,
    FINDINGS_KEYS,
    FIT_KEYS,
    GROUPS,
    IMBALANCE_KEYS,
    KEYS,
    POSTMORTEM_KEYS,
    Key,
    shown_keys,
)
from ranktop.tui.view.bar import LETTERS
from ranktop.tui.view.device_screen import HELP as DEVICE_HELP
from ranktop.tui.view.diff import HELP as DIFF_HELP
from ranktop.tui.view.evidence import HELP as EVIDENCE_HELP
from ranktop.tui.view.findings_list import HELP as FINDINGS_HELP
from ranktop.tui.view.fit import HELP
from ranktop.tui.view.hints import in_letters
from ranktop.tui.view.imbalance import HELP as IMBALANCE_HELP
from ranktop.tui.view.options import Options
from ranktop.tui.view.postmortem import HELP as POSTMORTEM_HELP
from ranktop.tui.view.status import SHORT
from ranktop.tui.view.text import Line, Span, pad

_KEY_CELLS = 10


def help_lines(options: Options, keys: tuple[Key, ...], width: int) -> list[Line]:
    """Return the help for a screen with these keys as lines of ``width`` cells."""
    lines: list[Line] = [pad([(" ranktop ", "panel"), (" help", "panel bold")], width, "panel"), pad((), width)]
    for text in _texts(options, keys):
        lines += [pad([(f" {part}", "text")], width) for part in wrap(text, max(10, width - 2))]
    spans: list[Span] = [(" ", "")]
    for name in CATEGORIES:
        letter = LETTERS.get(name)
        if letter is not None:
            spans += [
                (f"{letter if options.letters else options.glyphs.swatch} ", f"key:{letter}"),
                (f"{SHORT.get(name, name)} ", "dim"),
            ]
    lines.append(pad(spans, width))
    # A recording is paused, which is listed with the keys of the replay.
    rows = [row for row in keymap.listed(shown_keys(keys)) if row[0].action != "freeze" or not options.replaying]
    for group, title in GROUPS.items():
        if not any(key.group == group for key, _, _ in rows):
            continue
        lines += [pad((), width), pad([(f" {title}", "label bold")], width)]
        for key, shown, words in rows:
            if key.group == group:
                shown = in_letters(shown) if options.glyphs.ascii else shown
                shown += " " * (len(shown) >= _KEY_CELLS)
                lines.append(pad([(f"  {shown:<{_KEY_CELLS}}", "key"), (words, "text")], width))
    lines += [pad((), width), pad([(f" Esc or {keymap.of('help')} goes back", "dim")], width)]
    return lines


def _texts(options: Options, keys: tuple[Key, ...]) -> list[str]:
    texts = {
        FIT_KEYS: HELP, DEVICE_KEYS: DEVICE_HELP, FINDINGS_KEYS: FINDINGS_HELP, EVIDENCE_KEYS: EVIDENCE_HELP,
        IMBALANCE_KEYS: IMBALANCE_HELP, DIFF_KEYS: DIFF_HELP, POSTMORTEM_KEYS: POSTMORTEM_HELP,
    }  # fmt: skip
    if keys in texts:
        return list(texts[keys])
    return _reading(options) if keys is KEYS else _strategies(options)


def _reading(options: Options) -> list[str]:
    if options.letters:
        bar = (
            "A row is one rank. Its bar has a letter per category: a capital where the expected memory agrees, "
            ": where only expected memory is, a dot where it is free."
        )
    else:
        bar = (
            "A row is one rank. Its bar is two bars: the upper half is the expected memory, the lower half the "
            "measured; one colour a category, one scale for all."
        )
    glyphs = options.glyphs
    states = (
        (glyphs.critical, "critical finding"), (glyphs.alert, "look here"), (glyphs.note, "a note"),
        (glyphs.failed, "failed, killed or GPU lost"), (glyphs.ended, "ended"), (glyphs.silent, "silent or no answer"),
        (glyphs.starting, "starting"), (glyphs.missing, "not seen"),
    )  # fmt: skip
    return [
        bar,
        f"{glyphs.delta} compares two sides: 0 is within the rule's error, {glyphs.about} is less than the unit shows.",
        f"Values older than 3 intervals are dim, and the state says how old: {glyphs.silent} silent 12 s.",
        "States: " + ", ".join(f"{mark} {word}" for mark, word in states) + ".",
    ]


def _strategies(options: Options) -> list[str]:
    glyphs = options.glyphs
    return [
        "A row is what the rank that needs the most would need under that strategy, at its peak. The job's own "
        "strategy comes first, and under it what its fullest rank has measured, without the allocator's cache: nothing "
        "expects it, so it is named beside. On CPUs the ranks of a node share its RAM.",
        "The other rows are computed for this job: its model, its batch, and what was measured of its activations and "
        "of its runtime. room: what is left of the device, or missing; sent: bytes that one GPU sends per step; host: "
        f"memory beside the device; max b: the largest micro-batch that fits; {glyphs.dash} is unknown.",
        "The keys below change what is asked; changed facts stand out in the second line.",
    ]
