"""The hub process: one thread, a socket for agents, a socket for viewers; a port only in a job of several nodes."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time
import traceback
from collections.abc import Callable, Container
from math import ceil
from pathlib import Path
from typing import Final

import msgspec
import zmq

from ranktop.agent.hub_nodes import HubNodes
from ranktop.agent.hub_pace import Pace
from ranktop.agent.hub_peers import Peers
from ranktop.agent.hub_presence import Presence
from ranktop.agent.hub_recorder import record
from ranktop.agent.hub_state import HubState, possible
from ranktop.agent.hub_viewers import Viewers, read_asks, receive, send, send_answers
from ranktop.agent.hub_zap import DOMAIN
from ranktop.wire.codec import BadMessage, WireError, WrongVersion, decode_body, decode_header, encode_ack
from ranktop.wire.endpoints import (
    AGENTS_SOCKET,
    LOCK_FILE,
    LOG_BYTES,
    MARKER_FILE,
    VIEWERS_SOCKET,
    JobFile,
    read_job_file,
    remove_job_directory,
    socket_path,
    write_job_file,
)
from ranktop.wire.nodes import Door, Doors
from ranktop.wire.recording_file import TOLD_TO_GO
from ranktop.wire.schema import MAX_MESSAGE, Ack, Header, Job

LINGER: Final = 180.0
"""Seconds a hub stays after the last agent is gone; ``RANKTOP_HUB_LINGER`` overrides it."""

_LOST_LINGERS: Final = 5.0
"""Linger times for which ranks of a node that is lost count as training on."""

_FIRST_WORD: Final = 15.0
"""Seconds a new hub waits for the first word of an agent."""
_HOUSEKEEPING: Final = 2.0
_SILENCE_EVERY: Final = 1.0
"""Seconds between two looks at the processes of ranks that are silent."""
_MAX_ERRORS: Final = 100
"""Failed turns in a row after which a hub gives up, so that a sound one can take over."""
_AT_ONCE: Final = 512
"""Messages of agents read before the viewers get their turn."""


def serve(directory: Path, lock: int) -> int:
    """Run the hub of a job, whose lock the descriptor ``lock`` holds; returns an exit code."""
    try:
        entry = read_job_file(directory)
        hub = HubServer(directory, entry.job(), entry.started)
        try:
            hub.run()
        finally:
            hub.close()
    except Exception:
        # The directory stays, so that the next hub knows whom it replaces.
        log(traceback.format_exc())
        return 1
    # Whoever has made the directory anew meanwhile owns it now.
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(lock), os.lstat(directory / LOCK_FILE)):
            remove_job_directory(directory)
    return 0


def log(text: str) -> None:
    """Append to hub.log, which is this process's standard error; it starts anew when it is too large."""
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size > LOG_BYTES:
            os.ftruncate(2, 0)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        os.write(2, f"{stamp} {text.rstrip()[:4000]}\n".encode(errors="replace"))


def _linger() -> float:
    try:
        return max(0.0, float(os.environ.get("RANKTOP_HUB_LINGER", LINGER)))
    except ValueError:
        return LINGER


class HubServer:
    """Sockets, signals and the clock around a HubState."""

    def __init__(
        self,
        directory: Path,
        job: Job,
        started: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        signals: bool = True,
    ) -> None:
        """``signals``: whether the process is the hub's own, to be ended by SIGTERM."""
        self._clock = clock
        self._directory = directory
        self._entry = JobFile.of(job, started, os.getpid())
        now = self._clock()
        self.state = HubState(job, secrets.token_hex(8), now)
        self._viewers = Viewers(self.state)
        self._presence = Presence()
        self._wrong_versions: set[int] = set()
        self._stay = _FIRST_WORD
        self._linger = _linger()
        self._alone = True
        """Nobody is left of whom this hub is to tell."""
        self._alone_since = now
        self._next_housekeeping = now
        self._next_silence = now
        self._stopping = False
        self._told = 0
        """SIGTERMs received: the first one ends the hub with its ranks, another one at once."""
        self._wakes: socket.socket | None = None
        if signals:
            self._catch_signals()
        self.recorder = record(self.state, directory.name, started, clock)
        self._note_replacement(now)
        # Before the sockets: a viewer takes a socket that answers for a job whose file is complete.
        write_job_file(directory, self._entry)
        self._open_sockets()
        wakes: list[int] = [self._wakes.fileno()] if self._wakes is not None else []
        self._pace = Pace([self._presence.fileno(), *wakes], clock)
        if self.recorder is not None:
            self.recorder.start()

    def _catch_signals(self) -> None:
        self._wakes, self._wake_out = socket.socketpair()
        for end in (self._wakes, self._wake_out):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._told += 1

    def _note_replacement(self, now: float) -> None:
        marker = self._directory / MARKER_FILE
        if os.path.lexists(marker):
            kept = "only the recording has" if self.recorder is not None else "gone is"
            detail = f"the hub before this one was killed; {kept} what it held"
            self.state.mark(now, "hub-replaced", detail)
        marker.unlink(missing_ok=True)
        marker.write_text(f"{self.state.hub} {os.getpid()}\n")

    def _open_sockets(self) -> None:
        self._context = zmq.Context()
        self._peers = Peers(self._context)
        self._agents = self._router(AGENTS_SOCKET, queued=1000)
        # A viewer that asks without ever reading fills its own short queue; what does not fit is dropped.
        self._visitors = self._router(VIEWERS_SOCKET, queued=4)
        path = socket_path(self._directory, VIEWERS_SOCKET)
        self._inode = os.lstat(path).st_ino
        self._poller = zmq.Poller()
        for source in (self._peers.socket, self._agents, self._visitors, self._wakes, self._presence.fileno()):
            if source is not None:
                self._poller.register(source, zmq.POLLIN)
        self.nodes = HubNodes(self.state, self._poller, log)

    def _router(self, name: str, queued: int) -> zmq.Socket[bytes]:
        router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        router.linger = 0
        router.sndhwm = queued
        router.rcvhwm = queued
        # Somewhat above the limit, so that a frame just over it is counted and not only cut off.
        router.maxmsgsize = 2 * MAX_MESSAGE
        router.zap_domain = DOMAIN
        router.bind("ipc://" + socket_path(self._directory, name))
        return router

    def run(self) -> None:
        """Serve until the last agent has been gone for the linger time, or is gone and SIGTERM has come."""
        errors = 0
        while not self._stopping and errors < _MAX_ERRORS:
            errors = 0 if self._survived() else errors + 1
        if errors:
            raise RuntimeError("the hub gives up: every turn fails")

    def _survived(self) -> bool:
        """Take one turn; a failure is logged and costs that turn only."""
        try:
            self.turn()
        except Exception:
            log(traceback.format_exc())
            return False
        return True

    def turn(self, longest: float = 1.0) -> None:
        """Wait for something to do, up to ``longest`` seconds, and do it."""
        self._pace.rest()
        ready = dict(self._poller.poll(ceil(min(longest, self._timeout()) * 1000)))
        if self._wakes is not None and self._wakes.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._wakes.recv(64)
        if self._peers.socket in ready:
            for user in self._peers.turn():
                self._refuse(self._clock(), BadMessage(f"a connection of user {user}, who is not this hub's"))
                self.state.turned_away += 1
        before = self.state.stream.last
        if self._agents in ready:
            self._read_agents()
        now = self._clock()
        if self._told:
            self._consider_word(now)
        if self._visitors in ready:
            read_asks(self._visitors, self._viewers, self.state, now)
        self._serve_nodes(now, ready)
        self._pace.note(now, self.state.stream.last - before)
        for seen, gone in self._presence.collect(now, self._presence.fileno() in ready):
            self.state.end_process(seen, gone.pid, gone.how, gone.code, gone.detail)
        if now >= self._next_silence:
            self._next_silence = now + _SILENCE_EVERY
            self._look_at_silent(now)
        send_answers(self._visitors, self._viewers, now)
        self._consider_end(now)
        if now >= self._next_housekeeping:
            self._next_housekeeping = now + _HOUSEKEEPING
            self._keep_house()

    def _serve_nodes(self, now: float, ready: Container[object]) -> None:
        """Let the other nodes have their turn; whatever fails there costs this node's ranks and viewers nothing."""
        try:
            self.nodes.turn(now, self._viewers.asked_at, ready)
        except Exception:
            log(traceback.format_exc())

    def _look_at_silent(self, now: float) -> None:
        """Tell what the process of a silent rank does: stopped, or alive without a word."""
        for number in self.state.silent(now):
            word = self._presence.activity(self.state.ranks[number].pid)
            if word:
                self.state.note_process(now, number, word)

    def _timeout(self) -> float:
        """Seconds until something is due, at most 1."""
        now = self._clock()
        ends = self._alone_since + self._stay if self._alone else None
        others = (self._presence.deadline(), self._viewers.deadline(), self.nodes.deadline())
        due = [when for when in (ends, *others) if when is not None]
        return max(0.0, min([*due, now + 1.0]) - now)

    def _read_agents(self) -> None:
        acks: dict[bytes, Ack] = {}
        for _ in range(_AT_ONCE):
            message = receive(self._agents)
            if message is None:
                break
            address, *frames = message
            ack = self._take(frames)
            door = acks[address].door if address in acks else None
            acks[address] = ack if door is None or ack.door is not None else msgspec.structs.replace(ack, door=door)
        for address, ack in acks.items():
            send(self._agents, address, encode_ack(ack))

    def _take(self, frames: list[bytes]) -> Ack:
        """Keep one message of an agent, and return what to answer."""
        now = self._clock()
        door: Door | None = None
        try:
            if len(frames) != 2:
                raise WireError("not two frames")
            header = decode_header(frames[0])
            if header.kind == "doors":
                door = self._meet(now, header, frames[1])
            else:
                self.state.accept(now, frames[0], frames[1])
        except WireError as error:
            self._refuse(now, error)
            return Ack(hub=self.state.hub)
        self._presence.follow(header, now)
        self._stay = self._linger
        return Ack(hub=self.state.hub, want_card=self.state.wants_card(header), seq=header.seq, door=door)

    def _meet(self, now: float, header: Header, body: bytes) -> Door | None:
        """Take word of the job's other nodes; returns this hub's door."""
        message = decode_body(header, body)
        if not isinstance(message, Doors) or not possible(header):
            raise BadMessage("not what an agent says of nodes")
        return self.nodes.take(message, now)

    def _refuse(self, now: float, error: WireError) -> None:
        self.state.refused += 1
        if isinstance(error, WrongVersion) and error.theirs not in self._wrong_versions:
            if len(self._wrong_versions) < 8:
                self._wrong_versions.add(error.theirs)
                detail = f"an agent speaks schema {error.theirs}, the hub schema {error.ours}: "
                older = "agent" if error.theirs < error.ours else "hub"
                self.state.mark(now, "refused", detail + f"the {older} is older")
        elif self.state.refused in (1, 10, 100, 1000):
            log(f"refused message {self.state.refused}: {error}")

    def _consider_end(self, now: float) -> None:
        self._alone = self._presence.alone and not self.nodes.others_train(now, _LOST_LINGERS * self._linger)
        if not self._alone:
            self._alone_since = now
        elif now - self._alone_since >= self._stay:
            self._stopping = True

    def _consider_word(self, now: float) -> None:
        """End as told, but not before ranks that live: a scheduler tells all processes of a job to go at once.

        How its ranks end is what a recording must not lack. They may save a checkpoint meanwhile, and would only start
        another hub. Nobody knows how much time is left, so that nothing is waited for any more.
        """
        if not self._presence.hasty:
            self._presence.hasty = True
            if self._presence.watched:
                self.state.mark(now, TOLD_TO_GO, "SIGTERM; the hub ends with its ranks")
                if self.recorder is not None:
                    self.recorder.hurry()
        self._stopping = self._told > 1 or not self._presence.watched

    def _keep_house(self) -> None:
        try:
            moved = os.lstat(self._directory / VIEWERS_SOCKET).st_ino != self._inode
        except OSError:
            moved = True
        if moved:
            # No viewer can find this hub any more; the agents start another one when it is silent.
            log("the job's directory was removed: this hub ends")
            self._stopping = True
            return
        if self.recorder is not None:
            for text in self.recorder.follow(self.state.job, self.state):
                self.state.mark(self._clock(), "recording", text)
        ended = self._alone and bool(self.state.ranks)
        entry = JobFile.of(self.state.job, self._entry.started, os.getpid(), ended)
        if entry != self._entry:
            self._entry = entry
            write_job_file(self._directory, entry)

    def close(self) -> None:
        """Let go of everything but the directory."""
        self.nodes.close()
        self._presence.close()
        self._context.destroy(linger=0)
        if self.recorder is not None:
            for text in self.recorder.close():
                log(f"recording: {text}")
        if self._wakes is not None:
            signal.set_wakeup_fd(-1)
            self._wakes.close()
            self._wake_out.close()
