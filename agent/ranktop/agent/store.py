"""The job's own torchrun store: what nodes leave there for each other.

torch's client logs a stack trace when it asks a server that has gone away, and waits for ever when the network has. So
a plain socket asks first whether anybody is there, each time, and nothing is asked for that is not there already. The
client is kept from one time to the next: where no resolver answers, torch logs a line for each new one.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

CONNECT_SECONDS: Final = 2.0
"""Longest time that a connection may take."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of what the nodes have left: more is none of ours."""

_PREFIX: Final = "ranktop"
_ALL: Final = "doors"
_COUNT: Final = "changes"


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
    if distributed is None or getattr(distributed, "TCPStore", None) is None:
        return False
    initialized = getattr(distributed, "is_initialized", None)
    return where.early or (initialized is not None and bool(initialized()))


def reach(where: Place) -> tuple[str, str]:
    """Return (the store's IP address, the own one on the way to it); StoreError when nobody answers there."""
    try:
        with contextlib.closing(socket.create_connection((where.host, where.port), CONNECT_SECONDS)) as probe:
            return str(probe.getpeername()[0]), str(probe.getsockname()[0])
    except OSError as error:
        raise StoreError(f"the job's store at {where} does not answer: {error.strerror or error}") from None


class Store:
    """A client of the store, for one thread. Every call may raise StoreError; it is of no use after that."""

    def __init__(self, address: str, port: int) -> None:
        """``address``: an IP address that has just been reached; a name would be looked up, and its others logged."""
        self.address = address
        with _plainly():
            distributed = sys.modules["torch.distributed"]
            client = distributed.TCPStore(
                address, port, is_master=False, timeout=timedelta(seconds=CONNECT_SECONDS), wait_for_workers=False
            )
            self._store: Any = distributed.PrefixStore(_PREFIX, client)

    def changes(self) -> int:
        """Return how often something was left there."""
        with _plainly():
            return int(self._store.add(_COUNT, 0))

    def leave(self, line: bytes) -> None:
        """Leave a line for the other nodes."""
        with _plainly():
            self._store.append(_ALL, line.decode() + "\n")
            self._store.add(_COUNT, 1)

    def lines(self) -> list[bytes]:
        """Return all lines that were left, oldest first; only to be asked when there is at least one change."""
        with _plainly():
            return bytes(self._store.get(_ALL))[:MOST_BYTES].splitlines()


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Turn torch's errors, which carry a stack of C++, into one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip().splitlines()
        raise StoreError(f"the job's store failed: {text[0][:160] if text else type(error).__name__}") from None


def wanted(environ: Mapping[str, str]) -> bool:
    """Tell whether the nodes may meet: ``RANKTOP_NODES=off`` keeps each to itself."""
    return environ.get("RANKTOP_NODES", "").lower() not in {"off", "0", "no", "false"}
