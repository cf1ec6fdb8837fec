"""A private folder for the sockets of one viewer, and who cleans up when the viewer cannot."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from ranktop.tui.remote.ssh import Shared, program
from ranktop.wire.endpoints import VIEWERS_SOCKET, check_directory

CONTROL: Final = "c"
THEIRS: Final = "theirs"
"""Holds two lines while a forward lives in the user's own shared connection: its control socket, and the forward."""

PATIENCE: Final = 0.4
"""Seconds that the end of a viewer may wait for what it has started."""

_GUARD: Final = """\
trap '' HUP INT TERM
read -r _
if [ -f "$1/theirs" ]; then
  { read -r path; read -r spec; } <"$1/theirs"
  "$2" -F /dev/null -S "$path" -O cancel -L "$spec" -- x
fi
[ -f "$1/pid" ] && kill "$(cat "$1/pid")"
[ -e "$1/c" ] && "$2" -F /dev/null -S "$1/c" -O exit -- x
rm -rf -- "$1"
"""
"""Waits until its input ends, which it does however the viewer ends, also by ``kill -9``."""


class Place:
    """A folder that only this user can enter; gone when the viewer is, however it ends."""

    def __init__(self) -> None:
        ssh = program()  # before there is a folder to be left behind
        # A socket's path has less than 100 bytes, and ssh adds 17 to that of its control socket: macOS' own temporary
        # folder would leave no room.
        short = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else None
        self.path = Path(tempfile.mkdtemp(prefix="ranktop-ssh-", dir=short))
        check_directory(self.path)
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "ranktop-guard", str(self.path), ssh],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", start_new_session=True,
        )  # fmt: skip

    @property
    def control(self) -> Path:
        """Return where a private control socket goes."""
        return self.path / CONTROL

    @property
    def socket(self) -> Path:
        """Return where the hub's socket appears."""
        return self.path / VIEWERS_SOCKET

    def note_ssh(self, pid: int | None) -> None:
        """Have this ssh ended should this process be killed; None: it has ended."""
        file = self.path / "pid"
        if pid is not None:
            file.write_text(str(pid))
            return
        with contextlib.suppress(OSError):
            file.unlink()

    def note_theirs(self, shared: Shared, spec: str) -> None:
        """Have the forward cancelled in the user's own connection should this process be killed."""
        (self.path / THEIRS).write_text(f"{shared.path}\n{spec}\n")

    def forget_theirs(self) -> None:
        """The forward has been cancelled."""
        with contextlib.suppress(OSError):
            (self.path / THEIRS).unlink()

    def unlink_socket(self) -> None:
        """Remove the forwarded socket of a connection that is gone."""
        with contextlib.suppress(OSError):
            self.socket.unlink()

    def close(self) -> None:
        """Remove the folder; the guard ends too."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(PATIENCE)
