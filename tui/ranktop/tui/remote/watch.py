"""``ranktop watch TARGET``: the dashboard on a job of another machine."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from ranktop.tui.cli import FAILED, NONE, USAGE, fail, matching
from ranktop.tui.remote.connection import Connection
from ranktop.tui.remote.far import FarError, Listing
from ranktop.tui.remote.passing import pass_on, words
from ranktop.tui.remote.place import Place
from ranktop.tui.remote.ssh import Ssh, SshError
from ranktop.tui.remote.tunnel import Tunnel
from ranktop.tui.terminal.kind import can_draw
from ranktop.wire.codec import clean
from ranktop.wire.endpoints import JobEntry


def watch(ssh: Ssh, wanted: str | None, *, theme: str | None = None, ascii: bool | None = None) -> int:
    """Log in, choose the job and open the dashboard; returns the exit code.

    All that a person is asked (password, passphrase, host key) is asked before the dashboard opens, once.
    """
    if not can_draw():
        if sys.stdin.isatty() and sys.stdout.isatty():
            return pass_on(ssh, words("status", job=wanted))  # one look, as of a job of this machine
        fail(f"the dashboard needs a terminal; `ranktop status {ssh.target.words} --json` is for scripts", USAGE)
    place = connection = None
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Until the dashboard takes them: ssh may stand at a prompt, and is ended in order.
        signal.signal(number, _end)
    try:
        ssh.check()
        place = Place()
        connection = Connection(ssh, place, person=True)
        connection.wait_for_shell(None)
        listing = connection.jobs()
        entry = choose(listing, wanted, ssh) if wanted is not None else None
        return _show(ssh, place, connection, listing, entry, theme, ascii)
    except (FarError, SshError) as error:
        fail(clean(str(error)), FAILED)
    finally:
        if connection is not None:
            connection.close()
        if place is not None:
            place.close()


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _show(
    ssh: Ssh, place: Place, connection: Connection, listing: Listing, entry: JobEntry | None,
    theme: str | None, ascii: bool | None,
) -> int:  # fmt: skip
    # Loaded while nobody waits for a password any more, and only where it is needed.
    from ranktop.tui.app import run
    from ranktop.tui.remote.source import RemoteSource

    tunnel = Tunnel(ssh, place, connection, listing)

    def follow(job: JobEntry) -> RemoteSource:
        tunnel.follow(job)
        return RemoteSource(tunnel)

    try:
        entry = entry or tunnel.found().obvious()
        source = follow(entry) if entry is not None else None
        return run(source, find=tunnel.found, connect=follow, theme=theme, ascii=ascii, place=ssh.target.words)
    finally:
        tunnel.close()


def choose(listing: Listing, wanted: str, ssh: Ssh) -> JobEntry:
    """Return the one job of the far side that ``wanted`` names; exits with one clear line otherwise."""
    jobs = matching(list(listing.jobs), wanted)
    running = [entry for entry in jobs if not entry.ended]
    if len(best := running or jobs) == 1:
        return best[0]
    names = ", ".join(f"{entry.id} ({clean(entry.name)})" for entry in (jobs or listing.jobs)) or "none"
    if not jobs:
        fail(f"no job {wanted!r} on {ssh.target.words}; there are: {names}", NONE)
    fail(f"{wanted!r} names several jobs: {names}", USAGE)
