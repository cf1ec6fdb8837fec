"""Starts and ends the agent of this process: before a script, by the one-liner, after a fork, at exit."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ranktop.agent.sampler import Sampler
    from ranktop.agent.watch import Watch

EXIT_DEADLINE: Final = 1.2
"""Seconds that the end of the process waits for the last words, at most: a script that dies on its first line does so
before the hub is up. Usually they are gone within a few milliseconds."""


class _Agent:
    """The agent of this process: its thread, its hooks, and how the script ended."""

    def __init__(self, sampler: Sampler) -> None:
        self.pid = os.getpid()
        self.sampler = sampler
        self.watch: Watch | None = None
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
            _say(f"not following the model: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """Send the last words, take the hooks away, end the thread."""
        from ranktop.wire.schema import End

        if os.getpid() != self.pid:
            return
        if self.how == "exit" and self.code is None:
            self._unhandled()
        end = End(rank=self.sampler.identity.rank, how=self.how, code=self.code, detail=self.detail)
        if self.watch is not None:
            self.watch.remove()
        self.sampler.finish(end, EXIT_DEADLINE)

    def _unhandled(self) -> None:
        """Without a runner, the interpreter's own note of an unhandled exception tells how the script ended."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and not hasattr(sys, "ps1"):
            self.how, self.code = "exception", 1
            self.detail = f"{type(error).__name__}: {error}".splitlines()[0][:300]


_agent: _Agent | None = None


def start(script: str) -> None:
    """Start the agent before ``script`` runs. Never raises: a failure costs one line."""
    try:
        _start(script)
    except Exception as error:
        _say(f"not attached, training goes on without it: {_words(error)}")


def attach_to(model: nn.Module | None, optimizers: Iterable[Optimizer]) -> None:
    """Follow a model, starting the agent when there is none. Never raises."""
    try:
        if _agent is None:
            _start(sys.argv[0] if sys.argv and sys.argv[0] not in {"", "-c"} else "python")
        if _agent is not None and _agent.watch is not None:
            _agent.watch.follow(model, optimizers)
    except Exception as error:
        _say(f"not attached, training goes on without it: {_words(error)}")


def stop() -> None:
    """End the agent of this process, if there is one."""
    global _agent
    agent, _agent = _agent, None
    if agent is None:
        return
    try:
        agent.stop()
    except Exception as error:
        _say(f"did not stop cleanly: {type(error).__name__}: {error}")


def ended(how: str, code: int | None, detail: str) -> None:
    """Note how the script ended; it is told at the end of the process."""
    if _agent is not None:
        _agent.how, _agent.code, _agent.detail = how, code, detail


def _start(script: str) -> None:
    global _agent
    if _agent is not None or os.environ.get("RANKTOP_DISABLE", "") not in {"", "0"}:
        return
    from ranktop.agent.identity import discover
    from ranktop.agent.sampler import Sampler
    from ranktop.agent.torch_import import when_torch_is_imported
    from ranktop.wire.endpoints import job_directory

    identity = discover(script)
    sampler = Sampler(identity, job_directory(identity.job.id), os.path.basename(script), _interval())
    _agent = _Agent(sampler)
    sampler.start()
    atexit.register(stop)
    os.register_at_fork(after_in_child=_forked)
    when_torch_is_imported(_agent.torch_loaded)


def _forked() -> None:
    """A forked child (a data loader's worker) has no thread and must not speak for its parent."""
    global _agent
    if _agent is not None and _agent.watch is not None:
        _agent.watch.enabled = False
    _agent = None


def _interval() -> float:
    text = os.environ.get("RANKTOP_INTERVAL", "")
    if not text:
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        _say(f"RANKTOP_INTERVAL={text!r} is not a number of seconds from 0.05 to 3600; using 1")
        return 1.0
    return value


def _words(error: Exception) -> str:
    """Name the kind of an error unless its text was written for the reader."""
    if type(error).__module__.startswith("ranktop."):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _say(text: str) -> None:
    print(f"ranktop: {text}", file=sys.stderr)
