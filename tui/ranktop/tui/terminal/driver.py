"""Textual's driver for terminals, which sends only what the kind of terminal knows and notices when it is gone.

Kitty's keyboard protocol, reports of focus and of sizes within the input are left out: nothing here needs them, and
each is one more state to be left behind after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import sys
import termios
import threading
from codecs import getincrementaldecoder
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from textual import events
from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.constants import ESCAPE_DELAY
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size

from ranktop.tui.terminal.kind import Kind, kind_of
from ranktop.tui.terminal.outlet import Outlet

if TYPE_CHECKING:
    from textual.app import App

LAST_WORDS: Final = 0.5
"""Seconds that the terminal may take to read what is written last."""

ESCAPED: Final = ESCAPE_DELAY + 0.01
"""Seconds after which an escape character that nothing followed is the key."""

ASKS_ABOUT_SYNC: Final = "\x1b[?2026$p"

DEFAULT_SIZE: Final = (80, 24)


def enter(kind: Kind) -> str:
    """Return what is sent first: another screen, no cursor, no wrapping."""
    return "".join((
        "\x1b[?1049h" if kind.alternate else "\x1b[2J",
        "\x1b[?25l" if kind.hides_cursor else "",
        "\x1b[?2004h" if kind.pastes else "",
        "\x1b[?7l",
        ASKS_ABOUT_SYNC if kind.modern else "",
    ))  # fmt: skip


def leave(kind: Kind) -> str:
    """Return what puts the terminal back, whatever was sent before it."""
    return "".join((
        "\x1b[m\x1b[?7h",
        "\x1b[?2004l" if kind.pastes else "",
        # Wiped first: mosh, and GNU screen by default, have no other screen to come back from.
        "\x1b[2J\x1b[H",
        "\x1b[?1049l" if kind.alternate else "",
        "\x1b[?25h" if kind.hides_cursor else "",
    ))  # fmt: skip


class TerminalDriver(LinuxDriver):
    """Input, output, size and modes of the terminal that standard output is."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=False, size=size)
        self.kind = kind_of()
        self.output = (sys.__stdout__ or sys.stdout).fileno()
        self.active = False
        """Between entering and leaving the dashboard's screen."""
        self._outlet: Outlet | None = None
        self._wake: tuple[int, int] | None = None
        """A pipe by which the thread that reads the keys is told to end."""
        self._told = threading.Lock()
        self._loop_of_app = asyncio.get_running_loop()

    def write(self, data: str) -> None:
        """Queue text for the terminal; never waits."""
        if self._outlet is not None:
            self._outlet.write(data.encode("utf-8", "replace"))

    def _get_terminal_size(self) -> tuple[int, int]:
        # Not by COLUMNS and LINES: those stay as they are when the window does not.
        for descriptor in (self.output, self.fileno):
            with contextlib.suppress(OSError):
                width, height = os.get_terminal_size(descriptor)
                if width > 0 and height > 0:
                    return width, height
        return DEFAULT_SIZE

    def start_application_mode(self) -> None:
        """Take the terminal over; in the background, stop until the program is brought to the front."""
        if self.active or not self._in_front():
            return
        self.active = True
        self._outlet = Outlet(self.output, self._lost)
        self._outlet.start()
        signal.signal(signal.SIGWINCH, self._on_size)
        self._raw()
        self.write(enter(self.kind))
        self.exit_event.clear()
        self._wake = os.pipe()
        self._key_thread = threading.Thread(target=self._run_input_thread, name="textual-input", daemon=True)
        self._key_thread.start()
        self._on_size()
        if self._must_signal_resume:
            self._must_signal_resume = False
            self._post(self.SignalResume())

    def stop_application_mode(self) -> None:
        """Give the terminal back as it was."""
        if not self.active:
            return
        self.active = False
        self.disable_input()
        self.write(leave(self.kind))
        if self._outlet is not None:
            self._outlet.stop(LAST_WORDS)
            self._outlet = None
        if self.attrs_before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)

    def disable_input(self) -> None:
        """Read no more keys, and drop those that were typed ahead."""
        if self.exit_event.is_set():
            return
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        self.exit_event.set()
        wake, self._wake = self._wake, None
        if wake is not None:
            os.close(wake[1])
        if self._key_thread is not None and self._key_thread is not threading.current_thread():
            self._key_thread.join(LAST_WORDS)
        with contextlib.suppress(termios.error):
            termios.tcflush(self.fileno, termios.TCIFLUSH)

    def close(self) -> None:
        """Nothing is left to close: the outlet ends with the application mode."""

    def _sigcont_application(self, *_: object) -> None:
        """Come back. A program that was stopped from outside still has its screen, but somebody wrote over it."""
        if not self._auto_restart:
            return
        if self.active:
            if self._in_front():
                self._raw(keep=False)
                self.write(enter(self.kind))
                self._on_size()
                self._post(Driver.SignalResume())
        else:
            self.resume_application_mode()

    def _in_front(self) -> bool:
        """Tell whether the terminal is ours to change; in the background this stops the process, as a shell expects."""
        if not os.isatty(self.fileno):
            return True

        def stop_again(number: int, frame: FrameType | None) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)

        for number in (signal.SIGTTOU, signal.SIGTTIN):
            signal.signal(number, stop_again)
        try:
            termios.tcsetattr(self.fileno, termios.TCSANOW, termios.tcgetattr(self.fileno))
        except termios.error:
            return False
        finally:
            for number in (signal.SIGTTOU, signal.SIGTTIN):
                signal.signal(number, signal.SIG_DFL)
        return True

    def _raw(self, *, keep: bool = True) -> None:
        """Have keys one by one and output as it is; ``keep`` notes how the terminal was before."""
        with contextlib.suppress(termios.error):
            attributes = termios.tcgetattr(self.fileno)
            if keep:
                self.attrs_before = [*attributes[:6], list(attributes[6])]
            attributes[0] = self._patch_iflag(attributes[0])
            attributes[1] &= ~termios.OPOST  # a line feed goes straight down, one byte instead of eight
            attributes[3] = self._patch_lflag(attributes[3])
            attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self.fileno, termios.TCSANOW, attributes)

    def _on_size(self, *_: object) -> None:
        # One signal may interrupt the handler of another: read here, an old size could be told after a newer one.
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop_of_app.call_soon_threadsafe(self._tell_size)

    def _tell_size(self) -> None:
        size = Size(*self._get_terminal_size())
        self._post(events.Resize(size, size))

    def _post(self, message: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            asyncio.run_coroutine_threadsafe(self._app._post_message(message), self._loop_of_app)

    def _lost(self) -> None:
        """Have the program end: nobody sees it any more. Called on any thread."""
        if self._told.acquire(blocking=False):
            end = getattr(self._app, "terminal_lost", self._app.exit)
            with contextlib.suppress(RuntimeError):
                self._loop_of_app.call_soon_threadsafe(end)

    def run_input_thread(self) -> None:
        """Turn what is typed into events until told to stop, or until the terminal is gone."""
        wake = self._wake
        if wake is None:
            return
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        waits: float | None = None
        with selectors.SelectSelector() as selector, open(wake[0], "rb"):
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(wake[0], selectors.EVENT_READ)
            while not self.exit_event.is_set():
                # No time-out while nothing is half read: ten wake-ups a second were a tenth of the CPU of it all.
                ready = {key.fd for key, _ in selector.select(waits)}
                if self.exit_event.is_set():
                    break
                waits = None
                if self.fileno in ready:
                    try:
                        data = os.read(self.fileno, 4096)
                    except (InterruptedError, BlockingIOError):
                        continue
                    except OSError:
                        data = b""
                    if not data:
                        # The end of the input: it would be ready again and again, for ever.
                        self._lost()
                        return
                    waits = ESCAPED
                    for event in parser.feed(decode(data)):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
        with contextlib.suppress(EOFError, ParseError):
            for _ in parser.feed(""):
                pass
