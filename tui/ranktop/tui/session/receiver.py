"""A live hub as a source: asks, drains, follows over a lost connection and over a hub that was replaced."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq

from ranktop.tui.session.source import Link, Received, Reset, Whole
from ranktop.wire.codec import (
    MAX_BATCH,
    WireError,
    WrongVersion,
    decode_batch,
    decode_body,
    decode_header,
    encode_ask,
)
from ranktop.wire.endpoints import (
    VIEWERS_SOCKET,
    RunDirectoryError,
    check_directory,
    is_listening,
    socket_path,
)
from ranktop.wire.peers import is_trusted, sender
from ranktop.wire.schema import Ask, Batch, Item

ASK_WAIT: Final = 1.0
"""Seconds a hub with nothing new holds a question; so often it is heard of at least."""

LOST_AFTER: Final = 2.0
"""Seconds that an answer may be overdue before the connection is made anew."""

BEHIND: Final = 0.5
"""Seconds between the newest message of an answer and the answer from which there is more to be had at once."""

MOST: Final = 0.08
"""Seconds that one drain may take, so that a screen gets its turn while there is much to take."""


OVER_AFTER: Final = 12.0
"""Seconds after which no rank will start another hub any more: they do so 3 s after they miss it, then 6 s later."""


class HubSource:
    """Follows the hub of one job. ``drain`` is called about ten times a second."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = LOST_AFTER,
        relayed: bool = False,
    ) -> None:
        """``directory`` is the job's own, as ``find_jobs`` gives it.

        ``patience``: seconds that an answer may be overdue before the connection is made anew. ``relayed``: something
        stands between that takes connections whether or not a hub is behind it, as ssh does.
        """
        self._directory = directory
        self._clock = clock
        self._patience = patience
        self._relayed = relayed
        self._monitor: zmq.Socket[bytes] | None = None
        self._hubs_met = 0
        """Hubs that have answered this socket's handshake; the question went to the first."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._hub = ""
        self._since = -1
        self._asked_at = 0.0
        self._answered_at: float | None = None
        self._offsets: deque[float] = deque(maxlen=64)
        self._state = "connecting"
        self._detail = "waiting for the hub's first answer"
        self._lost = 0
        self._bad = 0
        self._refused = 0
        self._closed = False
        self._speaks_otherwise = False
        self._behind = False
        self._job_id = ""
        self._gone_since: float | None = None
        """Since when nobody serves the socket, though nobody has taken the job's directory away."""
        self._connect()

    def drain(self) -> list[Received | Reset | Whole]:
        """Return what has arrived since the last call, in order; reconnects when the hub is silent.

        It does not wait, unless what has come is old already: then for the hub's next answers, up to ``MOST`` seconds.
        """
        out: list[Received | Reset | Whole] = []
        if self._closed:
            return out
        if self._met_another():
            self._connect()
        until = time.perf_counter() + MOST
        while True:
            frames = self._receive()
            if frames is not None:
                self._read(frames, out)
            left = until - time.perf_counter()
            if left <= 0 or self._socket is None:
                break
            if frames is None and not (self._behind and self._socket.poll(max(1, int(left * 1000)))):
                break
        if self._clock() - self._asked_at > ASK_WAIT + self._patience:
            self._note_silence()
            self._connect()
        return out

    def poll(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for something to drain; tells whether there is."""
        if self._closed:
            return False
        if self._socket is None:
            time.sleep(min(timeout, 0.1))
            return False
        return bool(self._socket.poll(int(timeout * 1000)))

    @property
    def caught_up(self) -> bool:
        """Whether the whole snapshot has been drained; a long one comes in several batches."""
        return self._since >= 0

    def link(self) -> Link:
        """Return the state of the connection."""
        age = None if self._answered_at is None else max(0.0, self._clock() - self._answered_at)
        return Link(state=self._state, detail=self._detail, age=age, lost=self._lost, bad=self._bad + self._refused)

    def reconnect(self) -> None:
        """Make the connection anew at once: the way to the hub is another one."""
        if not self._closed:
            self._connect()

    def close(self) -> None:
        """Let go of the connection at once; the hub forgets this viewer by itself."""
        self._closed = True
        self._socket = None
        self._context.destroy(linger=0)

    def _connect(self) -> None:
        """Begin a new connection; the old one's answer, should there be one, is no longer waited for."""
        if self._socket is not None:
            if self._monitor is not None:
                self._socket.disable_monitor()
                self._monitor, self._hubs_met = None, 0
            self._socket.close(linger=0)
            self._socket = None
        self._asked_at = self._clock()
        try:
            check_directory(self._directory)
            address = "ipc://" + socket_path(self._directory, VIEWERS_SOCKET)
        except RunDirectoryError as error:
            if self._state == "connecting":
                self._state, self._detail = "lost", str(error)
            return
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.maxmsgsize = MAX_BATCH
        self._socket.reconnect_ivl = 400 if self._relayed else 100
        if self._relayed:
            self._monitor = self._socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED)
        self._socket.connect(address)
        if self._since < 0:
            self._hub = ""  # a snapshot that was cut off begins anew
        self._ask()

    def _met_another(self) -> bool:
        """Tell whether the connection was lost and has come back by itself: what was asked for is lost with it."""
        while self._monitor is not None and self._monitor.poll(0):
            self._monitor.recv_multipart()
            self._hubs_met += 1
        return self._hubs_met > 1

    def _ask(self) -> None:
        self._asked_at = self._clock()
        if self._socket is not None:
            question = Ask(hub=self._hub, since=self._since, wait=ASK_WAIT)
            self._socket.send(encode_ask(question), zmq.NOBLOCK)

    def _receive(self) -> list[bytes] | None:
        if self._socket is None:
            return None
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        user = sender(frames[0])
        if not is_trusted(user):
            # Somebody has exchanged the directory since it was looked at.
            self._state, self._detail = "lost", f"the hub's socket is served by user {user}: refused"
            self._socket.close(linger=0)
            self._socket = None
            return None
        return [frame.bytes for frame in frames]

    def _read(self, frames: list[bytes], out: list[Received | Reset | Whole]) -> None:
        try:
            if len(frames) != 1:
                raise WireError("the hub's answer is not one frame")
            batch = decode_batch(frames[0])
        except WrongVersion as error:
            # Asking again at once would only repeat it; the next question comes with the next connection.
            self._state, self._detail = "lost", str(error)
            self._speaks_otherwise = True
            return
        except WireError as error:
            self._bad += 1
            self._detail = str(error)
            self._ask()
            return
        now = self._clock()
        self._answered_at = now
        self._state, self._detail = "live", ""
        self._speaks_otherwise = False
        self._offsets.append(now - batch.now)
        self._take(batch, now, out)

    def _take(self, batch: Batch, now: float, out: list[Received | Reset | Whole]) -> None:
        if batch.snapshot:
            replaced = self._hub not in ("", batch.hub)
            if replaced:
                self._offsets = deque([now - batch.now], maxlen=64)
            out.append(Reset(job=batch.job, hub=batch.hub, replaced=replaced, parts=batch.last < 0))
        ends = self._since < 0 <= batch.last and not batch.snapshot
        self._hub, self._job_id = batch.hub, batch.job.id
        self._since = batch.last
        self._gone_since = None
        self._lost += batch.lost
        self._refused = batch.refused
        newest = max((item.t for item in batch.items), default=batch.now)
        self._behind = self._since < 0 or batch.now - newest > BEHIND
        # Before it is decoded: the hub prepares the next answer meanwhile.
        self._ask()
        # A batch may have lain in the socket while this process was stopped: the hub's clock is taken from
        # the quickest of the last answers, not from this one.
        hub_now = now - min(self._offsets)
        for item in batch.items:
            received = self._decode(item, hub_now)
            if received is not None:
                out.append(received)
        if ends:
            out.append(Whole())

    def _decode(self, item: Item, hub_now: float) -> Received | None:
        try:
            header = decode_header(item.header)
            body = decode_body(header, item.body)
        except WireError:
            self._bad += 1
            return None
        return Received(header=header, body=body, age=max(0.0, hub_now - item.t), number=item.number)

    def _note_silence(self) -> None:
        if self._speaks_otherwise:
            return
        if not self._directory.is_dir():
            known = self._answered_at is not None
            self._state = "ended" if known else "lost"
            self._detail = "the hub has ended, some time after the job's last rank" if known else "no such job"
        elif is_listening(self._directory, VIEWERS_SOCKET):
            self._state, self._detail = "lost", "the hub does not answer; asking again"
        else:
            self._note_gone(self._clock())

    def _note_gone(self, now: float) -> None:
        """Somebody has killed the hub; where the job goes on, its agents start another one within seconds."""
        self._gone_since = now if self._gone_since is None else self._gone_since
        if self._answered_at is None or now - self._gone_since < OVER_AFTER:
            self._state, self._detail = "lost", "the hub is gone; the job's agents start another one"
            return
        self._state = "ended"
        self._detail = f"the hub was killed, with its job it seems; see how that ended: ranktop replay {self._job_id}"
