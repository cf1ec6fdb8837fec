"""``python -m ranktop.agent.hub JOB_DIRECTORY LOCK_FD``: the entry of a job's hub process.

Started by ``lifecycle.ensure_hub``, never by hand. Only what is needed to detach is imported before the fork.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Detach from the rank that started this process, and serve until the job is over."""
    directory, lock = Path(arguments[0]), int(arguments[1])
    # The agent's thread, which may have started this process, blocks all signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if os.fork():
        # The rank waits for this process only; the hub itself goes to init.
        os._exit(0)
    os.umask(0o077)
    from ranktop.agent.hub_server import serve

    return serve(directory, lock)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
