"""A recording of another machine, fetched to be looked at here."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ranktop.tui.cli import NONE
from ranktop.tui.remote.connection import Connection
from ranktop.tui.remote.far import FarError, Listing
from ranktop.tui.remote.passing import run_far
from ranktop.tui.remote.place import Place
from ranktop.tui.remote.ssh import Ssh, SshError
from ranktop.wire.codec import clean

MOST: Final = 2 * 1024**3
"""Bytes; a larger recording is not fetched. A hub's own limit is 512 MiB."""

QUIET_MOST: Final = 64 * 1024**2
"""Bytes of one that is fetched beside a dashboard, where nothing shows how far it has come."""

TELL_EVERY: Final = 2.0
"""Seconds between two words on how far it has come."""

MIB: Final = 1024 * 1024


def fetch_recording(way: Ssh, job: str, *, say: Callable[[str], None] | None = None) -> Path:
    """Return a temporary copy of the recording of a job (id, start of one, or name) on another machine.

    The copy lies in a folder of its own that only this user can enter, and goes with this process. ``say`` is told how
    large it is and how far it has come; None: standard error. FarError, one line, when there is none to be had.
    """
    say = say or _say
    try:
        way.check()
        place = Place()
    except SshError as error:
        raise FarError(str(error), "final") from None
    connection = None
    try:
        connection = Connection(way, place, person=True)
        connection.wait_for_shell(None)
        size = _size(connection.jobs(), job)
        # Another session over the same connection: a person is not asked twice.
        return _copy(way, job, connection.shared.use(), size, say)
    except SshError as error:
        raise FarError(str(error)) from None
    finally:
        if connection is not None:
            connection.close()
        place.close()


def _size(listing: Listing, job: str) -> int | None:
    named = [size for name, size in listing.sizes.items() if name == job] or [
        size for name, size in listing.sizes.items() if name.startswith(job)
    ]
    return named[0] if len(named) == 1 else None


def fetch_quietly(way: Ssh, job: str, lead: tuple[str, ...], folder: Path) -> Path:
    """Copy a recording into a folder while a dashboard stands on the terminal: nobody is told and nobody is asked.

    ``lead``: ssh's arguments for the connection that there is. FarError, also of one that is too large for that.
    """
    return _copy(way, job, lead, None, lambda _: None, folder, QUIET_MOST)


def _copy(
    way: Ssh, job: str, lead: tuple[str, ...], size: int | None, say: Callable[[str], None],
    folder: Path | None = None, most: int = MOST,
) -> Path:  # fmt: skip
    where = way.target.words
    whole = "" if size is None else f" of {size / MIB:.1f} MiB"
    say(f"fetching the recording of {clean(job)} from {where}" + (f", {size / MIB:.1f} MiB" if size else ""))
    quiet = folder is not None
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="ranktop-recording-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "fetched.ranktop"
    got, told = 0, time.monotonic()
    try:
        with path.open("wb") as file:

            def take(data: bytes) -> None:
                nonlocal got, told
                got += len(data)
                if got > most:
                    raise FarError(f"the recording on {where} is larger than {most // MIB} MiB", "final")
                file.write(data)
                if time.monotonic() - told > TELL_EVERY:
                    told = time.monotonic()
                    say(f"fetched {got / MIB:.1f} MiB{whole}")

            export = ["export", job, "--format", "recording", "--output", "-"]
            code = run_far(way, export, take, person=not quiet, lead=lead, quiet=quiet)
    except OSError as error:
        raise FarError(f"{folder} cannot be written: {error.strerror}", "final") from None
    if code or not got:
        shutil.rmtree(folder, ignore_errors=True)
        kind = "missing" if code == NONE else "final"
        raise FarError(f"{where} gave no recording of {clean(job)} (exit code {code})", kind)
    return path


def _say(text: str) -> None:
    print(f"ranktop: {text}", file=sys.stderr)
