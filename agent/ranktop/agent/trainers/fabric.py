"""Lightning's Fabric: what it says publicly once it has set a model up; the loop is the script's own."""

from __future__ import annotations

import functools
from typing import Any

from ranktop.agent import progress
from ranktop.agent.runner import one_line
from ranktop.agent.say import say
from ranktop.agent.trainers import Told, tell, titled
from ranktop.agent.trainers.lightning_words import dtype_of


class RanktopFabricCallback:
    """Is told by Fabric of every model that it has set up."""

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Tell what Fabric is, and follow a model in a rank that Lightning has started without an agent."""
        if progress.current is None:
            return
        try:
            tell(told_of(fabric))
            _follow(module)
        except Exception as error:
            say(f"Lightning's Fabric is not followed: {one_line(error)}")


def told_of(fabric: Any) -> Told:
    """Return what a Fabric says of the job."""
    package = type(fabric).__module__.split(".", 1)[0]
    plugin = fabric.strategy.precision
    return Told(
        trainer=titled(package, "Fabric"),
        precision=dtype_of(getattr(plugin, "precision", None)),
        rank=1,
    )


def _follow(module: Any) -> None:
    from ranktop.agent import attach
    from ranktop.agent.attaching import started_late

    if started_late():
        attach(module)


callback = functools.cache(RanktopFabricCallback)
"""Returns the one callback of all Fabrics of this process: it has no state."""
