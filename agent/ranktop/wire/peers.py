"""Who is at the other end of a Unix socket, by the kernel's word (SO_PEERCRED of unix(7)).

Modes of directories keep other users out; this is the second line, for directories that somebody else could exchange.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from typing import Final, Protocol

_CREDENTIALS: Final = struct.Struct("=iII")
"""``struct ucred``: pid, uid, gid."""
_ADDRESS: Final = re.compile(r"[^:]*:([0-9]{1,10}):[0-9]{1,10}:[0-9]{1,10}")


class Frame(Protocol):
    """A part of a message that libzmq received."""

    def get(self, option: str) -> object:
        """Return a property of the message."""


def user_at(address: str) -> int | None:
    """Return the user in a peer's address as libzmq tells it (``localhost:UID:GID:PID``); None where it tells none."""
    found = _ADDRESS.fullmatch(address)
    return int(found[1]) if found else None


def sender(frame: Frame) -> int | None:
    """Return the user who sent a frame that was received; None where it is not known."""
    try:
        return user_at(str(frame.get("Peer-Address")))
    except Exception:  # libzmq has no such property where it got no address
        return None


def user_behind(connected: socket.socket) -> int | None:
    """Return the user who serves a Unix socket; None where the kernel does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    try:
        _, user, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    except (OSError, struct.error):
        return None
    return int(user)


def is_trusted(user: int | None) -> bool:
    """Tell whether a user may be talked to: this one, and root, who could do anything anyway."""
    return user is None or user in (0, os.geteuid())
