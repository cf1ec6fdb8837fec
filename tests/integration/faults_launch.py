"""One rank of a job in which a rank is unlike the others from its start: ``faults_launch.py KIND RANK arguments...``.

``hidden``: this rank runs without an agent. ``late``: it never gets as far as its script. ``other``: its script is a
copy with a line more. ``both``: it is another script, and the last rank runs without an agent. ``confined``: it joins
the memory cgroup whose folder is in ``FAULTS_CGROUP``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("faults_train.py")


def main() -> None:
    """Become the rank."""
    kind, rank, *arguments = sys.argv[1:]
    script = SCRIPT
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if kind == "both" and last:
        os.environ["RANKTOP_DISABLE"] = "1"
    if os.environ["RANK"] == rank:
        if kind == "hidden":
            os.environ["RANKTOP_DISABLE"] = "1"
        elif kind == "late":
            while True:
                signal.pause()
        elif kind == "confined":
            (Path(os.environ["FAULTS_CGROUP"]) / "cgroup.procs").write_text(str(os.getpid()))
        elif kind in ("other", "both"):
            script = Path.cwd() / SCRIPT.name
            script.write_bytes(SCRIPT.read_bytes() + b"# edited while the others ran\n")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    os.execv(sys.executable, [sys.executable, "-m", "ranktop.agent", str(script), *arguments])


if __name__ == "__main__":
    main()
