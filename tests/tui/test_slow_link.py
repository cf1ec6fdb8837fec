"""The dashboard at the far end of a slow link: the right picture, and never a queue of old ones.

Times are the benchmark's affair (``tests/bench/bench_link.py``); here it is what does not depend on the machine.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slow_link import ThrottledPty

COMMAND = [sys.executable, str(Path(__file__).with_name("link_dashboard.py")), "64", "0"]
SIZE = (120, 40)
HELD = "j" * 30


def whole(terminals: Sequence[ThrottledPty], wanted: str) -> None:
    """Wait for a text in each, and then until nothing more comes to any."""
    for terminal in terminals:
        terminal.until(lambda terminal=terminal: wanted in terminal.text(), 60)  # type: ignore[misc]
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < 1.0:
        if (now := sum(terminal.emulator.bytes for terminal in terminals)) != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.02)


def test_the_picture_is_right_whatever_the_terminal_answers() -> None:
    """10 KB/s and 0.2 s there and back, 64 KiB of buffers; answers once, never, twice, or always the same."""
    with contextlib.ExitStack() as stack:
        slow = {manner: ThrottledPty(COMMAND, SIZE, manner=manner) for manner in ("once", "never", "twice", "same")}
        fast = ThrottledPty(COMMAND, SIZE, rate=1e9, delay=0.0)
        every = (fast, *slow.values())
        for terminal in every:
            stack.callback(terminal.close)
        whole(every, "llama8b")
        pieces = slow["once"].emulator.questions
        for terminal in every:
            terminal.press(HELD)
        whole(every, "▶   30")
        held = slow["once"].emulator.questions - pieces
        for terminal in every:
            terminal.press("ii?")  # to another screen, back, and on while that is still on its way
        whole(every, "Order and filter")
        for terminal in every:
            terminal.press("?")
        whole(every, "▶   30")
        picture = fast.cells()
        for manner, terminal in slow.items():
            assert terminal.cells() == picture, manner
        # Thirty keys at once are two or three pictures, each a piece or two with a question before it.
        assert held <= 12
        # What waited was a moment's worth, although there was room for six seconds.
        for manner in ("once", "twice", "same"):
            assert slow[manner].link.most < 8_000, manner
        assert slow["never"].link.most < 16_000
