"""``ranktop export --prometheus``: serve the metrics until told to stop."""

from __future__ import annotations

import errno
import gc
import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ranktop.tui.cli import FAILED, FOUND, INTERRUPTED, USAGE, matching
from ranktop.tui.loopback import is_loopback
from ranktop.wire.codec import clean
from ranktop.wire.endpoints import find_jobs

if TYPE_CHECKING:
    from ranktop.tui.prometheus.follow import Follower

LISTEN: Final = "127.0.0.1:9400"
"""What an address looks like; also the default of the setting ``prometheus.listen``."""

INSTALL: Final = "--prometheus needs the package prometheus-client: pip install 'ranktop[prometheus]'"

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""What ends it."""

PATIENCE: Final = 0.8
"""Seconds that the end waits for the connections to be let go."""


class NoAddress(ValueError):
    """What was given is no address to listen on; the text says what one looks like."""


def address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, ``[IPv6]:PORT``, or ``PORT`` of this machine alone; NoAddress."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host = "127.0.0.1"
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (port.isascii() and port.isdigit() and int(port) < 65536) or (":" in host and f"[{host}]" not in text):
        raise NoAddress(f"--listen takes HOST:PORT, e.g. {LISTEN}, not {clean(text)[:60]!r}")
    return host or "0.0.0.0", int(port)


def export(listen: str, wanted: str | None = None) -> int:
    """Serve the metrics of this machine's jobs; returns the exit code.

    0: SIGTERM; 130: Ctrl-C; 1: it cannot listen there, or ``prometheus-client`` is missing; 2: no address.
    """
    try:
        host, port = address(listen)
    except NoAddress as error:
        return _complain(str(error), USAGE)
    if importlib.util.find_spec("prometheus_client") is None:
        return _complain(INSTALL, FAILED)
    from ranktop.tui.prometheus.follow import Follower
    from ranktop.tui.prometheus.serve import server

    follower = Follower(find_jobs, wanted=wanted)
    try:
        serving = server(host, port, follower)
    except (OSError, UnicodeError) as error:
        return _complain(f"cannot listen on {clean(listen)}: {_why(error)}", FAILED)
    gc.freeze()  # a scrape of many ranks makes as many objects again, which are gone at once
    gc.set_threshold(100_000, 50, 100)
    # Waited for, not handled: a handler that wakes a thread by a lock can find that lock taken by its own thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        _say(host, serving.server_port, wanted=wanted)
        return _until_told(follower, (follower.run, serving.serve_forever))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _until_told(follower: Follower, work: Iterable[Callable[[], None]]) -> int:
    """Work on threads of their own until a signal comes, and let the connections go. The signals are blocked."""
    threads = [threading.Thread(target=each, daemon=True, name="ranktop-export") for each in work]
    for thread in threads:
        thread.start()
    code = INTERRUPTED if signal.sigwait(SIGNALS) == signal.SIGINT else FOUND
    follower.stop()
    threads[0].join(PATIENCE)
    if threads[0].is_alive():  # it hangs on a file system or a lock: nobody waits for it
        sys.stderr.flush()
        os._exit(code)
    return code


def _say(host: str, port: int, *, wanted: str | None) -> None:
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not is_loopback(host):
        print(
            f"ranktop: warning: {shown} can be reached from other machines: whoever reaches it can read the metrics; "
            "there is no password and no encryption",
            file=sys.stderr,
        )
    if wanted is not None and not matching(find_jobs().jobs, wanted):
        print(f"ranktop: no live job {clean(wanted)!r} on this machine yet; waiting for one", file=sys.stderr)
    print(f"ranktop: metrics at http://{shown}/metrics (Ctrl-C ends)", file=sys.stderr, flush=True)


def _why(error: OSError | UnicodeError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    more = "; --listen names another port" if isinstance(error, OSError) and error.errno == errno.EADDRINUSE else ""
    return ((error.strerror if isinstance(error, OSError) else None) or str(error)) + more


def _complain(text: str, code: int) -> int:
    print(f"ranktop: {text}", file=sys.stderr)
    return code
