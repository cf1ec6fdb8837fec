"""The job's own torchrun store: what nodes leave there for each other.

Spoken to over a plain socket with time-outs of its own, in the few words of the store's protocol that are needed.
torch's client is no guest in a training process: it looks names up for seconds, waits without end for an answer, writes
a stack of C++ to standard error when a job's store goes away, and may end the process when it comes back while the
interpreter goes down. Where the server does not answer the greeting of today's torch, nothing more is said to it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

CONNECT_SECONDS: Final = 2.0
"""Longest time that a connection may take, to each address of the name."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of what the nodes have left: more is none of ours."""

ANSWER_SECONDS: Final = 20.0
"""Longest time that an answer may take: a store looks the name of each new client up, and answers nobody meanwhile."""

# ``torch/csrc/distributed/c10d/TCPStoreBackend.hpp``: a query is its number in a byte, then what it takes.
# A greeting that is answered shows that they are still these: they have only ever been added to at the end.
OLDEST_TORCH: Final = (2, 4)
"""The first whose store answers it; to those long before, the same bytes mean something else."""
_VALIDATE: Final = 0
_GET: Final = 3
_ADD: Final = 4
_APPEND: Final = 9
_PING: Final = 13
_MAGIC: Final = struct.pack("=I", 0x3C85F7CE)
_LENGTH: Final = struct.Struct("=Q")
_NUMBER: Final = struct.Struct("=q")

_ALL: Final = b"/ranktop/doors"
"""As ``PrefixStore("ranktop", TCPStore(...))`` would name it."""
_COUNT: Final = b"/ranktop/changes"


class StoreError(Exception):
    """The store cannot be used now; the text is one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is, and whether it is there before the script calls ``init_process_group``."""

    host: str
    port: int
    early: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def place(environ: Mapping[str, str]) -> Place | None:
    """Return where the job's store is by what the launcher or the user left; None where nobody tells."""
    named = environ.get("RANKTOP_STORE", "")
    if named:
        host, _, port = named.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        return Place(host, int(port), early=True) if host and _is_port(port) else None
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host or not _is_port(port):
        return None
    # Else rank 0 makes it, and a connection to its port before that could take the port away from it.
    return Place(host, int(port), early=environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True")


def _is_port(text: str) -> bool:
    return text.isdigit() and 0 < int(text) < 65536


def is_up(where: Place) -> bool:
    """Tell whether the store can be there: the launcher has it from the start, a script by its process group."""
    distributed = sys.modules.get("torch.distributed")
    initialized = getattr(distributed, "is_initialized", None)
    return where.early or (initialized is not None and bool(initialized()))


def check_torch(version: str) -> None:
    """Raise StoreError for a torch whose store would take the greeting for something else: before 2.4."""
    parts = version.split(".")
    known = len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit()
    if not known or (int(parts[0]), int(parts[1])) < OLDEST_TORCH:
        raise StoreError(f"torch {version[:20]} is older than 2.4, or not known")


class Store:
    """A connection to the store, for one thread. Every call may raise StoreError; it is of no use after that.

    It is kept: each new one has the store look up a name.
    """

    def __init__(self, where: Place) -> None:
        """Connect and greet."""
        with _plainly(where):
            self._socket = socket.create_connection((where.host, where.port), CONNECT_SECONDS)
        self._where = where
        self._socket.settimeout(ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.own_address = str(self._socket.getsockname()[0])
        """This node's, on the way to the store."""
        try:
            with _plainly(where):
                nonce = os.urandom(4)
                self._socket.sendall(bytes([_VALIDATE]) + _MAGIC + bytes([_PING]) + nonce)
                if self._read(4) != nonce:
                    raise StoreError(f"what answers at {where} does not speak as today's torch does")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()

    def interrupt(self) -> None:
        """Have a call that waits in another thread fail at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def changes(self) -> int:
        """Return how often something was left there."""
        return self._add(0)

    def leave(self, line: bytes) -> None:
        """Leave a line for the other nodes."""
        with _plainly(self._where):
            self._socket.sendall(bytes([_APPEND]) + _text(_ALL) + _text(line + b"\n"))
        self._add(1)

    def lines(self) -> list[bytes]:
        """Return all lines that were left, oldest first; only to be asked when there is at least one change."""
        with _plainly(self._where):
            self._socket.sendall(bytes([_GET]) + _text(_ALL))
            (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
            if size > MOST_BYTES:
                raise StoreError(f"{size} bytes of doors in the job's store are none of ours")
            return self._read(size).splitlines()

    def _add(self, number: int) -> int:
        with _plainly(self._where):
            self._socket.sendall(bytes([_ADD]) + _text(_COUNT) + _NUMBER.pack(number))
            (count,) = _NUMBER.unpack(self._read(_NUMBER.size))
            return int(count)

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise ConnectionError("it has closed the connection")
            found += part
        return bytes(found)


def _text(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text


@contextlib.contextmanager
def _plainly(where: Place) -> Iterator[None]:
    """Turn the network's errors into one line."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the job's store at {where} does not answer: {error.strerror or error}") from None


def wanted(environ: Mapping[str, str]) -> bool:
    """Tell whether the nodes may meet: ``RANKTOP_NODES=off`` keeps each to itself."""
    return environ.get("RANKTOP_NODES", "").lower() not in {"off", "0", "no", "false"}
