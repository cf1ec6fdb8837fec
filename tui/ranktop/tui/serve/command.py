"""``ranktop serve``: the dashboard in a browser of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import socket
from typing import Final

from ranktop.tui.cli import FAILED, INTERRUPTED, USAGE, fail
from ranktop.tui.loopback import is_loopback
from ranktop.wire.codec import clean

LISTEN: Final = "127.0.0.1:8000"
DASHBOARDS: Final = ("watch", "replay", "simulate")
"""Commands that open one."""
INSTALL: Final = "`ranktop serve` needs the package textual-serve: pip install 'ranktop[serve]'"

_ADDRESS: Final = re.compile(r"(?:(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):)?([0-9]{1,5})")


def serve(words: list[str], listen: str) -> int:
    """Serve ``ranktop WORDS`` until Ctrl-C and return the exit code."""
    host, port = address(listen)
    command = next((word for word in words if not word.startswith("-")), None)
    if command is not None and words[0] == command and command not in DASHBOARDS:
        fail(f"serve opens a dashboard: nothing, or {', '.join(DASHBOARDS)}, not {clean(command)[:40]!r}", USAGE)
    try:
        from ranktop.tui.serve.server import Server
    except ImportError:
        fail(INSTALL, FAILED)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        # The standard library adds the address once more to what the system says.
        why = os.strerror(error.errno) if error.errno else str(error)
        more = "; --listen names another port" if error.errno == errno.EADDRINUSE else ""
        fail(f"cannot listen on {clean(listen)[:60]}: {why}{more}", FAILED)
    shown = f"[{host}]" if ":" in host else host
    port = listening.getsockname()[1]
    said: list[str] = []

    def tell(token: str) -> None:
        lead = "another browser: " if said else "open in a browser (Ctrl-C ends it): "
        said.append(token)
        with contextlib.suppress(OSError):
            print(f"{lead}http://{shown}:{port}/?token={token}", flush=True)

    with listening:
        number = asyncio.run(Server(words, tell).run(listening))
    return INTERRUPTED if number == signal.SIGINT else 128 + number if number == signal.SIGHUP else 0


def address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT`` or ``PORT``; exits with one line for anything but a place that only this machine reaches."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found[2]) > 65535:
        fail(f"--listen takes HOST:PORT, e.g. {LISTEN}, not {clean(text)[:60]!r}", USAGE)
    host, port = (found[1] or "127.0.0.1").strip("[]"), int(found[2])
    if not is_loopback(host):
        there = clean(socket.gethostname())
        way = f"ssh -L {port or 8000}:127.0.0.1:{port or 8000} {there}"
        fail(
            f"--listen {clean(text)[:60]}: other machines could reach that; listen on 127.0.0.1, and there: {way}",
            USAGE,
        )
    return ("127.0.0.1" if host == "localhost" else host), port
