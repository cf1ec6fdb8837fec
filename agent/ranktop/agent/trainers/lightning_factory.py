"""What Lightning's entry points call in every Trainer: callbacks where an agent runs, none anywhere else.

They call it in every process of a machine on which ranktop is installed, so that it imports next to nothing before it
knows that it is wanted, and never fails.
"""

from __future__ import annotations

import os
from typing import Any

from ranktop.agent import progress
from ranktop.agent.runner import one_line
from ranktop.agent.say import say


def callbacks() -> list[Any]:
    """Return the Trainer's callback (entry points ``lightning.pytorch.callbacks_factory`` and its older name)."""
    try:
        if progress.current is None and not _started_by_a_watched_rank():
            return []
        from ranktop.agent.trainers.lightning import AutomaticRanktopCallback

        return [AutomaticRanktopCallback()]
    except Exception as error:
        say(f"Lightning's Trainer is not followed: {one_line(error)}")
        return []


def fabric() -> list[Any]:
    """Return Fabric's callback (``lightning.fabric.callbacks_factory``); a rank that Fabric has started gets its agent.

    That is done here: a Fabric has no later moment that comes before the model is built.
    """
    try:
        if progress.current is None and _started_by_a_watched_rank():
            from ranktop.agent import attach

            attach()
        if progress.current is None:
            return []
        from ranktop.agent.trainers.fabric import callback

        return [callback()]
    except Exception as error:
        say(f"Lightning's Fabric is not followed: {one_line(error)}")
        return []


def _started_by_a_watched_rank() -> bool:
    """Whether Lightning's own launcher has started this process from a rank that has an agent."""
    if os.environ.get("RANKTOP_DISABLE", "") not in {"", "0"} or "LOCAL_RANK" not in os.environ:
        return False
    from ranktop.agent.attaching import detached
    from ranktop.agent.identity import discover
    from ranktop.agent.own_launcher import leader
    from ranktop.wire.endpoints import job_directory

    return not detached() and leader() not in (None, os.getpid()) and job_directory(discover("").job.id).is_dir()
