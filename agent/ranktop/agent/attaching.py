"""Starts and ends the agent of this process: before a script, by the one-liner, after a fork, at exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ranktop.agent.runner import one_line
from ranktop.agent.say import say

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ranktop.agent.identity import Identity
    from ranktop.agent.meeting import Meeting
    from ranktop.agent.sampler import Sampler
    from ranktop.agent.watch import Watch
    from ranktop.wire.schema import Card, Sample

EXIT_DEADLINE: Final = 1.2
"""Seconds that the end of the process waits for the last words, at most: a script that dies on its first line does so
before the hub is up. Usually they are gone within a few milliseconds."""

MEETING_DEADLINE: Final = 0.5
"""Seconds that the end of the process waits for the thread that looks for other nodes; it ends in milliseconds."""


class _Agent:
    """The agent of this process: its thread, its hooks, and how the script ended."""

    def __init__(self, sampler: Sampler) -> None:
        self.pid = os.getpid()
        self.sampler = sampler
        self.watch: Watch | None = None
        self.late = False
        self.how = "exit"
        self.code: int | None = None
        self.detail = ""

    def torch_loaded(self) -> None:
        """Put the hooks in place; what malloc holds by now (torch's own import) is no activation."""
        try:
            from ranktop.agent.watch import Watch

            self.sampler.mark_baseline()
            watch = Watch(self.sampler.host_allocator)
            watch.install()
            self.watch = self.sampler.watch = watch
        except Exception as error:
            say(f"not following the model: {one_line(error)}")
        self._meet()

    def _meet(self) -> None:
        """Look for the hubs of the job's other nodes, where there are any."""
        meeting = self.sampler.meeting
        if meeting is None:
            return
        try:
            with _signals_blocked():
                meeting.start()
        except Exception as error:
            say(f"not looking for the job's other nodes: {one_line(error)}")

    def stop(self) -> None:
        """Send the last words, take the hooks away, end the thread."""
        from ranktop.wire.schema import End

        if os.getpid() != self.pid:
            return
        if self.how == "exit" and self.code is None:
            self._unhandled()
        if self.sampler.meeting is not None:
            self.sampler.meeting.stop(MEETING_DEADLINE)
        end = End(rank=self.sampler.identity.rank, how=self.how, code=self.code, detail=self.detail)
        if self.watch is not None:
            self.watch.remove()
            self.watch.close()
        self.sampler.finish(end, EXIT_DEADLINE)

    def _unhandled(self) -> None:
        """Without a runner, the interpreter's own note of an unhandled exception tells how the script ended."""
        error: Any = getattr(sys, "last_value", None)
        if issubclass(type(error), BaseException) and not hasattr(sys, "ps1"):
            self.how, self.code = "exception", 1
            self.detail = one_line(error)
            self.met(error)

    def met(self, error: BaseException) -> None:
        """Leave a black box behind when the script ends because it ran out of memory; for the thread that trained."""
        try:
            from ranktop.agent.black_box import failure_of

            self.sampler.failure = failure_of(error, self.watch)
        except BaseException as problem:  # whatever the script's objects raise: its own error must go on its way
            say(f"no black box of this out-of-memory: {one_line(problem)}")


_agent: _Agent | None = None
_left: _Agent | None = None
"""The parent's agent, in a forked child."""
_registered = False
_detached: int | None = None
"""The process in which the script has ended its agent."""


def start(script: str) -> None:
    """Start the agent before ``script`` runs. Never raises: a failure costs one line."""
    try:
        _start(script)
    except Exception as error:
        say(f"not attached, training goes on without it: {_words(error)}")


def attach_to(model: nn.Module | None, optimizers: Iterable[Optimizer]) -> None:
    """Follow a model, starting the agent when there is none. Never raises."""
    try:
        if _agent is None:
            _start(sys.argv[0] if sys.argv and sys.argv[0] not in {"", "-c"} else "python")
            if _agent is not None:
                _agent.late = True
        if _agent is not None and _agent.watch is not None:
            _agent.watch.follow(model, optimizers)
    except Exception as error:
        say(f"not attached, training goes on without it: {_words(error)}")


def look_into(model: nn.Module) -> None:
    """Watch the parts of a model that a trainer never calls itself, from their first call on."""
    if _agent is not None and _agent.watch is not None:
        _agent.watch.roots.add(model)
        _agent.watch.roots.descend(model)


def followed() -> nn.Module | None:
    """Return the model that is watched in this process, as it is called; None while there is none."""
    watch = _agent.watch if _agent is not None else None
    return watch.model.root if watch is not None and watch.model is not None else None


def started_late() -> bool:
    """Whether the agent of this process was started from within the script, which may have built its model before."""
    return _agent is not None and _agent.late


def detached() -> bool:
    """Whether the script has ended the agent of this process: then nothing but the script starts another one."""
    return _agent is None and _detached == os.getpid()


def detach() -> None:
    """End the agent of this process because the script says so."""
    global _detached
    _detached = os.getpid()
    stop()


def stop() -> None:
    """End the agent of this process, if there is one."""
    global _agent
    agent, _agent = _agent, None
    if agent is None:
        return
    try:
        agent.stop()
    except Exception as error:
        say(f"did not stop cleanly: {one_line(error)}")


def said() -> tuple[Card, Sample, float] | None:
    """Return the newest card and sample of this process's agent and when they were made (``time.monotonic``).

    None without an agent, and before its first sample.
    """
    agent = _agent
    return agent.sampler.said if agent is not None else None


def ended(how: str, code: int | None, detail: str, error: BaseException | None) -> None:
    """Note how the script ended; it is told at the end of the process."""
    if _agent is not None:
        _agent.how, _agent.code, _agent.detail = how, code, detail
        if error is not None and code != 0:
            _agent.met(error)


def _start(script: str) -> None:
    global _agent, _left
    if _agent is not None or os.environ.get("RANKTOP_DISABLE", "") not in {"", "0"}:
        return
    from ranktop.agent import trainers
    from ranktop.agent.identity import discover
    from ranktop.agent.imports import when_imported
    from ranktop.agent.lifecycle import ensure_hub
    from ranktop.agent.sampler import Sampler
    from ranktop.wire.endpoints import RunDirectoryError, job_directory

    left, _left = _left, None
    if left is not None and left.watch is not None:
        left.watch.remove()
    identity = discover(script)
    directory = job_directory(identity.job.id)
    # Before the script runs: it might wait for its own children, and be told of this one instead. What goes wrong
    # here goes wrong again in the publisher, which says so.
    with contextlib.suppress(RunDirectoryError, OSError):
        ensure_hub(identity.job, directory)
    sampler = Sampler(identity, directory, os.path.basename(script), _interval())
    sampler.meeting = _meeting(identity)
    with _signals_blocked():
        sampler.start()
    _agent = _Agent(sampler)
    _register()
    when_imported("torch", _agent.torch_loaded, having="nn")
    trainers.look_out()


def _meeting(identity: Identity) -> Meeting | None:
    """Return the thread that has the hubs of the job's nodes meet, not started; None in all ranks but one of a node."""
    if identity.nodes < 2 or identity.local_rank != 0:
        return None
    # Before the script runs, whose own files might hide modules that this needs.
    from ranktop.agent.meeting import Meeting
    from ranktop.agent.store import wanted

    return Meeting(identity) if wanted(os.environ) else None


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Have the threads started within leave signals alone: one that a script blocks, to wait for it, would end it."""
    synchronous = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - synchronous)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _register() -> None:
    """Have the agent end with the process, and stay out of its forked children; once."""
    global _registered
    if not _registered:
        _registered = True
        atexit.register(stop)
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """A forked child (a data loader's worker) has no thread and must not speak for its parent."""
    global _agent, _left
    if _agent is not None:
        if _agent.watch is not None:
            _agent.watch.enabled = False
        _agent, _left = None, _agent


def _interval() -> float:
    text = os.environ.get("RANKTOP_INTERVAL", "")
    if not text:
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        say(f"RANKTOP_INTERVAL={text!r} is not a number of seconds from 0.05 to 3600; using 1")
        return 1.0
    return value


def _words(error: Exception) -> str:
    """Name the kind of an error unless its text was written for the reader."""
    if type(error).__module__.startswith("ranktop."):
        return str(error)
    return f"{type(error).__name__}: {error}"
