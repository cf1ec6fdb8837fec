"""The terminal: what it can show, and what the dashboard will make of it."""

from __future__ import annotations

import contextlib
import locale
import os
import sys
from typing import Final

from ranktop.tui.doctor.check import Check, Result, passed, skipped, warned
from ranktop.tui.doctor.scene import Scene
from ranktop.tui.theme import MONO, choose, speaks_unicode

_COLUMNS: Final = 80
_LINES: Final = 24
_BARE: Final = ("dumb", "unknown", "")


def look_at_streams(scene: Scene) -> Result:
    """Tell whether input and output are terminals: the dashboard needs both."""
    found = {name: _is_terminal(name) for name in ("stdin", "stdout")}
    piped = [name for name, yes in found.items() if not yes]
    if piped:
        verb = "is" if len(piped) == 1 else "are"
        return skipped(f"{' and '.join(piped)} {verb} no terminal: `ranktop status` prints without one", "", **found)
    return passed("stdin and stdout are terminals", **found)


def _is_terminal(name: str) -> bool:
    stream = getattr(sys, name, None)
    return bool(stream is not None and not stream.closed and stream.isatty())


def look_at_term(scene: Scene) -> Result:
    """Tell the kind of terminal and how many colours it has."""
    term = scene.environ.get("TERM", "")
    count = colors(scene)
    facts = {"term": term or None, "colorterm": scene.environ.get("COLORTERM"), "colors": count}
    if term in _BARE:
        found = f"TERM={term}" if term else "TERM is not set"
        if not _is_terminal("stdout"):
            return skipped(f"{found}; the output is no terminal anyway", **facts)
        return warned(f"{found}: a terminal that cannot place text", "export TERM=xterm-256color", **facts)
    words = {1 << 24: "16 million colours", 256: "256 colours", 16: "16 colours", 1: "no colours"}[count]
    found = f"{term}, {words}"
    if "NO_COLOR" in scene.environ:
        return passed(f"{found}: NO_COLOR is set", **facts)
    if count == 16 and (scene.environ.get("TMUX") or scene.environ.get("STY")):
        advice = (
            "in tmux: set -g default-terminal tmux-256color"
            if scene.environ.get("TMUX")
            else "screen -T screen-256color"
        )
        return warned(f"{found}: the bars' colours are few", advice, **facts)
    return passed(found, **facts)


def colors(scene: Scene) -> int:
    """Return how many colours the dashboard uses here: 2^24, 256, 16, or 1 for none."""
    if choose(None, scene.environ) is MONO:
        return 1
    if scene.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return 1 << 24
    term = scene.environ.get("TERM", "")
    return 256 if "256" in term or term in ("xterm-kitty", "alacritty", "foot", "xterm-ghostty", "wezterm") else 16


def look_at_size(scene: Scene) -> Result:
    """Tell whether the window is large enough for a whole picture."""
    for name in ("__stdout__", "__stderr__", "__stdin__"):
        stream = getattr(sys, name)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            width, height = os.get_terminal_size(stream.fileno())
            return window(width, height)
    return skipped("no terminal to measure", columns=None, lines=None)


def window(width: int, height: int) -> Result:
    """Judge a window of so many columns and lines."""
    facts = {"columns": width, "lines": height}
    if width == 0 or height == 0:
        return warned("the terminal does not tell its size", "stty rows 40 columns 120", **facts)
    if width < _COLUMNS or height < _LINES:
        return warned(f"{width}x{height}: less than 80x24 shows less", "make the window larger", **facts)
    return passed(f"{width}x{height}", **facts)


def look_at_locale(scene: Scene) -> Result:
    """Tell whether the locale is UTF-8, so that the bars can be drawn with half blocks."""
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    facts: dict[str, object] = {name: scene.environ.get(name) for name in names}
    encoding = getattr(sys.__stdout__, "encoding", None) or "ascii"
    facts["encoding"] = encoding
    # What was set, not what Python made of it for itself (PEP 538).
    named = next((f"{name}={scene.environ[name]}" for name in names if scene.environ.get(name)), "no locale is set")
    try:
        locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:
        return warned(f"{named}: not installed on this machine", "export LC_ALL=C.UTF-8", **facts, unicode=False)
    speaks = speaks_unicode(scene.environ, encoding)
    facts["unicode"] = speaks
    if not speaks:
        return warned(f"{named}: bars are drawn with letters, in ASCII", "export LC_ALL=C.UTF-8", **facts)
    if "utf" not in encoding.lower():
        advice = "unset PYTHONIOENCODING" if scene.environ.get("PYTHONIOENCODING") else "export PYTHONUTF8=1"
        return warned(f"{named}, but Python writes {encoding}", advice, **facts)
    return passed(f"{named}, output in {encoding}", **facts)


def look_at_links(scene: Scene) -> Result:
    """Tell what lies between the program and the eyes."""
    environ = scene.environ
    found = [name for name, there in (
        ("tmux", environ.get("TMUX")),
        ("screen", environ.get("STY")),
        ("mosh", _under_mosh()),
        ("ssh", environ.get("SSH_CONNECTION") or environ.get("SSH_TTY")),
    ) if there]  # fmt: skip
    if not found:
        return passed("a local terminal, as far as can be seen", links=found)
    words = ", ".join(found)
    if "mosh" in found:
        return passed(f"{words}: what changes fast may be skipped, colours need mosh 1.4", links=found)
    return passed(f"{words}: the dashboard draws only as fast as the terminal takes it", links=found)


def _under_mosh() -> bool:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return any(parent.name() == "mosh-server" for parent in psutil.Process().parents())
    return False


CHECKS = (
    Check("terminal.streams", "streams", look_at_streams),
    Check("terminal.term", "kind", look_at_term),
    Check("terminal.size", "size", look_at_size),
    Check("terminal.locale", "locale", look_at_locale),
    Check("terminal.links", "connection", look_at_links),
)
